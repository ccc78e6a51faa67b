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
    """More sequences."""
    operands = [folded(batch.e, batch.over_all(v)) for v in ir.operands_of(op)]
    made = batch.e.op(type(op), operands, literals_of(op)).results
    return [batch.e.reshape(v, (batch.size, *ir.shape_of(r))) for v, r in zip(made, op.results, strict=True)]
