"""The dispatch mode that writes aten ops: every call on fake tensors, before autograd, becomes one `aten.call`.

What a call mutates comes from its schema (with corrections), what its results alias from the storages of the fake
results, sizes from their symbolic expressions, the place in the user's program from whoever drives the recorder.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from xdsl.dialects.builtin import UnitAttr

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.frontend import autocast, checkpoint, lists, numbers
from isthmus.frontend.encode import DTYPE_NAMES, dtype_name
from isthmus.frontend.leaves import leaves_of, tensors_in
from isthmus.frontend.operands import CallArguments
from isthmus.frontend.operators import OperatorFacts, facts_of, identity_of
from isthmus.frontend.program import Program
from isthmus.frontend.refused import noted_as_rules, refusal
from isthmus.frontend.size_checks import compare_sizes
from isthmus.frontend.symbolic import SizeReader
from isthmus.frontend.torch_private import decompose, is_wrapped_by_functorch, number_in, paused
from isthmus.ir import Literal, Operand


class Recorder(Program, ProxyTorchDispatchMode):
    """Records what runs while it is entered.

    Raises UnsupportedError for what has no compiled form, with the user's line.
    """

    def __init__(self, fake_mode: FakeTensorMode, sizes: SizeReader) -> None:
        ProxyTorchDispatchMode.__init__(self, None, "real", pre_dispatch=True)  # pyright: ignore[reportArgumentType]
        Program.__init__(self, fake_mode, sizes)
        self.grad_override: bool | None = None
        """What the ops are marked with, where it is not torch's own grad mode."""
        self.saw_grad_mode = False
        """Whether any op was recorded with gradients on."""
        self.grad_mode_before = torch.is_grad_enabled()
        self.plans = autocast.Plans()
        self.numbers: dict[str, Tensor] = {}
        """Symbols of floats -> the 0-d f64 tensor that holds the number."""
        self.batches: list[object] = []
        """The vmaps of torch.func whose functions are being imported, see `functorch.py`."""
        self.duals: list[list[tuple[Tensor, Tensor]]] = []
        """For each level of forward mode that is open: its variables, each with the direction in which it moves."""
        self.policy: checkpoint.Policy | None = None
        """Of the checkpoint region that is being recorded."""
        self.torchs_noise = False
        """Whether what is drawn now comes from torch's generator, see `noise.py`."""
        self.turned: set[int] = set()
        """The tensors, by their ids, whose shape or strides a call replaced in place."""
        self.tag: str | None = None
        """What calls are tagged with where no policy is asked."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        facts = facts_of(func)
        self.locate()
        with self.errors_at(facts.name):
            if facts.name == "lift_fresh.default":
                return self._lift(func, cast(Tensor, args[0]))
            given: tuple[Sequence[object], Mapping[str, object]] = (args, dict(kwargs or {}))
            if any(type(t) is not FakeTensor for t in tensors_in(given)):
                given = pytree.tree_map_only(Tensor, self.fake_of, given)
            return self._dispatch(func, facts, *given)

    def __sym_dispatch__(
        self, func: OpOverload, types: tuple[object, ...], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return func(*args, **kwargs)

    def _dispatch(
        self, func: OpOverload, facts: OperatorFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        if (entries := lists.entries_of(func, args, kwargs)) is not None:
            with autocast.disabled(), self:
                made = [entry() for entry in entries]
            return None if facts.mutable else made
        tensors = tensors_in(args, kwargs)
        if any(map(is_wrapped_by_functorch, tensors)):
            with BelowAutograd(self):  # torch's batching rules run, what they call is recorded
                return func(*args, **kwargs)
        if not autocast.is_active(tensors):
            return self.record(func, facts, args, kwargs, on_tape=torch.is_grad_enabled())
        plan = self.plans.of(func, args, kwargs)
        if plan.inside:
            with self:
                return decompose(func, args, kwargs)
        args, kwargs = plan.apply(self, args, kwargs)
        with autocast.disabled():
            return self.record(func, facts, args, kwargs, on_tape=torch.is_grad_enabled())

    def record(
        self,
        func: OpOverload,
        facts: OperatorFacts,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        on_tape: bool = False,
    ) -> object:
        """Run one call on fake tensors and write it down; gives what torch gives.

        `on_tape`: autograd runs too, so that the results tell what has a history.
        """
        if facts.refusal is not None:
            what, cure = facts.refusal
            raise UnsupportedError(what, op=facts.name, cure=cure)
        if (form := numbers.tensor_form(func, args)) is not func:
            facts = facts_of(form)
        call = CallArguments(self, self.numbers, facts, args, kwargs)
        if (same := identity_of(facts, call.bound)) is not None:
            return same
        compare_sizes(facts.name, call.bound)
        had_history = any(t.requires_grad for t in call.tensors)
        writes = facts.view_of is not None or (bool(call.mutates) and torch.is_grad_enabled())
        self.reads_history |= had_history and writes
        watch = None if self.policy is None else checkpoint.AskPolicy(self.policy)
        try:
            with watch or nullcontext():
                result = func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:  # a fake kernel may say it in another type
            noted_as_rules(error, func)
            raise refusal(func, args, kwargs, None, self.location) or error from None
        if (refused := refusal(func, args, kwargs, result, self.location)) is not None:
            raise refused
        flat = leaves_of(result)
        tensors = [r for r in flat if isinstance(r, Tensor)]
        if not tensors and not call.mutates:
            return self._plain_result(facts, result, call)
        if not call.mutates and len(tensors) == 1 and call.holds(tensors[0]):
            return result  # the very argument: contiguous() of a contiguous tensor
        mutates = call.mutates
        if facts.view_of is not None:
            if facts.name == "detach_.default":
                if not had_history:
                    return result
                self._require_own(call.tensors[0])
            facts, mutates = facts_of(facts.view_of), ()
            if facts.name != "detach.default":
                self.turned.update(map(id, call.tensors[:1]))
        op = aten.call(
            facts.name,
            call.values,
            call.literals,
            [self.type_of(t) for t in tensors],
            mutates=mutates,
            aliases=[call.sharing(t) for t in tensors],
            grad=self.grad_mode(),
            present=[i for i, r in enumerate(flat) if isinstance(r, Tensor)],
            non_differentiable=_without_history(call.tensors, tensors) if on_tape else (),
            location=ir.location_attr(self.location),
        )
        if (tag := self.tag if watch is None else watch.tag) is not None:
            op.attributes[RECOMPUTE] = Literal.of(tag)
        if self.torchs_noise and torch.Tag.nondeterministic_seeded in func.tags:
            op.attributes[aten.TORCHS_NOISE] = UnitAttr()
        self.schemas.add(facts.schema)
        self.emit(op)
        for tensor, value in zip(tensors, op.results, strict=True):
            self.define(tensor, value)
        return result

    def grad_mode(self) -> bool:
        """Tell whether autograd records what runs now."""
        if self.grad_override is not None:
            return self.grad_override
        enabled = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        self.saw_grad_mode |= enabled
        return enabled

    @contextmanager
    def unrecorded(self) -> Generator[None]:
        with paused(self), self.fake_mode:
            yield

    def _require_own(self, tensor: Tensor) -> None:
        """Refuse to end the history of a tensor of the caller's."""
        if id(tensor) in self.given:
            cure = "use what x.detach() gives, or do this outside of the compiled function"
            raise UnsupportedError("an argument of the function is cut off from its history in place", cure=cure)

    def _plain_result(self, facts: OperatorFacts, result: object, call: CallArguments) -> object:
        """A number read from a tensor: floats stay symbols that name the tensor, integers become constants."""
        if isinstance(result, torch.SymFloat) and len(call.tensors) == 1:
            numbers.remember(self.numbers, result, call.tensors[0])
        elif isinstance(result, torch.SymInt) and facts.name in ("item.default", "_local_scalar_dense.default"):
            return int(result)
        return result

    def _lift(self, func: OpOverload, tensor: Tensor) -> Tensor:
        """A literal tensor in the program, torch.tensor(...): a number where it is one, else a copy of a constant."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with paused(self):
            fake = cast(Tensor, func(tensor))
        if tensor.numel() == 1 and tensor.dtype in DTYPE_NAMES:
            args = (tuple(tensor.shape), number_in(tensor), dtype_name(tensor.dtype), None, str(tensor.device))
            value = self.emit_call(torch.ops.aten.full.default, [], args, self.type_of(fake))
        else:
            source = self.value_of(tensor)
            value = self.emit_call(torch.ops.aten.clone.default, [source], [Operand(0)], self.type_of(fake))
        self.define(fake, value)
        return fake


def _without_history(operands: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[int]:
    """Give the results that autograd leaves out of the history that the others got."""
    if not any(t.requires_grad for t in operands):
        return ()
    return [k for k, r in enumerate(results) if not r.requires_grad and (r.is_floating_point() or r.is_complex())]


class BelowAutograd(TorchDispatchMode):
    """Records at the level of kernels, below autograd and torch's transforms: what vmap makes of a call."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        facts = facts_of(func)
        with self.recorder.errors_at(facts.name):
            return self.recorder.record(func, facts, args, kwargs or {})
