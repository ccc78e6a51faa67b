"""Ops that name dims, or none: the examples are dimension 0, so what is named is one further."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import PrimOp
from isthmus.dialects.prim.base import ints, literals_of
from isthmus.ir import LiteralValue
from isthmus.passes.vectorize.table import Batch, batching


def _shifted(value: LiteralValue) -> LiteralValue:
    """Give one dim, or several, one further."""
    return value + 1 if isinstance(value, int) else tuple(d + 1 for d in ints(value))


def _made_again(batch: Batch, op: PrimOp, changes: Mapping[str, LiteralValue]) -> tuple[SSAValue, ...]:
    """The same op on all examples, with some literals changed."""
    operands = [batch.over_all(v) for v in ir.operands_of(op)]
    chosen = [ir.tensor((batch.size, *ir.shape_of(r)), ir.dtype_of(r)) for r in op.results] if op.EXPLICIT else None
    return tuple(batch.e.op(type(op), operands, {**literals_of(op), **changes}, chosen).results)


@batching(prim.ElementwiseOp)
def _elementwise(batch: Batch, op: PrimOp) -> tuple[SSAValue, ...]:
    """The same at more indices."""
    return _made_again(batch, op, {})


@batching(
    prim.ReduceOp,
    prim.ArgReduceOp,
    prim.CumulativeOp,
    prim.ReduceWindowOp,
    prim.MaxPoolOp,
    prim.SortOp,
    prim.MomentsOp,
    prim.SoftmaxOp,
    prim.LogSoftmaxOp,
    prim.SliceOp,
    prim.PadOp,
    prim.ReverseOp,
    prim.ConcatOp,
)
def _along(batch: Batch, op: PrimOp) -> tuple[SSAValue, ...]:
    """What works along named dims works along the same ones, which are one further."""
    return _made_again(batch, op, {k: _shifted(v) for k, v in literals_of(op).items() if k in ("dim", "dims")})


@batching(prim.ReshapeOp)
def _reshape(batch: Batch, op: prim.ReshapeOp) -> SSAValue:
    """Examples are the slowest dimension before and after."""
    return batch.e.reshape(batch.over_all(op.x), (batch.size, *ir.shape_of(op.y)))


@batching(prim.BroadcastOp)
def _broadcast(batch: Batch, op: prim.BroadcastOp) -> SSAValue:
    dims = (0, *(d + 1 for d in ints(op.dims.data)))
    return batch.e.broadcast(batch.over_all(op.x), (batch.size, *ir.shape_of(op.y)), dims)


@batching(prim.TransposeOp)
def _transpose(batch: Batch, op: prim.TransposeOp) -> SSAValue:
    return batch.e.transpose(batch.over_all(op.x), (0, *(d + 1 for d in ints(op.perm.data))))
