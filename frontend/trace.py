"""Direct tracing: the Python function runs once on fake tensors, and what it does is recorded."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import sympy
import torch
from torch import Tensor, nn
from torch._dynamo.source import LocalSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.as_written import dynamo_off
from isthmus.frontend.captured import Captured, Input
from isthmus.frontend.collector import collector_paused
from isthmus.frontend.fakes import fake_of_real, silence
from isthmus.frontend.finish import finish
from isthmus.frontend.known_nodes import HistoryIsRead, KnownNodes
from isthmus.frontend.leaves import hidden_tensors
from isthmus.frontend.locations import from_frames
from isthmus.frontend.memo import Memo
from isthmus.frontend.modes import restored_modes
from isthmus.frontend.outside import Outside
from isthmus.frontend.python_calls import PythonCalls, intercepted
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.records import opened
from isthmus.frontend.snapshot import AttributeReads, unchanged
from isthmus.frontend.symbolic import SizeReader
from isthmus.frontend.torch_private import python_dispatcher
from isthmus.frontend.torch_repairs import repair
from isthmus.sizes import Dim, Size

repair()

Leaf = object
"""One leaf of the flattened arguments."""


@dataclass(frozen=True)
class Traced:
    """A traced function: what was captured, and how calls map to it."""

    captured: Captured
    leaves: tuple[int, ...]
    """Which leaves of the flattened (args, kwargs) are the captured program's first arguments."""
    held: tuple[Tensor, ...]
    """Parameters, buffers and other tensors that the function reaches by itself: the arguments after these."""
    output: object
    """The result with an `OutputSlot` for each tensor."""
    reads: tuple[tuple[object, str, object], ...]
    """Attributes of modules that were read: (module, name, value)."""
    size_guard: str | None
    """A condition on t0, t1, ... (the tensors and integers of `leaves`), in torch's own words."""
    outside: Outside
    """What else the function may have read."""
    same: tuple[tuple[int, Tensor | int], ...]
    """Leaves that must be this very tensor, or the same one as an earlier leaf."""
    strides: Mapping[int, tuple[int | None, ...]]
    """The strides of each tensor among the leaves; None where sizes tell them, or they may be anything."""
    steps: tuple[tuple[int, int], ...]
    """Strides that no size tells, (leaf, dimension): arguments of the captured program after those of `leaves`."""


_TRACING = threading.RLock()
"""Tracing patches functions that all threads share: one at a time."""


class OutputSlot:
    """Stands for entry `index` of the captured program's outputs (no dataclass: those are containers)."""

    def __init__(self, index: int) -> None:
        self.index = index


def trace(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic: Callable[[int, int], bool] | None = None,
    name: str = "main",
) -> Traced:
    """Run the function on fakes of its tensors and record it; no data is read, nothing is allocated.

    `dynamic(leaf, dimension)` tells which sizes become symbols (`dynamic(leaf, -1)`: which integers). Raises
    UnsupportedError with the user's line for what reads data, has no compiled form, or changes objects that live on.
    """
    call = _Call(function, args, kwargs or {}, dynamic, name)
    known: Sequence[sympy.Basic] = ()
    remember = True
    while True:
        try:
            with collector_paused():
                recorder, traced = _attempt(call, known, remember)
        except HistoryIsRead:
            remember = False
            continue
        if recorder.sizes.is_current():
            return traced
        known = [guard.expr for guard in cast(ShapeEnv, recorder.fake_mode.shape_env).guards]


@dataclass(frozen=True)
class _Call:
    function: Callable[..., object]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    dynamic: Callable[[int, int], bool] | None
    name: str


