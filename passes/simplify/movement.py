"""Movements of elements composed with one another: reads go to where the elements come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.shape import slice_length
from isthmus.ir import LiteralValue
from isthmus.passes.simplify.match import made_by
from isthmus.sizes import Dim

Literals = dict[str, LiteralValue]
Operands = tuple[SSAValue, ...]
Ints = tuple[int, ...]


def transpose(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """A transposed broadcast is a broadcast to other dims."""
    inner, perm = made_by(operands[0], prim.BroadcastOp), cast(Ints, literals["perm"])
    if inner is None:
        return None
    shape, dims = ir.shape_of(inner.y), cast(Ints, inner.dims.data)
    return e.broadcast(inner.x, [shape[p] for p in perm], [perm.index(d) for d in dims])


def reverse(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """Reversing twice is nothing."""
    inner = made_by(operands[0], prim.ReverseOp)
    return inner.x if inner is not None and inner.dims.data == literals["dims"] else None


def _known_order(low: Dim, high: Dim) -> bool:
    """Whether low ≤ high is certain."""
    difference = high - low
    return isinstance(difference, int) and difference >= 0


def slice_(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """A slice of a slice, concatenation, pad or broadcast is one of what that moved, where it lies within."""
    dim, stride = cast(int, literals["dim"]), cast(int, literals["stride"])
    start, limit = cast(Dim, literals["start"]), cast(Dim, literals["limit"])
    inner = operands[0].owner
    if isinstance(inner, prim.SliceOp) and inner.dim.data == dim:
        return _slice_of_slice(e, inner, start, limit, stride)
    if isinstance(inner, prim.ConcatOp) and inner.dim.data == dim:
        position: Dim = 0
        for x in ir.operands_of(inner):
            end = position + ir.shape_of(x)[dim]
            if _known_order(position, start) and _known_order(limit, end):
                return e.slice(x, dim, start - position, limit - position, stride)
            position = end
    if isinstance(inner, prim.PadOp) and inner.dim.data == dim and inner.interior.data == 0:
        low = cast(Dim, inner.low.data)
        if _known_order(low, start) and _known_order(limit, low + ir.shape_of(inner.x)[dim]):
            return e.slice(inner.x, dim, start - low, limit - low, stride)
    if isinstance(inner, prim.BroadcastOp):
        return _slice_of_broadcast(e, inner, dim, start, limit, stride)
    return None


def _slice_of_slice(e: Emitter, inner: prim.SliceOp, start: Dim, limit: Dim, stride: int) -> SSAValue | None:
    dim, offset, step = cast(int, inner.dim.data), cast(Dim, inner.start.data), cast(int, inner.stride.data)
    if step != 1 and not _known_order(start + 1, limit):
        return None  # of nothing, the last element that is read has no place
    end = offset + (limit - 1) * step + 1 if step != 1 else offset + limit
    return e.slice(inner.x, dim, offset + start * step, end, step * stride)


def _slice_of_broadcast(e: Emitter, inner: prim.BroadcastOp, dim: int, start: Dim, limit: Dim, stride: int) -> SSAValue:
    dims, shape = cast(Ints, inner.dims.data), list(ir.shape_of(inner.y))
    x = inner.x
    if dim in dims:
        x = e.slice(x, dims.index(dim), start, limit, stride)
        shape[dim] = ir.shape_of(x)[dims.index(dim)]
    else:
        shape[dim] = slice_length(start, limit, stride)
    return e.broadcast(x, shape, dims)


def pad(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """Padding twice with one value along one dimension is padding once."""
    inner = made_by(operands[0], prim.PadOp)
    if inner is None or inner.dim.data != literals["dim"]:
        return None
    same = inner.interior.data == literals["interior"] == 0 and _same_number(inner.value.data, literals["value"])
    if not same:
        return None
    low, high = (cast(Dim, literals[k]) + cast(Dim, ir.literal(inner, k)) for k in ("low", "high"))
    return e.pad(inner.x, cast(int, literals["dim"]), low, high, 0, literals["value"])


def _same_number(a: LiteralValue, b: LiteralValue) -> bool:
    return ir.Literal.of(a) is ir.Literal.of(b)


def concat(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """Neighbouring slices join; a concatenation within one is part of it; empty operands go."""
    dim = cast(int, literals["dim"])
    flat: list[SSAValue] = []
    for x in operands:
        inner = made_by(x, prim.ConcatOp)
        flat.extend(ir.operands_of(inner) if inner is not None and inner.dim.data == dim else (x,))
    filled = [x for x in flat if ir.shape_of(x)[dim] != 0] or flat[:1]
    joined: list[SSAValue] = []
    for x in filled:
        together = _joined(e, joined[-1], x, dim) if joined else None
        if together is None:
            joined.append(x)
        else:
            joined[-1] = together
    return e.concat(joined, dim) if len(joined) != len(operands) or flat != list(operands) else None


def _joined(e: Emitter, a: SSAValue, b: SSAValue, dim: int) -> SSAValue | None:
    first, second = made_by(a, prim.SliceOp), made_by(b, prim.SliceOp)
    if first is None or second is None or first.x is not second.x:
        return None
    along = first.dim.data == second.dim.data == dim and first.stride.data == second.stride.data == 1
    if not along or first.limit.data != second.start.data:
        return None
    return e.slice(first.x, dim, cast(Dim, first.start.data), cast(Dim, second.limit.data))


def add(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """Two pads with the neutral element (0 of integers, -0.0 of floats) that meet are a concatenation."""
    a, b = (made_by(v, prim.PadOp) for v in operands)
    if a is None or b is None or a.dim.data != b.dim.data:
        return None
    dim = cast(int, a.dim.data)
    if not (_is_neutral(a) and _is_neutral(b)):
        return None
    for first, second in ((a, b), (b, a)):
        length = cast(Dim, first.low.data) + ir.shape_of(first.x)[dim]
        rest = length - cast(Dim, second.low.data)
        if rest == 0:
            joined = e.concat([first.x, second.x], dim)
            neutral = first.value.data
            return e.pad(joined, dim, cast(Dim, first.low.data), cast(Dim, second.high.data), 0, neutral)
    return None


def _counts(index: SSAValue, dims: LiteralValue) -> bool:
    """Whether the only index is 0, 1, 2, ... along one dimension."""
    iota = made_by(index, prim.IotaOp)
    return iota is not None and len(cast(Ints, dims)) == len(ir.shape_of(iota.y)) == 1


def gather(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """Elements 0, 1, 2, ... are the first ones, in order."""
    x, *indices = operands
    if len(indices) != 1 or not _counts(indices[0], literals["dims"]):
        return None
    (dim,), (count,), shape = cast(Ints, literals["dims"]), ir.shape_of(indices[0]), ir.shape_of(x)
    if not _known_order(count, shape[dim]):
        return None
    part = x if count == shape[dim] else e.slice(x, dim, 0, count)
    return e.transpose(part, (dim, *(d for d in range(len(shape)) if d != dim)))


def scatter(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """What is set, or added, at every place once is set, or added, as a whole."""
    x, updates, *indices = operands
    if ir.numel(updates) == 0:
        return x
    if len(indices) != 1 or not _counts(indices[0], literals["dims"]) or literals["kind"] not in ("add", "set"):
        return None
    (dim,), shape = cast(Ints, literals["dims"]), ir.shape_of(x)
    if ir.shape_of(indices[0]) != (shape[dim],) or ir.dtype_of(x) == "i1":
        return None
    whole = e.transpose(updates, (*range(1, dim + 1), 0, *range(dim + 1, len(shape))))
    return whole if literals["kind"] == "set" else e.add(x, whole)


def _is_neutral(op: prim.PadOp) -> bool:
    value = op.value.data
    if op.interior.data != 0 or value != 0 or isinstance(value, complex):
        return False
    return not isinstance(value, float) or math.copysign(1, value) < 0


def below_broadcasts(
    e: Emitter, operands: Sequence[SSAValue], make: Callable[[list[SSAValue]], SSAValue]
) -> SSAValue | None:
    """f(broadcast a, broadcast b, constant) = broadcast f(a, b, constant): once per element of a, not of the result.

    `make` gives f of smaller operands.
    """
    broadcasts: list[prim.BroadcastOp] = []
    for v in operands:
        broadcast = made_by(v, prim.BroadcastOp)
        if broadcast is not None:
            broadcasts.append(broadcast)
        elif made_by(v, prim.ConstOp) is None:
            return None
    if not broadcasts:
        return None
    first = broadcasts[0]
    shape = ir.shape_of(first.x)
    if any(b.dims is not first.dims or ir.shape_of(b.x) != shape for b in broadcasts):
        return None
    found = iter(broadcasts)
    inner = [
        e.const(e.constant_of(v), shape, ir.dtype_of(v)) if made_by(v, prim.ConstOp) else next(found).x
        for v in operands
    ]
    return e.broadcast(make(inner), ir.shape_of(first.y), cast(Ints, first.dims.data))


REWRITES = (
    (prim.TransposeOp, transpose),
    (prim.ReverseOp, reverse),
    (prim.SliceOp, slice_),
    (prim.PadOp, pad),
    (prim.ConcatOp, concat),
    (prim.GatherOp, gather),
    (prim.ScatterOp, scatter),
    (prim.AddOp, add),
)
