"""Capture by direct tracing: one graph per set of guards, no bytecode, cheap calls; what reads data is an error."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import cast

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from isthmus.diagnostics import CompileError, RefusedError, UnsupportedError
from isthmus.frontend import overlap
from isthmus.frontend.as_written import have_no_data, is_followed
from isthmus.frontend.capture_dynamo import CapturedGraph, CaptureLog
from isthmus.frontend.captured import CompileCaptured, Compiled, Value
from isthmus.frontend.generation import generation
from isthmus.frontend.locations import is_raised_by_us
from isthmus.frontend.modes import leaving
from isthmus.frontend.records import opened
from isthmus.frontend.refused import is_of_a_rule, is_refusal
from isthmus.frontend.snapshot import PLAIN
from isthmus.frontend.trace import OutputSlot, trace
from isthmus.frontend.trace_guards import Mismatch, TraceGuard
from isthmus.frontend.traced_module import TracedModule

LIMIT = 64
"""So many traces of one function unless asked otherwise; then it runs as written."""


@dataclass(frozen=True)
class _Entry:
    """One trace: when it is right, and what runs."""

    guard: TraceGuard
    run: Compiled
    leaves: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    build: Callable[[Sequence[object]], object]
    check: overlap.OverlapCheck | None


class TracedFunction:
    """A function that is traced at its first call, and again when a guard fails."""

    def __init__(
        self,
        function: Callable[..., object],
        compile_captured: CompileCaptured,
        *,
        dynamic: bool | None = None,
        fullgraph: bool = False,
        recompile_limit: int = LIMIT,
        log: CaptureLog | None = None,
        as_written: Callable[..., object] | None = None,
    ) -> None:
        if not isinstance(function, nn.Module):
            functools.update_wrapper(self, function, updated=())
        self.function = function
        self.as_written = as_written or function
        """What runs where no trace does."""
        self.compile_captured = compile_captured
        self.dynamic = dynamic
        self.fullgraph = fullgraph
        self.limit = recompile_limit
        self.log = log or CaptureLog()
        self._entries: list[_Entry] = []
        self._generation = generation()
        self._is_over = False
        self._moving: set[tuple[int, int]] = set()

    def __repr__(self) -> str:
        return f"<traced {self.function!r}>"

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """As functions do: a method of the class that it stands in."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[object, ...]:
        """Copies trace for themselves."""
        settings = self.dynamic, self.fullgraph, self.limit
        return _traced_of, (self.function, self.compile_captured, *settings, self.as_written)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if is_followed():
            return self.as_written(*args, **kwargs)
        leaves, structure = _flatten(args, kwargs)
        if self._generation != generation():
            self._entries.clear()
            self._generation = generation()
            self._is_over = False
        for entry in self._entries:
            if entry.guard.holds(leaves, structure):
                return self._run(entry, leaves, args, kwargs)
        return self._run_new(leaves, structure, args, kwargs)

    def _run(
        self, entry: _Entry, leaves: Sequence[object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = _given(leaves, entry.leaves, entry.steps)
        if entry.check is not None and not entry.check.holds(given):
            return self.as_written(*args, **kwargs)
        return entry.build(entry.run(given))

    def _run_new(
        self, leaves: Sequence[object], structure: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if self._is_over or have_no_data(leaves):
            return self.as_written(*args, **kwargs)
        mismatches = [m for e in self._entries if (m := e.guard.mismatch(leaves, structure)) is not None]
        if len(self._entries) >= self.limit:
            self._stop(mismatches)
            return self.as_written(*args, **kwargs)
        self.log.recompiles.extend(m.reason for m in mismatches)
        self._learn(mismatches)
        entry = self._trace(leaves, structure, args, kwargs)
        if isinstance(entry, Exception):
            return self._run_what_raised(entry, args, kwargs)
        self._entries.append(entry)
        return self._run(entry, leaves, args, kwargs)

    def _run_what_raised(self, error: Exception, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run a program whose trace raised as it is written: what it does before it raises happens, and happens once.

        Where it does not raise then, tracing is at fault: its result is right, and one warning says what it costs.
        """
        result = self.as_written(*args, **kwargs)
        what = f"{type(error).__name__} was raised while {_name(self.function)} was traced, not when it ran as written"
        if self.fullgraph:
            raise UnsupportedError(f"{what}: {error}") from error
        warnings.warn(f"{what}, as it does at such calls: {error}", RuntimeWarning, stacklevel=4)
        return result

    def _stop(self, mismatches: Sequence[Mismatch]) -> None:
        """From now on what has no trace yet runs as written; under `fullgraph` that is an error, at every call."""
        name = _name(self.function)
        why = f"the last guard that failed: {mismatches[-1].reason}" if mismatches else "no trace is allowed"
        what = f"{name} was compiled {self.limit} times, the limit; {why}"
        cure = 'pass what varies as a tensor, or choose a larger limit by options={"recompile_limit": ...}'
        if self.fullgraph:
            raise UnsupportedError(what, cure=cure)
        self._is_over = True
        warnings.warn(f"{what}. Other calls run as in eager from now on: {cure}", RuntimeWarning, stacklevel=5)

    def _learn(self, mismatches: Sequence[Mismatch]) -> None:
        """A size that changed becomes a symbol."""
        if self.dynamic is None:
            for mismatch in mismatches:
                self._moving |= set(mismatch.sizes)

    def _trace(
        self, leaves: Sequence[object], structure: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> _Entry | Exception:
        """Give the trace; or what the program itself raised, eager's refusals among it."""
        name = f"graph_{len(self.log.graphs)}"
        dynamic = (lambda leaf, dim: True) if self.dynamic else lambda leaf, dim: (leaf, dim) in self._moving
        note = CapturedGraph(name, None, 0)
        self.log.graphs.append(note)
        try:
            traced = trace(self.function, args, kwargs, dynamic=dynamic, name=name)
            captured = traced.captured
            note.captured, note.location = captured, captured.location
            note.operations = sum(1 for _ in captured.module.walk()) - 2
            run = leaving(self.compile_captured(captured), captured.grad_mode_left)
        except UnsupportedError as error:
            note.fallback = error
            raise
        except Exception as error:
            if isinstance(error, RefusedError) or (note.captured is None and _is_the_programs(error)):
                self.log.graphs.remove(note)
                return error
            raise
        guard = TraceGuard(traced, leaves, structure)
        self.log.guards.extend(f"{name} == {value!r}" for _, name, value in traced.reads if isinstance(value, PLAIN))
        given = _given(leaves, traced.leaves, traced.steps)
        check = overlap.check_of(captured, [*given, *captured.constants])
        if check is not None and any(i >= len(given) for i in check.watched):
            moving = tuple(i for i in check.watched if i < len(given))
            check = overlap.OverlapCheck(moving, {p: d for p, d in check.expected.items() if max(p) < len(given)})
        return _Entry(guard, run, traced.leaves, traced.steps, builder(traced.output), check)


def _given(leaves: Sequence[object], used: Sequence[int], steps: Sequence[tuple[int, int]]) -> list[Value]:
    """Give what the captured program takes: leaves, and strides of some of them."""
    given = [leaves[i] for i in used]
    if steps:
        given += [cast(Tensor, leaves[i]).stride(d) for i, d in steps]
    return cast("list[Value]", given)


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _is_the_programs(error: Exception) -> bool:
    """Whether an error met by a trace is of the program, or what eager says of it, not the check of a shape rule."""
    return is_refusal(error) or not (isinstance(error, CompileError) or is_of_a_rule(error) or is_raised_by_us(error))


def _traced_of(
    function: Callable[..., object],
    compile_captured: CompileCaptured,
    dynamic: bool | None,
    fullgraph: bool,
    recompile_limit: int,
    as_written: Callable[..., object],
) -> TracedFunction:
    return TracedFunction(
        function,
        compile_captured,
        dynamic=dynamic,
        fullgraph=fullgraph,
        recompile_limit=recompile_limit,
        as_written=as_written,
    )


_LEAVES = frozenset((Tensor, nn.Parameter, int, float, bool, str, type(None)))


def _flatten(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Sequence[object], object]:
    """Give the leaves of the arguments and their structure; the common case without a walk."""
    if not kwargs and all(type(a) in _LEAVES for a in args):
        return args, len(args)
    return pytree.tree_flatten(opened((args, kwargs)))


def builder(template: object) -> Callable[[Sequence[object]], object]:
    """Give the function that puts results in the place of a template's slots."""
    if isinstance(template, OutputSlot):
        index = template.index
        return lambda results: results[index]
    if type(template) in (tuple, list):
        parts = [builder(p) for p in cast(Sequence[object], template)]
        if type(template) is list:
            return lambda results: [part(results) for part in parts]
        return lambda results: tuple([part(results) for part in parts])
    leaves, spec = pytree.tree_flatten(opened(template))
    slots = [(i, leaf.index) for i, leaf in enumerate(leaves) if isinstance(leaf, OutputSlot)]
    if not slots:
        return lambda results: template

    def build(results: Sequence[object]) -> object:
        filled = list(leaves)
        for position, index in slots:
            filled[position] = results[index]
        return pytree.tree_unflatten(filled, spec)

    return build


def compile_with_trace(
    function: Callable[..., object],
    compile_captured: CompileCaptured,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    recompile_limit: int = LIMIT,
    log: CaptureLog | None = None,
    as_written: Callable[..., object] | None = None,
) -> Callable[..., object]:
    """Give the function or module compiled by `compile_captured` after direct tracing; traced at its first call.

    Guards: metadata of tensor arguments, values of others, attributes of modules that were read, closure and globals
    that the function names, torch's switches. UnsupportedError (with the user's line and the cure) where the program
    reads data while it is traced. A program that raises runs as written at each such call, so that what it does before
    it raises is done, once, and the error is eager's; what the shape rule of a user's operator refuses is raised as it
    is, and nothing has run. `dynamic` as torch.compile's: None makes a size symbolic when it
    changes. After `recompile_limit` traces a call that none fits runs as written, with one warning; under `fullgraph`
    it is refused. `as_written` is what runs then, where it is not the function itself (which may be for traces only).
    """
    traced = TracedFunction(
        function,
        compile_captured,
        dynamic=dynamic,
        fullgraph=fullgraph,
        recompile_limit=recompile_limit,
        log=log,
        as_written=as_written,
    )
    if isinstance(function, nn.Module):
        return TracedModule(function, traced)
    return traced
