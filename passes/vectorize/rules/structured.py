"""Ops kept whole: more rows, more sequences."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import PrimOp
from isthmus.dialects.prim.base import literals_of
from isthmus.passes.vectorize.dims import folded
from isthmus.passes.vectorize.table import Batch, batching


@batching(prim.CrossEntropyOp)
def _cross_entropy(batch: Batch, op: prim.CrossEntropyOp) -> list[SSAValue]:
    """More rows."""
    logits, target = batch.over_all(op.logits), batch.over_all(op.target)
    _, rows, classes = ir.shape_of(logits)
    flat = batch.e.reshape(logits, (batch.size * rows, classes)), batch.e.reshape(target, (batch.size * rows,))
    made = batch.e.op(prim.CrossEntropyOp, flat, literals_of(op)).results
    return [batch.e.reshape(v, (batch.size, rows)) for v in made]


@batching(prim.AttentionOp, prim.AttentionBwdOp)
def _attention(batch: Batch, op: PrimOp) -> list[SSAValue]:
    """More sequences; log-sums in two parts keep these in front."""
    e, sums = batch.e, op.lse if isinstance(op, (prim.AttentionOp, prim.AttentionBwdOp)) else None
    apart = sums if sums is not None and len(ir.shape_of(sums)) == 4 else None

    def joined(v: SSAValue) -> SSAValue:
        over = batch.over_all(v)
        if v is not apart:
            return folded(e, over)
        parts, *rest = ir.shape_of(v)
        return e.reshape(e.transpose(over, (1, 0, 2, 3, 4)), (parts, batch.size * rest[0], *rest[1:]))

    def cut(v: SSAValue, one: SSAValue) -> SSAValue:
        if one is not apart:
            return e.reshape(v, (batch.size, *ir.shape_of(one)))
        parts, *rest = ir.shape_of(one)
        return e.transpose(e.reshape(v, (parts, batch.size, *rest)), (1, 0, 2, 3, 4))

    made = e.op(type(op), [joined(v) for v in ir.operands_of(op)], literals_of(op)).results
    return [cut(v, one) for v, one in zip(made, op.results, strict=True)]
