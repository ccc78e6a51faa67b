"""`isthmus.compile` and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast, overload

import torch
from torch import fx

from isthmus.driver.artifacts import Announced
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.frontend.capture_dynamo import CaptureLog, DynamoBackend, compile_with_dynamo
from isthmus.frontend.captured import Captured
from isthmus.frontend.generation import advance

CallableT = TypeVar("CallableT", bound=Callable[..., object])


@overload
def compile(
    model: CallableT,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "native",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
    capture: str = "dynamo",
) -> CallableT: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "native",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
    capture: str = "dynamo",
) -> Callable[[CallableT], CallableT]: ...


def compile(
    model: CallableT | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "native",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
    capture: str = "dynamo",
) -> CallableT | Callable[[CallableT], CallableT]:
    """Compile a function or module; nothing is compiled before the first call.

    The arguments are torch.compile's: `fullgraph` makes a graph break an error; `dynamic` None makes a size symbolic
    when it changes, True from the first call, False never; `disable` gives eager behaviour. `backend` is "native",
    "interpret" (all passes, run by the reference interpreter) or "eager" (capture only). `options`: the fields of
    `isthmus.driver.options.Options`. `capture` is "dynamo" (guards, graph breaks) or "trace" (direct tracing: one
    graph, cheaper calls). Usable as a decorator with or without arguments.

    Raises ValueError on unknown options, TypeError for what cannot be called; at the first call CompileError for what
    has no compiled form under `fullgraph`, and eager's own exceptions for what eager refuses.
    """
    if model is None:
        return lambda function: compile(
            function,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            disable=disable,
            capture=capture,
        )
    chosen = Options(backend=backend, fullgraph=fullgraph, dynamic=dynamic).with_settings(mode, options)
    if disable:
        return model
    compiled, _ = compile_in(Session(chosen, warm=True), model, capture)
    return compiled


def compile_in(
    session: Session, model: CallableT, capture: str, *, as_written: Callable[..., object] | None = None
) -> tuple[CallableT, CaptureLog]:
    """Compile within a session; gives the compiled object and the log of what capture does.

    `as_written` is what runs in a trace's place, where it is not the model. TypeError for what is no program in Python,
    ValueError for an unknown capture.
    """
    if not callable(model):
        raise TypeError(f"compile takes a function or a module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptFunction | torch.jit.ScriptModule):
        raise TypeError("compile takes a program in Python, not TorchScript; give it the module or function before jit")
    chosen = session.options
    notes = CaptureLog(breaks=Announced("graph_breaks"), guards=Announced("guards"), recompiles=Announced("recompiles"))
    if capture == "trace":
        from isthmus.frontend.capture_trace import compile_with_trace

        capturing = partial(compile_with_trace, as_written=as_written)
    elif capture == "dynamo":
        capturing = compile_with_dynamo
    else:
        raise ValueError(f"capture={capture!r} is none of 'dynamo', 'trace'")
    compiled = capturing(
        model,
        session.compile_captured,
        fullgraph=chosen.fullgraph,
        dynamic=chosen.dynamic,
        recompile_limit=chosen.recompile_limit,
        log=notes,
    )
    return cast(CallableT, compiled), notes


def dynamo_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Sequence[object]]:
    """What `torch.compile(f, backend="isthmus")` calls with each graph."""
    session = Session(Options().with_settings(mode, options), warm=True)
    return DynamoBackend(session.compile_captured)(graph, example_inputs)


def trace(function: Callable[..., object], *args: object, dynamic: bool = False, **kwargs: object) -> Captured:
    """Capture a call of a function or module on fakes of its tensors: no data is read, nothing is allocated.

    The result's `module` is the program in the aten dialect (print it, give it to `isthmus.passes`), `inputs` says who
    its arguments are. With `dynamic` every size above 1 becomes a symbol. Raises UnsupportedError with the user's line
    for what reads data, and eager's own exceptions for what eager refuses.
    """
    from isthmus.frontend.trace import trace as trace_call

    def moves(leaf: int, dimension: int) -> bool:
        return dynamic and dimension >= 0

    return trace_call(function, args, kwargs, dynamic=moves).captured


def reset() -> None:
    """Forget every compiled program of this process, Dynamo's too; memory goes with the last reference to them."""
    advance()


__all__ = ["compile", "dynamo_backend", "reset", "trace"]
