"""Direct tracing's view of Python-level calls: those that keep their structure, those that would read data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd.function import Function, FunctionCtx
from torch.autograd.profiler import record_function
from torch.nn.modules._functions import BackwardHookFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend import checkpoint, functorch_calls, noise, structured
from isthmus.frontend.active import active_recorder, tracing_into
from isthmus.frontend.backward import Backward
from isthmus.frontend.custom_gradient import emit_custom, without_grad_marks
from isthmus.frontend.known_nodes import KnownNodes
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import Call, as_list, emit_yield, exchange, in_place_of
from isthmus.frontend.torch_private import checkpoint_generator


class PythonCalls(TorchFunctionMode):
    """Sees calls of torch's Python functions on tensors while a function is traced."""

    def __init__(self, recorder: Recorder, known: KnownNodes | None = None) -> None:
        super().__init__()
        self.recorder = recorder
        self.known = known
        self.backward = Backward(recorder)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        if (cure := _READS_DATA.get(func)) is not None and _has_fakes(args):
            self.recorder.locate()
            with self.recorder.errors_at(getattr(func, "__name__", str(func))):
                raise UnsupportedError("the program reads a tensor's value while it is compiled", cure=cure)
        if func in _DATA and isinstance(args[0], Tensor):
            with self:
                return _data(self.recorder, func, args[0])
        if func in _HOOKS:
            self.recorder.locate()
            with self.recorder.errors_at(_HOOKS[func]):
                raise UnsupportedError("what waits for a gradient has no compiled form", cure=_CATCH)
        if func in _GRAD_ATTRIBUTE:
            self.backward.refuse_grad()
            return func(*args, **kwargs)
        if func in _BACKWARD:
            self.recorder.locate()
            with self, self.recorder.errors_at("backward"):
                return self.backward.run(torch.autograd.grad, args, kwargs)
        if func in noise.FUNCTIONS:
            with noise.torchs_own(self.recorder):
                return func(*args, **kwargs)
        if func in _TELLS_HISTORY:
            self.recorder.reads_history |= self.recorder.history.is_remade(args[0]) or func in _TELLS_MORE
            return func(*args, **kwargs)
        handler = structured.handler_of(func) if func in _STRUCTURED or isinstance(func, HigherOrderOperator) else None
        if handler is None:
            if self.known is None:
                return func(*args, **kwargs)
            return self.known.run(func, args, kwargs, lambda: func(*args, **kwargs))
        self.recorder.locate()
        example = _gradient_examples(self.recorder, args, kwargs) if func is torch.autograd.grad else None
        body_runs = self if example is None else nullcontext()
        with body_runs, self.recorder.errors_at(structured.name_of(func)):
            return handler(Call(self.recorder, _run_body, args, kwargs, example))


def _run_body(body: Callable[..., object], recorder: Recorder, args: Sequence[object]) -> object:
    return body(*args)


def _has_fakes(args: Sequence[object]) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(t, FakeTensor) for t in pytree.tree_leaves(args))


