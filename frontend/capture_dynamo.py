"""Capture by torch.compile's Dynamo: its guards, graph breaks and recompiles, our compiler behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch._dynamo
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import InternalTorchDynamoError, ShortenTraceback, TorchRuntimeError

from isthmus import diagnostics
from isthmus.diagnostics import CompileError, SourceLocation, UnsupportedError
from isthmus.frontend import dynamo_imports, dynamo_repairs, overlap
from isthmus.frontend.active import MeetingTransforms
from isthmus.frontend.as_written import is_followed_graph
from isthmus.frontend.captured import Captured, CompileCaptured, Compiled
from isthmus.frontend.collector import collector_paused
from isthmus.frontend.import_fx import import_graph
from isthmus.frontend.locations import from_stack_trace, is_library
from isthmus.frontend.modes import leaving
from isthmus.frontend.refused import is_refusal
from isthmus.frontend.torch_private import dynamo_accepts, skip_frames_of
from isthmus.frontend.torch_repairs import repair

SETTINGS: Mapping[str, bool] = {
    name: on
    for name, on in (("trace_autograd_ops", True), ("allow_rnn", True), ("record_runtime_overhead", False))
    if hasattr(dynamo_config, name)
}
"""How Dynamo traces for us: gradients and recurrent networks stay in the graph (older torch lacks the first), and no
call writes down how long its guards took."""

DYNAMIC: Mapping[bool | None, Mapping[str, bool]] = {
    None: {},
    True: {"assume_static_by_default": False},
    False: {"automatic_dynamic_shapes": False, "assume_static_by_default": True},
}
"""What `dynamic` means, as settings while Dynamo traces: Dynamo itself would set them around every call."""

repair()
dynamo_repairs.repair()
dynamo_imports.put_off()
skip_frames_of(*(f"isthmus.{part}" for part in ("codegen", "dialects", "driver", "passes", "runtime")))


# ---- What happened, for explain


@dataclass(frozen=True)
class GraphBreak:
    """Where Dynamo ended a graph before the function's end, and why."""

    reason: str
    location: SourceLocation | None


@dataclass
class CapturedGraph:
    """One graph that Dynamo handed over."""

    name: str
    location: SourceLocation | None
    operations: int
    captured: Captured | None = None
    fallback: CompileError | None = None
    """Why the graph runs as torch's own; None when it was compiled."""


@dataclass
class CaptureLog:
    """Everything capture did for one compiled function, in order."""

    graphs: list[CapturedGraph] = field(default_factory=list[CapturedGraph])
    breaks: list[GraphBreak] = field(default_factory=list[GraphBreak])
    guards: list[str] = field(default_factory=list[str])
    recompiles: list[str] = field(default_factory=list[str])


# ---- The backend


class DynamoBackend(dynamo_imports.Plain):
    """What Dynamo calls with each graph; gives what runs instead of it.

    A graph without a compiled form runs as torch's own, noted in `log`; with `fullgraph` the error is raised.
    """

    def __init__(
        self,
        compile_captured: CompileCaptured,
        *,
        fullgraph: bool = False,
        log: CaptureLog | None = None,
    ) -> None:
        self.compile_captured = compile_captured
        self.fullgraph = fullgraph
        self.log = log or CaptureLog()

    compiler_name = __name__ = "isthmus"

    def __call__(
        self, graph: fx.GraphModule, example_inputs: Sequence[object], **options: object
    ) -> Callable[..., Sequence[object]]:
        """Import one graph and compile it; `options` are those of torch.compile, read by the driver."""
        entry = CapturedGraph(f"graph_{len(self.log.graphs)}", _first_location(graph), _operations(graph))
        self.log.graphs.append(entry)
        self._note_break(graph)
        dynamo_repairs.guard_held_tensors(graph)
        if is_followed_graph(graph):
            entry.fallback = UnsupportedError("what calls it follows its operators, or tensors without data are given")
            return graph.forward
        try:
            captured = _imported(graph, example_inputs, entry)
            entry.captured = captured
            compiled = leaving(self.compile_captured(captured), captured.grad_mode_left)
            check = overlap.check_of(captured, example_inputs)
            return _positional(overlap.checked(compiled, check, graph.forward) if check else compiled)
        except CompileError as error:
            if self.fullgraph or not isinstance(error, UnsupportedError):
                raise visible(error) from error
            entry.fallback = error
            return graph.forward
        except Exception as error:
            if not is_refusal(error):
                raise
            entry.fallback = UnsupportedError(str(error), location=entry.location)
            return graph.forward  # raises it when it is called

    def _note_break(self, graph: fx.GraphModule) -> None:
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is None or not reason.graph_break:
            return
        frames = [f for f in reason.user_stack if not is_library(f.filename)] or list(reason.user_stack)
        place = SourceLocation(frames[-1].filename, frames[-1].lineno or 0) if frames else None
        self.log.breaks.append(GraphBreak(str(reason.reason).splitlines()[0], place))


def _imported(graph: fx.GraphModule, example_inputs: Sequence[object], entry: CapturedGraph) -> Captured:
    try:
        return import_graph(graph, example_inputs, name=entry.name)
    except CompileError:
        raise
    except Exception as error:  # torch's own run of the graph worked: what fails here is the import
        if is_refusal(error):
            raise
        what = f"importing the graph failed: {type(error).__name__}: {error}"
        raise UnsupportedError(what.splitlines()[0], location=entry.location) from error


def _positional(compiled: Compiled) -> Callable[..., Sequence[object]]:
    direct = getattr(compiled, "positional", None)
    if direct is not None:
        return direct

    def run(*args: object) -> Sequence[object]:
        return compiled(list(args))  # pyright: ignore[reportArgumentType]

    return run


