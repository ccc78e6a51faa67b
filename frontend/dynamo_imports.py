"""What Dynamo does while it traces and seldom needs, put off until it needs it.

Imports (Inductor, export, networkx, sympy's groups of permutations) are a third of a second of a process's first call,
names and times for logs that nobody reads some 20 ms of every graph. Each function here gives what the original gives;
what it answers without the import follows from a flag that is off, a stack that is empty, or from the module not being
loaded: no object of a class and no frame of a file is from a module that nobody has imported.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar

import sympy
import torch
from torch._dynamo import (
    config,
    convert_frame,
    eval_frame,
    graph_region_tracker,
    guards,
    output_graph,
    symbolic_convert,
)
from torch._dynamo.variables import higher_order_ops
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch._logging._internal import trace_log
from torch.fx.experimental import symbolic_shapes

EXPORT = "torch.export._trace"
SIZES = "torch._inductor.sizevars"
TENSORS = "sympy.tensor.tensor"

Function = Callable[..., Any]
Wrapper = Callable[[Function], Function]


class Plain:
    """A backend that Dynamo calls as it is, without the minifier around it, unless the minifier is switched on."""

    compiler_name: ClassVar[str]


def plain_backend(get: Function) -> Function:
    """Of `eval_frame.get_compiler_fn`: only the minifier (`repro_after`) needs its wrapper."""

    def found(backend: object) -> object:
        return backend if isinstance(backend, Plain) and config.repro_after is None else get(backend)

    return found


def ours_is_registered(ask: Function) -> Function:
    """Of `_is_registered_backend`, as ours is by an entry point: the others need not be loaded to know it."""

    def asked(backend: object) -> bool:
        return isinstance(backend, Plain) or ask(backend)

    return asked


def outside_of_transforms(check: Function) -> Function:
    """Of `_throw_if_in_functorch`: outside of transforms it never throws, so it need not know all backends."""

    def checked(self: object) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore
            check(self)

    return checked


def where_enabled(ask: Function) -> Function:
    """Of `should_wrap_in_hop`, which is false while it is not enabled: it need not import distributed tensors."""
    plain: Function = getattr(ask, "__func__", ask)

    def asked(cls: Any, value: object) -> bool:
        return cls._enabled and plain(cls, value)

    return classmethod(asked)  # pyright: ignore[reportReturnType]


def at_first_use(pickler: Function) -> Function:
    """Of `InputPickler`: made when a first node is hashed, which Dynamo does for the deduplication of regions only."""

    class Late:
        made: Any = None

        def dumps(self, value: object) -> bytes:
            self.made = self.made or pickler()
            return self.made.dumps(value)

    return Late


def of_changed(look: Function) -> Function:
    """Of `get_replayed_side_effect_source_refs`: nothing where no object from outside of the graph is written to."""
    kinds = (AttributeMutationExisting, ValueMutationExisting)

    def looked(self: Any, **options: bool) -> list[str]:
        changed = self.side_effects._get_modified_vars()
        if EXPORT in sys.modules or any(isinstance(getattr(v, "mutation_type", None), kinds) for v in changed):
            return look(self, **options)
        return []

    return looked


def of_loaded(files: Function) -> Function:
    """Of `uninteresting_files`: those of modules that are loaded."""
    known: list[set[str]] = []

    def loaded() -> set[str]:
        if EXPORT in sys.modules and SIZES in sys.modules:
            return files()
        if not known:
            known.append(_files_of_symbolic_sizes())
        return known[0]

    return loaded


NAMES = (
    "torch torch._compile torch._dynamo.eval_frame torch._library.custom_ops torch._library.fake_impl "
    "torch._logging._internal torch._logging.structured torch._subclasses.fake_tensor torch._subclasses.meta_utils "
    "torch.fx._symbolic_trace torch.fx.experimental.recording torch.fx.experimental.sym_node "
    "torch.fx.experimental.symbolic_shapes torch.fx.interpreter"
).split()
"""Modules whose frames say nothing about a user's program."""


def _files_of_symbolic_sizes() -> set[str]:
    named = {sys.modules[name].__file__ for name in NAMES if name in sys.modules}
    structured = Path(torch.__file__).with_name("_higher_order_ops").glob("*.py")
    return {f for f in named if f} | set(map(str, structured)) | guards.uninteresting_files() | {"<string>"}


def where_read(measure: Function) -> Function:
    """Of `profile_guard_manager`: without a reader no time of a guard is measured, which flushes the caches first."""

    def measured(*args: object) -> float:
        shown = guards.guards_log.isEnabledFor(logging.DEBUG)
        return measure(*args) if shown or trace_log.handlers else 0.0

    return measured


def where_logged(name: Function) -> Function:
    """Of `get_funcname`, which reads a whole file to name the function of a line: only two logs show it."""
    logs = symbolic_convert.trace_source_log, symbolic_convert.trace_call_log

    def named(filename: str, line: int) -> str | None:
        return name(filename, line) if any(log.isEnabledFor(logging.DEBUG) for log in logs) else None

    return named


class Nobody:
    """A class without instances."""


def without_tensors(flatten: Function) -> Function:
    """Of `sympy.Add.flatten`: no term is one of sympy's tensors while the module that defines them is not loaded."""
    plain: Function = getattr(flatten, "__func__", flatten)
    standing_in = SimpleNamespace(TensExpr=Nobody, TensAdd=Nobody)

    def imported(module: str, *args: Any) -> object:
        return standing_in if module == TENSORS and module not in sys.modules else __import__(module, *args)

    found = {**plain.__globals__, "__builtins__": {**vars(builtins), "__import__": imported}}
    return classmethod(FunctionType(plain.__code__, found, plain.__name__))  # pyright: ignore[reportReturnType]


REPLACED: tuple[tuple[object, str, Wrapper], ...] = (
    (eval_frame, "get_compiler_fn", plain_backend),
    (convert_frame, "_is_registered_backend", ours_is_registered),
    (symbolic_convert.InstructionTranslator, "_throw_if_in_functorch", outside_of_transforms),
    (getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None), "should_wrap_in_hop", where_enabled),
    (graph_region_tracker, "InputPickler", at_first_use),
    (output_graph.OutputGraph, "get_replayed_side_effect_source_refs", of_changed),
    (symbolic_shapes, "uninteresting_files", of_loaded),
    (output_graph, "uninteresting_files", of_loaded),
    (guards, "profile_guard_manager", where_read),
    (symbolic_convert, "get_funcname", where_logged),
    (sympy.Add, "flatten", without_tensors),
)
"""Where Dynamo has what is replaced, its name, by what."""


@functools.cache
def put_off() -> None:
    """Replace Dynamo's functions, those that this version of torch has."""
    for place, name, wrapper in REPLACED:
        original = getattr(place, name, None)
        if original is not None:
            setattr(place, name, wrapper(original))