def _gradient_examples(recorder: Recorder, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Which of the inputs get a gradient: those that the outputs' history reaches."""
    outputs = kwargs.get("outputs", args[0] if args else None)
    inputs = kwargs.get("inputs", args[1] if len(args) > 1 else None)
    ins = [recorder.fake_of(t) for t in ([inputs] if isinstance(inputs, Tensor) else cast(Sequence[Tensor], inputs))]
    outs = [outputs] if isinstance(outputs, Tensor) else list(cast(Sequence[Tensor], outputs))
    reached = recorder.history.reached(outs)
    return tuple(t if reached.holds(t) else None for t in ins)


def _data(recorder: Recorder, func: object, tensor: Tensor) -> Tensor:
    """`x.data`: the same memory without history."""
    if func is _SET_DATA:
        recorder.locate()
        with recorder.errors_at("data"):
            raise UnsupportedError("a tensor gets another one's memory", cure="write to it by copy_ under no_grad")
    return structured.data_of(recorder, tensor)


_SET_DATA: object = getattr(Tensor.data, "__set__")  # noqa: B009 (torch hides the names from type checkers)
_DATA: set[object] = {getattr(Tensor.data, "__get__"), _SET_DATA}  # noqa: B009

_REGISTERED_AUTOGRAD = "torch._library.autograd"
"""Where torch makes the autograd functions of custom operators: part of a call that is recorded already."""

_STRUCTURED = {torch.autograd.grad}

_BACKWARD = {Tensor.backward, torch.autograd.backward}

_GRAD = cast(Any, Tensor.grad)
_GRAD_ATTRIBUTE = {_GRAD.__get__, _GRAD.__set__, _GRAD.__delete__}

_TELLS_MORE: set[object] = {cast(Any, Tensor)._version.__get__, cast(Any, Tensor).grad_fn.__get__}
"""What tells of other tensors, too: those in the same memory, those that it was computed from."""

_TELLS_HISTORY: set[object] = {
    *_TELLS_MORE,
    Tensor.requires_grad_,
    cast(Any, Tensor)._is_view,
    *(vars(torch._C.TensorBase)[n].__get__ for n in ("is_leaf", "output_nr", "_base")),  # pyright: ignore[reportPrivateUsage]
    cast(Any, Tensor.requires_grad).__set__,
}
"""What tells how a tensor came about, or depends on it."""

_HOOKS: dict[object, str] = {
    Tensor.register_hook: "register_hook",
    Tensor.register_post_accumulate_grad_hook: "register_post_accumulate_grad_hook",
    Tensor.retain_grad: "retain_grad",
}

_CATCH = (
    "write a torch.autograd.Function whose backward changes the gradient, ask for it by torch.autograd.grad, "
    "or compile with capture='dynamo'"
)

_KEEP_OUT = "keep this line outside of the compiled function, or compile with capture='dynamo', which breaks the graph"

_READS_DATA: dict[object, str] = {
    Tensor.item: _KEEP_OUT + "; a number that stays on the device can be used as a 0-d tensor",
    Tensor.tolist: _KEEP_OUT,
    Tensor.numpy: _KEEP_OUT,
    Tensor.__array__: _KEEP_OUT,
    Tensor.__repr__: "print outside of the compiled function",
    Tensor.__format__: "print outside of the compiled function",
    Tensor.__bool__: "use torch.where or torch.cond instead of a branch on data, or capture='dynamo'",
    Tensor.__int__: _KEEP_OUT,
    Tensor.__float__: _KEEP_OUT,
    Tensor.__contains__: _KEEP_OUT,
}


# ---- Functions that torch does not show to modes


@contextmanager
def intercepted(recorder: Recorder) -> Generator[None]:
    """Trace autograd.Function, checkpoint, torch.func and torch.cond of this thread as what they are."""
    with ExitStack() as patches, tracing_into(recorder):
        for target, name, replacement in [*_patches(), *functorch_calls.patches()]:
            patches.enter_context(mock.patch.object(target, name, replacement))
        yield


def _patches() -> list[tuple[object, str, object]]:
    original_apply = Function.__dict__["apply"]
    original_generator = checkpoint_generator()
    original_compiling = torch.compiler.is_dynamo_compiling
    original_enter, original_exit = record_function.__enter__, record_function.__exit__

    def apply(cls: type[Function], *args: object, **kwargs: object) -> object:
        recorder = active_recorder()
        if recorder is None or cls.__module__ == _REGISTERED_AUTOGRAD:
            return original_apply.__func__(cls, *args, **kwargs)
        return _custom_function(recorder, cls, args, kwargs)

    def generator(function: object, preserve: bool, context_fn: object, *rest: object, **kwargs: object) -> object:
        recorder = active_recorder()
        if recorder is None:
            return original_generator(function, preserve, context_fn, *rest, **kwargs)
        return _checkpointed(recorder, context_fn)

    def enter(self: record_function) -> record_function:
        return self if active_recorder() is not None else original_enter(self)

    def leave(self: record_function, *error: object) -> None:
        if active_recorder() is None:
            original_exit(self, *error)

    def is_dynamo_compiling() -> bool:
        return active_recorder() is not None or original_compiling()

    return [
        (Function, "apply", classmethod(apply)),
        (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", generator),
        (torch.compiler, "is_dynamo_compiling", is_dynamo_compiling),
        (record_function, "__enter__", enter),  # profiles the run, not the program
        (record_function, "__exit__", leave),
    ]


def _checkpointed(recorder: Recorder, context_fn: object) -> Generator[None]:
    """Around a checkpointed call: what is recorded meanwhile is to be recomputed."""
    plain = context_fn is torch.utils.checkpoint.noop_context_fn
    policy = None if plain else checkpoint.policy_of_contexts(cast(Callable[[], Sequence[object]], context_fn))
    with checkpoint.tagging(recorder, policy, default=None if policy else "must_recompute"):
        yield


class _Context(FunctionCtx):
    """What forward and backward of an autograd.Function get while they are traced."""

    needs_input_grad: tuple[bool, ...] = ()
    to_save: tuple[Tensor | None, ...] = ()
    non_differentiable: tuple[Tensor, ...] = ()
    dirty_tensors: tuple[Tensor, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        return self.to_save

    def set_materialize_grads(self, value: bool) -> None:
        """Absent cotangents are always zeros here."""


def _custom_function(
    recorder: Recorder, cls: type[Function], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    recorder.locate()
    if cls is BackwardHookFunction:
        with recorder.errors_at("register_full_backward_hook"):
            raise UnsupportedError("backward hooks of a module have no compiled form", cure=_CATCH)
    if kwargs:
        raise UnsupportedError("keyword arguments of an autograd.Function have no compiled form", op=cls.__name__)
    tensors = [a for a in args if isinstance(a, Tensor)]
    context = _Context()
    context.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
    with recorder.errors_at(cls.__name__), without_grad_marks(recorder), recorder.region(tensors) as forward:
        with torch.no_grad():
            if cls.setup_context is not Function.setup_context:
                outputs = cls.forward(*args)
                cls.setup_context(context, args, outputs)
            else:
                outputs = cls.forward(context, *args)
        flat = as_list(outputs)
        results = [o for o in flat if isinstance(o, Tensor)]
        if context.dirty_tensors:
            raise UnsupportedError("ctx.mark_dirty has no compiled form")
        cotangents = [recorder.like(r, requires_grad=False) for r in results]
        with recorder.region(cotangents) as backward:
            grads = as_list(cls.backward(context, *exchange(flat, cotangents)))
            emit_yield(recorder, [g for g in grads if isinstance(g, Tensor)])
        saved = list(backward.captured)
        emit_yield(recorder, [*results, *saved])
    silent = {id(t) for t in context.non_differentiable}
    fresh = emit_custom(
        recorder,
        args,
        results,
        grads,
        saved=len(saved),
        forward=forward,
        backward=backward,
        non_differentiable=[i for i, r in enumerate(results) if id(r) in silent],
    )
    return in_place_of(outputs, fresh)
