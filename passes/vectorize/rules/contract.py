"""Contractions. What has no examples of its own is not repeated where groups allow: the other side just has more."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import integer, ints, literals_of
from isthmus.ir import LiteralValue
from isthmus.passes.vectorize.dims import folded, moved_behind, moved_to_front, unfolded
from isthmus.passes.vectorize.table import Batch, batching, looped


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


# ---- convolution: x [N, C, ..], w [O, C/g, ..], y and g [N, O, ..]


def _in_groups(batch: Batch, op: prim.ContractionOp) -> Mapping[str, LiteralValue] | None:
    """The literals with the examples as groups, or None where their number is not known, or 0."""
    literals = literals_of(op)
    if not isinstance(batch.size, int) or batch.size == 0:
        return None
    return {**literals, "groups": integer(literals["groups"]) * batch.size}


def _channels(batch: Batch, value: SSAValue) -> SSAValue:
    """[B, N, C, ..] as [N, B·C, ..]."""
    moved = moved_behind(batch.e, batch.over_all(value), 1)
    n, b, c, *rest = ir.shape_of(moved)
    return batch.e.reshape(moved, (n, b * c, *rest))


def _examples_in(batch: Batch, value: SSAValue, channels: ir.Dim) -> SSAValue:
    """[N, B·C, ..] as [B, N, C, ..]."""
    return moved_to_front(batch.e, unfolded(batch.e, value, batch.size, channels, 1), 1)


@batching(prim.ConvOp)
def _conv(batch: Batch, op: prim.ConvOp) -> SSAValue | list[SSAValue]:
    """One filter: more images. One image: more filters. Else groups."""
    e, literals = batch.e, literals_of(op)
    n, o = ir.shape_of(op.y)[:2]

    def made(x: SSAValue, w: SSAValue, literals: Mapping[str, LiteralValue]) -> SSAValue:
        return e.op(prim.ConvOp, [x, w], literals).y

    if not batch.is_mapped(op.w):
        return unfolded(e, made(folded(e, batch.over_all(op.x)), batch.shared(op.w), literals), batch.size, n)
    if not batch.is_mapped(op.x) and literals["groups"] == 1:
        return _examples_in(batch, made(batch.shared(op.x), folded(e, batch.over_all(op.w)), literals), o)
    grouped = _in_groups(batch, op)
    if grouped is None:
        return looped(batch, op, _UNKNOWN)
    return _examples_in(batch, made(_channels(batch, op.x), folded(e, batch.over_all(op.w)), grouped), o)


@batching(prim.ConvDxOp)
def _conv_dx(batch: Batch, op: prim.ConvDxOp) -> SSAValue | list[SSAValue]:
    """One filter: more images. One image: filters of more channels. Else groups."""
    e, literals, size = batch.e, literals_of(op), batch.size
    n, c, *spatial = ir.shape_of(op.dx)

    def made(g: SSAValue, w: SSAValue, literals: Mapping[str, LiteralValue], images: ir.Dim, channels: ir.Dim):
        type_ = ir.tensor((images, channels, *spatial), ir.dtype_of(op.dx))
        return e.op(prim.ConvDxOp, [g, w], literals, [type_]).dx

    if not batch.is_mapped(op.w):
        return unfolded(e, made(folded(e, batch.over_all(op.g)), batch.shared(op.w), literals, size * n, c), size, n)
    if not batch.is_mapped(op.g) and literals["groups"] == 1:
        return _examples_in(batch, made(batch.shared(op.g), _channels(batch, op.w), literals, n, size * c), c)
    grouped = _in_groups(batch, op)
    if grouped is None:
        return looped(batch, op, _UNKNOWN)
    return _examples_in(batch, made(_channels(batch, op.g), folded(e, batch.over_all(op.w)), grouped, n, size * c), c)


@batching(prim.ConvDwOp)
def _conv_dw(batch: Batch, op: prim.ConvDwOp) -> SSAValue | list[SSAValue]:
    """One image: more filters. One cotangent: filters of more channels. Else groups."""
    e, literals, size = batch.e, literals_of(op), batch.size
    o, c, *window = ir.shape_of(op.dw)

    def made(g: SSAValue, x: SSAValue, literals: Mapping[str, LiteralValue], filters: ir.Dim, channels: ir.Dim):
        type_ = ir.tensor((filters, channels, *window), ir.dtype_of(op.dw))
        return e.op(prim.ConvDwOp, [g, x], literals, [type_]).dw

    if not batch.is_mapped(op.x) and literals["groups"] == 1:
        return unfolded(e, made(_channels(batch, op.g), batch.shared(op.x), literals, size * o, c), size, o)
    if not batch.is_mapped(op.g) and literals["groups"] == 1:
        return _examples_in(batch, made(batch.shared(op.g), _channels(batch, op.x), literals, o, size * c), c)
    grouped = _in_groups(batch, op)
    if grouped is None:
        return looped(batch, op, _UNKNOWN)
    return unfolded(e, made(_channels(batch, op.g), _channels(batch, op.x), grouped, size * o, c), size, o)


_UNKNOWN = "filters of their own are groups, whose number must be known while compiling"
