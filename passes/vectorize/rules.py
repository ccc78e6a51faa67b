"""Batching rules: the examples become dimension 0, so most rules shift the dims that an op names by one."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.dialects.prim.base import ints, literals_of
from isthmus.ir import LiteralValue
from isthmus.passes.vectorize.table import Batch, batching, one_by_one


def moved_to_front(e: Emitter, x: SSAValue, dim: int) -> SSAValue:
    """Give x with a dimension first and the others in order."""
    rank = len(ir.shape_of(x))
    return e.transpose(x, (dim, *(d for d in range(rank) if d != dim)))


def shifted(value: LiteralValue) -> LiteralValue:
    """Give one dim, or several, one further."""
    return value + 1 if isinstance(value, int) else tuple(d + 1 for d in ints(value))


def _remade(batch: Batch, op: PrimOp, changes: Mapping[str, LiteralValue]) -> tuple[SSAValue, ...]:
    """The same op on all examples, with some literals changed."""
    operands = [batch.over_all(v) for v in ir.operands_of(op)]
    chosen = [ir.tensor((batch.size, *ir.shape_of(r)), ir.dtype_of(r)) for r in op.results] if op.EXPLICIT else None
    return tuple(batch.e.op(type(op), operands, {**literals_of(op), **changes}, chosen).results)


@batching(prim.ElementwiseOp)
def _elementwise(batch: Batch, op: PrimOp) -> tuple[SSAValue, ...]:
    """The same at more indices."""
    return _remade(batch, op, {})


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
    return _remade(batch, op, {k: shifted(v) for k, v in literals_of(op).items() if k in ("dim", "dims")})


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


@batching(prim.DotOp)
def _dot(batch: Batch, op: prim.DotOp) -> SSAValue:
    """Examples are a batch dim where both operands have them, else a free dim of the one that has."""
    e = batch.e
    keys = ("batch_a", "batch_b", "contract_a", "contract_b")
    batch_a, batch_b, contract_a, contract_b = (ints(literals_of(op)[k]) for k in keys)
    one_further_a = tuple(d + 1 for d in batch_a), tuple(d + 1 for d in contract_a)
    one_further_b = tuple(d + 1 for d in batch_b), tuple(d + 1 for d in contract_b)
    if batch.is_mapped(op.a) and batch.is_mapped(op.b):
        (pa, ca), (pb, cb) = one_further_a, one_further_b
        return e.dot(batch.over_all(op.a), batch.over_all(op.b), (ca, cb), ((0, *pa), (0, *pb)))
    if batch.is_mapped(op.a):
        pa, ca = one_further_a
        made = e.dot(batch.over_all(op.a), batch.shared(op.b), (ca, contract_b), (pa, batch_b))
        return moved_to_front(e, made, len(batch_a))
    pb, cb = one_further_b
    made = e.dot(batch.shared(op.a), batch.over_all(op.b), (contract_a, cb), (batch_a, pb))
    free_a = len(ir.shape_of(op.a)) - len(batch_a) - len(contract_a)
    return moved_to_front(e, made, len(batch_a) + free_a)


def _examples_like(batch: Batch, index: SSAValue) -> SSAValue:
    """The number of its example at each element of an index over all examples."""
    return batch.e.iota(ir.shape_of(index), 0, ir.dtype_of(index))


@batching(prim.GatherOp)
def _gather(batch: Batch, op: prim.GatherOp) -> SSAValue:
    """The example is one more index; where all read one table with their own indices, the indices are just more."""
    indices = [batch.over_all(i) for i in op.indices]
    dims = ints(op.dims.data)
    if not batch.is_mapped(op.x):
        return batch.e.gather(batch.shared(op.x), indices, dims)
    dims = (0, *(d + 1 for d in dims))
    return batch.e.gather(batch.over_all(op.x), [_examples_like(batch, indices[0]), *indices], dims)


@batching(prim.ScatterOp)
def _scatter(batch: Batch, op: prim.ScatterOp) -> SSAValue:
    """The example is one more index; inside each example the order of updates stays."""
    indices = [batch.over_all(i) for i in op.indices]
    where = [_examples_like(batch, indices[0]), *indices]
    dims = (0, *(d + 1 for d in ints(op.dims.data)))
    kind = str(literals_of(op)["kind"])
    return batch.e.scatter(batch.over_all(op.x), batch.over_all(op.updates), where, dims, kind)


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
    operands = [_folded(batch.e, batch.over_all(v)) for v in ir.operands_of(op)]
    made = batch.e.op(type(op), operands, literals_of(op)).results
    return [batch.e.reshape(v, (batch.size, *ir.shape_of(r))) for v, r in zip(made, op.results, strict=True)]


def _folded(e: Emitter, x: SSAValue) -> SSAValue:
    """Give x with its first two dims as one."""
    first, second, *rest = ir.shape_of(x)
    return e.reshape(x, (first * second, *rest))


@batching(prim.ConvOp)
def _conv(batch: Batch, op: prim.ConvOp) -> SSAValue:
    """Images of all examples under one filter are more images; filters per example are more groups."""
    e, literals = batch.e, literals_of(op)
    if not batch.is_mapped(op.w):
        made = e.op(prim.ConvOp, [_folded(e, batch.over_all(op.x)), batch.shared(op.w)], literals).results[0]
        return e.reshape(made, (batch.size, *ir.shape_of(op.y)))
    size, groups = batch.size, literals["groups"]
    assert isinstance(groups, int)
    if not isinstance(size, int):
        return one_by_one(batch, op)[0]
    x = batch.over_all(op.x)  # [B, N, C, ..] -> [N, B·C, ..]
    _, n, c, *spatial = ir.shape_of(x)
    rank = len(spatial)
    x = e.reshape(e.transpose(x, (1, 0, *range(2, rank + 3))), (n, size * c, *spatial))
    made = e.op(prim.ConvOp, [x, _folded(e, batch.over_all(op.w))], {**literals, "groups": size * groups}).results[0]
    _, out, *after = ir.shape_of(op.y)
    return e.transpose(e.reshape(made, (n, size, out, *after)), (1, 0, *range(2, rank + 3)))