def _attempt(call: _Call, known: Sequence[sympy.Basic], remember: bool) -> tuple[Recorder, Traced]:
    """Trace once. `known` guards hold from the start: sizes that they make equal are written one way.

    With `remember` equal calls run once; HistoryIsRead where the program turns out to need each of them.
    """
    function, name = call.function, call.name
    leaves, structure = pytree.tree_flatten(opened((tuple(call.args), dict(call.kwargs))))
    shape_env = ShapeEnv()
    fake_mode = FakeTensorMode(shape_env=shape_env)
    fakes = [_fakify(fake_mode, i, leaf, call.dynamic) for i, leaf in enumerate(leaves)]
    for expression in known:
        shape_env.evaluate_expr(expression)  # symbols are named after their sources: the same at every attempt
    recorder = Recorder(fake_mode, SizeReader(shape_env))
    recorder.find_location = lambda: from_frames(inspect.currentframe())
    used = [i for i, f in enumerate(fakes) if isinstance(f, FakeTensor | torch.SymInt)]
    names = _names(function, call.args, dict(call.kwargs))
    inputs = [_input(leaves[i], fakes[i], names[i] if i < len(names) else f"argument {i}") for i in used]
    steps = _own_steps(recorder, {i: f for i in used if isinstance(f := fakes[i], Tensor)})
    given_fakes = [*(fakes[i] for i in used), *(cast(Tensor, fakes[i]).stride(d) for i, d in steps)]
    examples = [*(leaves[i] for i in used), *(cast(Tensor, leaves[i]).stride(d) for i, d in steps)]
    inputs += [Input(f"{inputs[used.index(i)].name}.stride({d})", "size") for i, d in steps]
    outside = Outside(function, [leaf for leaf in leaves if not isinstance(leaf, Tensor)])
    modules = outside.modules
    for fake in given_fakes:
        if isinstance(fake, Tensor):
            recorder.add_input(fake)
        else:
            recorder.add_size()
    strides = {i: _told_strides(fake) for i in used if isinstance(fake := fakes[i], Tensor)}
    given, named = pytree.tree_unflatten(fakes, structure)
    reads = AttributeReads()
    kept = outside.kept_where_it_raises()
    with _TRACING, silence(), kept, restored_modes(), unchanged(modules, recorder), intercepted(recorder), reads:
        calls = PythonCalls(recorder, KnownNodes(recorder) if remember else None)
        with dynamo_off(), _retried(calls, outside), fake_mode, Memo(fake_mode), python_dispatcher(), recorder, calls:
            result = function(*given, **named)
        result = calls.backward.wrapped(opened(result))
        flat, spec = pytree.tree_flatten(result)
        _require_finished(recorder, flat)
        outputs = [o for o in flat if isinstance(o, Tensor | torch.SymInt | torch.SymFloat)]
        captured = finish(recorder, inputs, given_fakes, examples, outputs, name, _known(modules))
    _require_no_effects(recorder, outside, (given, named), fakes, structure)
    slots = iter(range(len(outputs)))
    template = [OutputSlot(next(slots)) if isinstance(o, Tensor | torch.SymInt | torch.SymFloat) else o for o in flat]
    placeholders = cast("list[torch.SymInt | FakeTensor]", [fakes[i] for i in used])
    guard = _size_guard(shape_env, placeholders)
    output = pytree.tree_unflatten(template, spec)
    firsts = {id(leaf): i for i, leaf in reversed(list(enumerate(leaves)))}
    same = (
        *((i, firsts[id(leaf)]) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and firsts[id(leaf)] < i),
        *((firsts[id(tensor)], tensor) for tensor in recorder.met),
    )
    return recorder, Traced(
        captured, tuple(used), captured.constants, output, reads.found, guard, outside, same, strides, steps
    )


@contextmanager
def _retried(calls: PythonCalls, outside: Outside) -> Generator[None]:
    """Raise HistoryIsRead where what went wrong may be due to tensors that were made again, so that all calls run."""
    known = calls.known
    try:
        yield
        if known is None or not known.used or not calls.recorder.reads_history:
            return
    except (Exception, HistoryIsRead):
        if known is None or not known.used:
            raise
    outside.put_back()
    raise HistoryIsRead


def _require_finished(recorder: Recorder, results: Sequence[object]) -> None:
    """Refuse generators and the like, whose work would run after the trace, and objects that keep tensors of it."""
    for result in results:
        if isinstance(result, Iterator):
            raise UnsupportedError(
                f"the program gives a {type(result).__name__}, whose elements are computed later",
                location=recorder.location,
                cure="give a list of the elements",
            )
        if not isinstance(result, Tensor) and any(isinstance(t, FakeTensor) for t in hidden_tensors(result)):
            raise UnsupportedError(
                f"the program gives a {type(result).__name__}, which keeps tensors of the trace",
                location=recorder.location,
                cure="give these tensors and make the object of them afterwards, or use capture='dynamo'",
            )


def _require_no_effects(
    recorder: Recorder, outside: Outside, given: object, fakes: Sequence[object], structure: pytree.TreeSpec
) -> None:
    """Refuse programs that change containers or objects which live on: later calls would not; these are put back."""
    what, drawn = outside.changed(), outside.draws.changed()
    outside.put_back()
    if drawn is not None:
        raise UnsupportedError(
            f"the program changes {drawn}: every call would have the numbers of this one",
            location=recorder.location,
            cure="draw outside and give the number as an argument, use torch.rand, or capture='dynamo'",
        )
    after, now = pytree.tree_flatten(opened(given))
    if what is None and (now != structure or any(a is not b for a, b in zip(after, fakes, strict=True))):
        what = "a list, dictionary or dataclass among the arguments"
    if what is not None:
        raise UnsupportedError(
            f"the program changes what lives on after the call: {what}",
            location=recorder.location,
            cure="return the new value instead, or use capture='dynamo'",
        )


