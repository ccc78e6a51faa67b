"""What torch knows about one overload: the types of its results, its derivative, its body, each as traced on fakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.frontend.encode import DTYPES
from isthmus.frontend.formulas import FORMULAS
from isthmus.frontend.operators import facts_of, written_arguments
from isthmus.frontend.recorder import BelowAutograd, Recorder
from isthmus.frontend.symbolic import SizeReader, SizeWriter
from isthmus.frontend.torch_private import python_dispatcher, schema_of, storage_of
from isthmus.ir import LiteralValue, Operand
from isthmus.sizes import Size


def overload_of(name: str) -> OpOverload:
    """Give torch's overload of "add.Tensor" or "mylib::op.default"; UnsupportedError where it is not registered."""
    namespace, _, rest = name.rpartition("::")
    packet, _, variant = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), variant)
    except AttributeError as error:
        raise UnsupportedError("no such operator is registered", op=name) from error


def shape_of_call(
    name: str,
    args: Sequence[LiteralValue],
    operands: Sequence[Attribute],
    *,
    hints: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> list[aten.RefType | None]:
    """Give the types of the results of one call, flat; None where torch gives none.

    `operands` are reference or tensor types. UnsupportedError where the call is not defined on them.
    """
    call = CallOnFakes(name, args, operands, hints, device)
    with call.entered(), torch.no_grad():
        results = call.run(call.operands)
        return [call.recorder.type_of(r) if isinstance(r, Tensor) else None for r in results]


def trace_derivative(
    name: str,
    args: Sequence[LiteralValue],
    operands: Sequence[Attribute],
    needs: Sequence[bool],
    *,
    hints: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> ModuleOp:
    """Give torch's own derivative of one call as an aten function `@main`.

    Arguments: the operands, the results, one cotangent per result of a float or complex dtype. Results: one gradient
    for each operand with `needs`, in order. What the derivative reads of operands and results are these arguments, not
    copies cut off from them, so it may be differentiated again. UnsupportedError where torch has none, or where it
    would have to draw random numbers again.
    """
    call = CallOnFakes(name, args, operands, hints, device)
    recorder = call.recorder
    with call.entered():
        inputs = [t.requires_grad_(n) if n else t for t, n in zip(call.operands, needs, strict=True)]
        for tensor in inputs:
            recorder.add_input(tensor)
        with torch.enable_grad():
            own, updated = call.results_on_values(inputs)
        results = own + updated
        for k, result in enumerate(results):
            computed = recorder.scope.values.pop(result, None)
            argument = recorder.add_input(result)
            if computed is not None and k < len(own):  # what backward saved of it is the argument, not computed again
                computed.replace_all_uses_with(argument)  # but what backward saved of a copy may be from before a write
        cotangents = [recorder.like(r, requires_grad=False) for r in results if r.is_floating_point() or r.is_complex()]
        for cotangent in cotangents:
            recorder.add_input(cotangent)
        seeds = dict(zip((id(r) for r in results if r.is_floating_point() or r.is_complex()), cotangents, strict=True))
        reached = [r for r in results if r.requires_grad]
        wanted = [t for t, n in zip(inputs, needs, strict=True) if n]
        if not reached:
            raise UnsupportedError("torch has no derivative of this operator", op=name)
        formula = FORMULAS.get(name)
        with _BelowFromSaved(recorder, [*results, *inputs]), recorder.errors_at(name):
            if formula is not None:
                gradients = formula(inputs, results, cotangents)
            else:
                gradients = _gradients(reached, wanted, [seeds[id(r)] for r in reached])
    return module_of(recorder, [recorder.value_of(g) for g in gradients], may_draw=False)


def trace_body(
    name: str,
    args: Sequence[LiteralValue],
    operands: Sequence[Attribute],
    *,
    hints: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> ModuleOp | None:
    """Give a composite overload's body in kernel-level calls as an aten function; None where it is one kernel."""
    call = CallOnFakes(name, args, operands, hints, device)
    with call.entered(), torch.no_grad():
        for tensor in call.operands:
            call.recorder.add_input(tensor)
        results = [r for r in call.run_recorded(call.operands) if isinstance(r, Tensor)]
    calls = [op for op in call.recorder.root.block.ops if isinstance(op, aten.CallOp)]
    if any(c.overload == name for c in calls):
        return None
    return module_of(call.recorder, [call.recorder.value_of(r) for r in results], may_draw=True)


# ---- One call on fake tensors


class CallOnFakes:
    """An overload with its arguments on fake tensors; symbolic sizes are torch's while it lasts."""

    def __init__(
        self,
        name: str,
        args: Sequence[LiteralValue],
        operands: Sequence[Attribute],
        hints: Mapping[str, int] | None,
        device: str,
    ) -> None:
        self.name = name
        self.overload = overload_of(name)
        self.args = args
        self.writer = SizeWriter(hints)
        fake_mode = FakeTensorMode(shape_env=self.writer.shape_env)
        with fake_mode:
            self.operands = [self.fake(t, device) for t in operands]
        self.recorder = Recorder(fake_mode, SizeReader(self.writer.shape_env, self.writer.names))

    def entered(self) -> _Entered:
        """Inside, calls run on fakes; errors of torch become UnsupportedError."""
        return _Entered(self)

    def run(self, operands: Sequence[Tensor]) -> list[object]:
        """Run the call; gives its flat results."""
        positional, named = self.bound(operands)
        return pytree.tree_leaves(self.overload(*positional, **named), is_leaf=lambda v: v is None)

    def bound(self, operands: Sequence[Tensor]) -> tuple[list[object], dict[str, object]]:
        """Give the arguments as Python passes them."""
        schema = schema_of(self.overload).arguments
        values = [self._decode(v, str(a.real_type), operands) for v, a in zip(self.args, schema, strict=True)]
        positional = [v for v, a in zip(values, schema, strict=True) if not a.kwarg_only]
        named = {a.name: v for v, a in zip(values, schema, strict=True) if a.kwarg_only}
        return positional, named

    def run_recorded(self, operands: Sequence[Tensor]) -> list[object]:
        """Run the call and write down the kernels that it is made of."""
        with BelowAutograd(self.recorder):
            return self.run(operands)

    def results_on_values(self, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Run and write down the call on values: what it writes are copies. Gives its own results, and the copies."""
        written = self.written()
        with BelowAutograd(self.recorder):
            copies = [t.clone() if i in written else t for i, t in enumerate(operands)]
            given = self.run(copies)
        updated = [copies[i] for i in written]
        own = [r for r in given if isinstance(r, Tensor) and not any(r is u for u in updated)]
        return own, updated

    def written(self) -> list[int]:
        """Give the operands that the call writes, in the order of its arguments."""
        places = written_arguments(facts_of(self.overload), self.args)
        entries = [v if isinstance(v := self.args[k], tuple) else (v,) for k in places]
        return [v.index for vs in entries for v in vs if isinstance(v, Operand)]

    def fake(self, type_: Attribute, device: str) -> Tensor:
        facts = type_.data if isinstance(type_, aten.RefType) else None
        shape = ir.shape_of(type_)
        strides = facts.strides if facts else ir.contiguous_strides(shape)
        size = self.writer.size
        sizes, steps = [size(d) for d in shape], [size(d) for d in strides]
        return torch.empty_strided(sizes, steps, dtype=DTYPES[ir.dtype_of(type_)], device=device)

    def _decode(self, value: LiteralValue, kind: str, operands: Sequence[Tensor]) -> object:
        if isinstance(value, tuple):
            return [self._decode(v, kind, operands) for v in cast(tuple[LiteralValue, ...], value)]
        if isinstance(value, Operand):
            return operands[value.index]
        if isinstance(value, Size):
            return self.writer.size(value)
        if isinstance(value, str) and "ScalarType" in kind:
            return DTYPES[value]
        if isinstance(value, str) and ("Layout" in kind or "MemoryFormat" in kind):
            return getattr(torch, value)
        return value


@dataclass
class _Entered:
    """The modes around one call."""

    call: CallOnFakes

    def __enter__(self) -> None:
        self._fake = self.call.recorder.fake_mode
        self._python = python_dispatcher()
        self._python.__enter__()
        self._fake.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._fake.__exit__(None, None, None)
        self._python.__exit__(None, None, None)
        if error is None and not self.call.writer.is_general():
            raise UnsupportedError("depends on the numbers behind symbolic sizes", op=self.call.name)
        if isinstance(error, RuntimeError | NotImplementedError | TypeError | ValueError | IndexError):
            raise UnsupportedError(str(error).splitlines()[0] if str(error) else "fails", op=self.call.name) from error


class _BelowFromSaved(BelowAutograd):
    """Knows saved results again: autograd hands them out as new tensors on the same storage, behind a detach."""

    def __init__(self, recorder: Recorder, known: Sequence[Tensor]) -> None:
        super().__init__(recorder)
        self.known = {self._identity(t): t for t in reversed(known)}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        args, kwargs = pytree.tree_map_only(Tensor, self._known, (args, dict(kwargs or {})))
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedError("its derivative draws random numbers")
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _known(self, tensor: Tensor) -> Tensor:
        if tensor in self.recorder.scope.values:
            return tensor
        return self.known.get(self._identity(tensor), tensor)

    def _identity(self, tensor: Tensor) -> tuple[int, aten.RefType]:
        return storage_of(tensor), self.recorder.type_of(tensor)


def _gradients(outs: list[Tensor], ins: list[Tensor], seeds: list[Tensor]) -> list[Tensor]:
    """The formulas that can be differentiated again (create_graph); as values of their own, never views of others."""
    given = torch.autograd.grad(outs, ins, seeds, create_graph=True, allow_unused=True)
    gradients = cast("tuple[Tensor | None, ...]", given)
    return [torch.zeros_like(t) if g is None else g.clone() for g, t in zip(gradients, ins, strict=True)]


def module_of(recorder: Recorder, values: Sequence[SSAValue], *, may_draw: bool) -> ModuleOp:
    """Give what was recorded as a function `@main` of these results."""
    if recorder.constants:
        raise UnsupportedError("reads a constant tensor")
    recorder.emit(ReturnOp(*values))
    block = recorder.root.block
    for op in block.ops:
        op.properties.pop("grad", None)
        if not may_draw and isinstance(op, aten.CallOp) and op.overload == "detach.default":
            op.results[0].replace_all_uses_with(op.operands[0])  # autograd's own, around what it saves
    ir.erase_unused(block, lambda op: isinstance(op, ReturnOp) or bool(ir.literal(op, "mutates")))
    if not may_draw:
        _refuse_random(block)
    kinds = FunctionType.from_lists([a.type for a in block.args], [v.type for v in values])
    module = ModuleOp([FuncOp("main", kinds, Region(block))])
    aten.attach_schemas(module, tuple(recorder.schemas))
    return module


def _refuse_random(block: ir.Block) -> None:
    for op in block.ops:
        if isinstance(op, aten.CallOp) and torch.Tag.nondeterministic_seeded in overload_of(op.overload).tags:
            raise UnsupportedError("would draw random numbers again", op=op.overload)