def _first_location(graph: fx.GraphModule) -> SourceLocation | None:
    traces = (n.meta.get("stack_trace") for n in graph.graph.nodes if n.op not in ("placeholder", "output"))
    return next((place for place in map(from_stack_trace, traces) if place), None)


def _operations(graph: fx.GraphModule) -> int:
    return sum(n.op.startswith("call_") for n in graph.graph.nodes)


# ---- Entry


def compile_with_dynamo(
    function: Callable[..., object],
    compile_captured: CompileCaptured,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    disable: bool = False,
    log: CaptureLog | None = None,
    recompile_limit: int | None = 64,
) -> Callable[..., object]:
    """Give the function or module compiled by `compile_captured`; nothing happens before its first call.

    The arguments are torch.compile's. CompileError where the program has no compiled form and `fullgraph` is set;
    Dynamo's own errors (graph breaks under `fullgraph`, guards) as torch.compile gives them.
    """
    log = log or CaptureLog()
    backend = DynamoBackend(compile_captured, fullgraph=fullgraph, log=log)
    extra: dict[str, Any] = {}
    settings: dict[str, Any] = {**SETTINGS, **DYNAMIC[dynamic]}
    if recompile_limit is not None:  # older torch has one limit for the whole process
        (extra if dynamo_accepts("recompile_limit") else settings)["recompile_limit"] = recompile_limit
    optimize = torch._dynamo.optimize(
        backend,  # pyright: ignore[reportArgumentType]
        nopython=fullgraph,
        disable=disable,
        guard_export_fn=lambda guards: _note_guards(log, guards),
        guard_fail_fn=lambda failure: log.recompiles.append(str(failure.reason)),
        **extra,
    )
    if not disable:
        _set_while_tracing(optimize, fullgraph, settings)
        again = (compile_captured, fullgraph, dynamic, recompile_limit)
        # A copied or unpickled module compiles for itself; copy and pickle ask the object, not its class.
        setattr(optimize, "__reduce_ex__", lambda protocol: (_context_of, again))  # noqa: B010
    return optimize(function)


def _context_of(
    compile_captured: CompileCaptured, fullgraph: bool, dynamic: bool | None, recompile_limit: int | None
) -> object:
    """Give the context in which Dynamo compiles, as `compile_with_dynamo` makes it."""
    made = compile_with_dynamo(
        torch.nn.Identity(), compile_captured, fullgraph=fullgraph, dynamic=dynamic, recompile_limit=recompile_limit
    )
    return cast(Any, made).dynamo_ctx


def _note_guards(log: CaptureLog, guards: object) -> None:
    for guard in cast("set[Any]", guards):
        kind = guard.create_fn_name()
        log.guards.append(f"{guard.name} {kind}" if guard.name else kind)
    log.guards.sort()


def _set_while_tracing(context: object, fullgraph: bool, settings: dict[str, Any]) -> None:
    """Switch our settings on whenever Dynamo traces for this function.

    `backend_ctx_ctor` would do it around every call, at several times the price of the call itself.
    """
    callback = getattr(context, "callback", None)
    if callback is None:
        return
    context.callback = _Settings(callback, fullgraph, settings)  # pyright: ignore[reportAttributeAccessIssue]


def _is_transform(frame: object) -> bool:
    """Tell whether a frame is a call of a transform that Python makes by itself, between two graphs."""
    code = getattr(frame, "f_code", None)
    return getattr(code, "co_filename", "") == _TRANSFORMS


_TRANSFORMS = str(Path(diagnostics.__file__).with_name("transforms.py"))


class _Settings:
    """Dynamo's callback for a frame to be traced, inside of our settings, without the garbage collector.

    Where Dynamo fails on a transform (it does on control flow inside of one) the frame is traced once more, with the
    transform as a program of its own between two graphs. Where it fails on a float that varies (it does on one that a
    condition or a loop reads) it is traced once more with every float as a constant, which is guarded.
    """

    def __init__(self, callback: Callable[..., object], fullgraph: bool, settings: dict[str, Any]) -> None:
        self._torchdynamo_orig_backend = callback
        self._fullgraph = fullgraph
        self._settings = settings

    def __call__(self, *args: object, **kwargs: object) -> object:
        with dynamo_config.patch(self._settings), collector_paused():
            try:
                return self._trace(*args, **kwargs)
            except _FAILURES:
                if dynamo_config.specialize_float:
                    raise
            with dynamo_config.patch(specialize_float=True):
                return self._trace(*args, **kwargs)

    def _trace(self, *args: object, **kwargs: object) -> object:
        trace = self._torchdynamo_orig_backend
        met = MeetingTransforms(apart=_is_transform(args[0]))
        try:
            with met:
                return trace(*args, **kwargs)
        except _FAILURES as error:
            if not met.any:
                raise
            if self._fullgraph:
                error.add_note(_APART)
                raise
        with MeetingTransforms(apart=True):
            return trace(*args, **kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self._torchdynamo_orig_backend, name)


_FAILURES = (AssertionError, InternalTorchDynamoError, TorchRuntimeError)
"""How Dynamo fails where it meets what it cannot trace."""

_APART = (
    "Dynamo cannot trace this transform, as it cannot where a condition or a loop is inside: compile with "
    "capture='trace', or without fullgraph, where the transform becomes a program of its own."
)

# ---- Errors


def visible(error: CompileError) -> CompileError:
    """Give the error in a form that passes through Dynamo as itself."""

    class Visible(type(error), ShortenTraceback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(error.__dict__)
            self.first_useful_frame = None
            RuntimeError.__init__(self, error.render())

    Visible.__name__ = Visible.__qualname__ = type(error).__name__
    Visible.__module__ = type(error).__module__
    return Visible()
