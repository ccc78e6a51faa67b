"""Gradients that forward computes beside a loss, which reads the same values: backward has but to scale them.

Before (the gradient of a loss by the values that it reads, t its tangent):
    %s = prim.broadcast %t {dims = []} : tensor<8192x50304xf32>
    %g = prim.mul %p, %s : tensor<8192x50304xf32>                   // %p is made of what forward reads
    func.return %loss, %g
After:
    %one = prim.const {value = 1.0} : tensor<f32>
    %b = prim.broadcast %one {dims = []} : tensor<8192x50304xf32>
    %d = prim.mul %p, %b {isthmus.recompute = "must_save"} : tensor<8192x50304xf32>
    %s = prim.broadcast %t {dims = []} : tensor<8192x50304xf32>
    %g = prim.mul %d, %s : tensor<8192x50304xf32>
    func.return %loss, %g

Gradients are linear in tangents. Backward then reads nothing but %d, and mostly t = 1: so one reading of the values is
saved. %d has the size of the gradient, whose memory is needed anyway, but from forward on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.linear import WAITS, is_linear_in, may_wait, times
from isthmus.passes.partition.recompute import tag_of

POINTWISE = (prim.ElementwiseOp, prim.MovementOp, prim.SourceOp)


@dataclass(frozen=True)
class PrepayGradientsPass(ModulePass):
    """Needs: joint functions, derivatives ended. Leaves: gradients of at least `least` bytes as multiples of values
    that forward keeps, where these read what forward reads and the tangent is one number."""

    name = "prepay-gradients"

    least: int = 1 << 24

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every function of the module that has one tangent."""
        for func in ir.functions(op).values():
            prepay(func, self.least)


def prepay(func: FuncOp, least: int) -> None:
    """Make large gradients multiples of the tangent by what does not depend on it."""
    joint = Joint.of(func)
    tangents = [joint.block.args[i] for i in joint.signature.tangents.values()]
    if len(tangents) != 1 or ir.shape_of(tangents[0]) != () or ir.dtype_of(tangents[0]) not in WAITS:
        return
    (tangent,) = tangents
    last, order = joint.block.last_op, {op: n for n, op in enumerate(joint.ops)}
    assert last is not None
    for k, (value, role) in enumerate(zip(joint.returned, joint.signature.results, strict=True)):
        size = ir.nbytes(value)
        if role.gradient is None or not isinstance(size, int) or size < least or ir.dtype_of(value) not in WAITS:
            continue
        chain = _chain(joint, value, order)
        if chain and _reads_with_forward(joint, chain, size):
            last.operands[k] = _scaled_last(joint.block, chain, value, tangent)
    _erase_unused(joint.block)


def _chain(joint: Joint, value: SSAValue, order: Mapping[Operation, int]) -> list[Operation]:
    """Give the ops from the tangent to a gradient in order; none where one of them is not pointwise and linear."""
    found: set[Operation] = set()
    pending = [value]
    while pending:
        op = pending.pop().owner
        if not isinstance(op, Operation) or op in found:
            continue
        depends = frozenset(v for v in ir.operands_of(op) if v in joint.after_tangent)
        fits = isinstance(op, POINTWISE) and may_wait(op) and tag_of(op) is None
        if not fits or not depends or not is_linear_in(op, depends):
            return []
        found.add(op)
        pending += depends
    return sorted(found, key=order.__getitem__)


def _reads_with_forward(joint: Joint, chain: Sequence[Operation], size: int) -> bool:
    """Whether all that is large and read on the way is read by forward too, and something is."""
    stack = [v for op in chain for v in ir.operands_of(op) if v not in joint.after_tangent]
    seen, large = set[SSAValue](), 0
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        op = value.owner
        if isinstance(op, Operation) and op not in joint.forward_ops:
            if not isinstance(op, POINTWISE) or tag_of(op) is not None:
                return False
            stack += ir.operands_of(op)
        elif not isinstance(op, prim.SourceOp) and 4 * joint.nbytes(value) >= size:
            large += 1
            if not any(use.operation in joint.forward_ops for use in value.uses):
                return False
    return large > 0


def _scaled_last(block: Block, chain: Sequence[Operation], value: SSAValue, tangent: SSAValue) -> SSAValue:
    """Compute a gradient for the tangent 1, then multiply in the wider of both types."""
    last = block.last_op
    assert last is not None
    last.detach()
    e = Emitter(block)
    known: dict[SSAValue, SSAValue] = {tangent: e.const(1.0, (), ir.dtype_of(tangent))}
    for op in chain:
        assert isinstance(op, prim.PrimOp)
        e.location = op.location
        made = e.copy(op, [known.get(v, v) for v in ir.operands_of(op)])
        known.update(zip(op.results, made, strict=True))
    found = known[value]
    maker = found.owner
    if not isinstance(maker, Operation):  # an argument times the tangent
        block.add_op(last)
        return value
    maker.attributes[RECOMPUTE] = Literal.of("must_save")
    result = times(e, found, tangent)
    block.add_op(last)
    return result


def _erase_unused(block: Block) -> None:
    for op in reversed(list(block.ops)):
        pure = isinstance(op, POINTWISE)
        if pure and op is not block.last_op and not any(r.first_use for r in op.results):
            op.detach()
            op.erase()