def _size_guard(shape_env: ShapeEnv, placeholders: Sequence[torch.SymInt | FakeTensor]) -> str | None:
    """Give what torch has learnt of sizes as a condition on t0, t1, ...; a part of it may be an `or`."""
    sources = [LocalSource(f"t{i}") for i in range(len(placeholders))]
    parts = shape_env.produce_guards(placeholders, sources, ignore_static=True) if placeholders else []
    return " and ".join(f"({part})" for part in parts) or None


# ---- Inputs


def _fakify(fake_mode: FakeTensorMode, index: int, leaf: Leaf, dynamic: Callable[[int, int], bool] | None) -> object:
    if isinstance(leaf, int) and not isinstance(leaf, bool) and dynamic is not None and dynamic(index, -1):
        return _symbolic_integer(fake_mode, index, leaf)
    if not isinstance(leaf, Tensor):
        return leaf
    if type(leaf) not in (Tensor, nn.Parameter, nn.Buffer, FakeTensor):
        raise UnsupportedError(f"a tensor subclass ({type(leaf).__name__}) has no compiled form")
    moving = [dynamic is not None and dynamic(index, d) and leaf.shape[d] > 1 for d in range(leaf.dim())]
    sizes = [DimDynamic.DYNAMIC if m else DimDynamic.STATIC for m in moving]
    if not any(moving):
        return fake_of_real(fake_mode, leaf)
    return fake_mode.from_tensor(
        leaf, source=LocalSource(f"t{index}"), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )


def _own_steps(recorder: Recorder, fakes: Mapping[int, Tensor]) -> tuple[tuple[int, int], ...]:
    """Find strides that are symbols of their own: (leaf, dimension), each symbol once."""
    known = {size for fake in fakes.values() for size in recorder.sizes.dims(fake.shape)}
    found: dict[Dim, tuple[int, int]] = {}
    for leaf, fake in fakes.items():
        for dimension, step in enumerate(recorder.sizes.dims(fake.stride())):
            if isinstance(step, Size) and step not in known and step is Size.symbol(str(step)):
                found.setdefault(step, (leaf, dimension))
    return tuple(found.values())


def _told_strides(fake: Tensor) -> tuple[int | None, ...]:
    """The strides that are numbers; those of dimensions of one element say nothing where other sizes move."""
    sizes: Sequence[int | torch.SymInt] = fake.shape
    moving = any(isinstance(n, torch.SymInt) for n in sizes)
    return tuple(
        None if isinstance(step, torch.SymInt) or (moving and type(n) is int and n == 1) else step
        for n, step in zip(sizes, fake.stride(), strict=True)
    )


def _symbolic_integer(fake_mode: FakeTensorMode, index: int, value: int) -> object:
    if value < 2:  # torch's symbols of sizes are positive
        return value
    environment, source = cast(ShapeEnv, fake_mode.shape_env), LocalSource(f"t{index}")
    symbol = environment.create_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    return environment.create_symintnode(cast("torch.SymInt", symbol), hint=value, source=source)  # pyright: ignore


def _input(leaf: Leaf, fake: object, name: str) -> Input:
    if not isinstance(fake, Tensor):
        return Input(name, "size")
    return Input(name, "tensor", cast(Tensor, leaf).requires_grad)


def _names(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    """Name each leaf as the user does: x, x[0], pair['key']."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = [p.name for p in inspect.signature(called).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    positional = [parameters[i] if i < len(parameters) else f"argument {i}" for i in range(len(args))]
    names: list[str] = []
    for name, value in [*zip(positional, args, strict=True), *kwargs.items()]:
        paths, _ = pytree.tree_flatten_with_path(value)
        names.extend(name + pytree.keystr(path) for path, _ in paths)
    return names


def _known(modules: Sequence[tuple[str, nn.Module]]) -> dict[int, Input]:
    """Describe the tensors of modules by their ids."""
    found: dict[int, Input] = {}
    for prefix, module in modules:
        for name, parameter in module.named_parameters():
            found.setdefault(id(parameter), Input(f"{prefix}.{name}", "parameter", parameter.requires_grad))
        for name, buffer in module.named_buffers():
            found.setdefault(id(buffer), Input(f"{prefix}.{name}", "buffer", buffer.requires_grad))
    return found
