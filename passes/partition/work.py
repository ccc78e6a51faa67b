"""What computing an op again costs: arithmetic in additions, and time as bytes that could be moved meanwhile."""

from __future__ import annotations

import math

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.recompute import is_pointwise


def operations(joint: Joint, op: Operation) -> int:
    """Give the arithmetic of one op in additions: elements times the class's price; a multiply-add counts as two."""

    def elements(value: SSAValue) -> int:
        return joint.number(ir.numel(value))

    if isinstance(op, prim.DotOp):
        shape = ir.shape_of(op.a)
        return 2 * elements(op.y) * math.prod(joint.number(shape[d]) for d in ints(op.contract_a.data))
    if isinstance(op, (prim.ConvOp, prim.ConvDxOp, prim.ConvDwOp)):
        # y [N, O, ...] and w [O, ...], whichever of the three is given: every element of y sums |w| / O products.
        y, w = (op.y, op.w) if isinstance(op, prim.ConvOp) else (op.g, op.w if isinstance(op, prim.ConvDxOp) else op.dw)
        return 2 * elements(y) * elements(w) // max(1, joint.number(ir.shape_of(w)[0]))
    if isinstance(op, (prim.AttentionOp, prim.AttentionBwdOp)):
        return int(
            elements(op.q) * joint.number(ir.shape_of(op.k)[2]) * (4 if isinstance(op, prim.AttentionOp) else 10)
        )
    total = sum(map(elements, op.results))
    return int(total * joint.prices.additions(op))


def time(joint: Joint, op: Operation) -> int:
    """Give the time of one op inside fused kernels, in bytes moved: the larger of arithmetic and traffic.

    A pointwise op moves nothing of its own: its kernel reads the inputs anyway and its result stays in registers.
    """
    arithmetic = int(operations(joint, op) / joint.prices.additions_per_byte)
    if is_pointwise(op):
        return arithmetic
    return max(arithmetic, sum(map(joint.nbytes, (*ir.operands_of(op), *op.results))))
