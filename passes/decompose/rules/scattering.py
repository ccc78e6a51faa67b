"""Writes with an index for every element, and combinations of what meets at one place."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import at_least_1d, axis, move
from isthmus.passes.decompose.promotion import like
from isthmus.passes.decompose.rules.indexing import integers, put
from isthmus.passes.decompose.table import Call, Scalar, decomposition

_COMBINERS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
_IDENTITIES = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}


def _reduced_into(
    e: Emitter,
    x: SSAValue,
    updates: SSAValue,
    indices: Sequence[SSAValue],
    dims: Sequence[int],
    how: str,
    include_self: bool,
) -> SSAValue:
    """x combined with updates; without `include_self` what x holds at those positions does not count."""
    kind = "add" if how == "mean" else _COMBINERS[how]
    base = x
    if not include_self:
        base = e.scatter(x, _identity(e, updates, kind), indices, dims, "set")
    y = put(e, base, updates, indices, dims, kind)
    if how != "mean":
        return y
    ones = e.const_like(1, updates)
    start = e.const_like(1 if include_self else 0, x)
    total = e.max(e.scatter(start, ones, indices, dims, "add"), e.const_like(1, x))
    return e.div(y, total) if ir.is_float(ir.dtype_of(x)) else _floor_div(e, y, total)


def _identity(e: Emitter, x: SSAValue, kind: str) -> SSAValue:
    dtype = ir.dtype_of(x)
    if ir.is_float(dtype):
        return e.const_like(_IDENTITIES[kind], x)
    if kind in ("add", "mul"):
        return e.const_like(int(_IDENTITIES[kind]), x)
    if dtype in ("i1", "u8"):
        return e.const_like({"max": 0, "min": 1 if dtype == "i1" else 255}[kind], x)
    bits = ir.itemsize(dtype) * 8
    return e.const_like(-(2 ** (bits - 1)) if kind == "max" else 2 ** (bits - 1) - 1, x)


def _floor_div(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """⌊a / b⌋ for positive b"""
    rest = e.cmp("lt", e.rem(a, b), e.zeros_like(a))
    return e.sub(e.div(a, b), e.convert(rest, ir.dtype_of(a)))


@decomposition("index_reduce.default")
def index_reduce(
    e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: SSAValue, how: str, include_self: bool
) -> SSAValue:
    y, at = at_least_1d(e, x), axis(x, dim)
    places = at_least_1d(e, integers(e, index))
    shape = ir.shape_of(y)
    part = e.reshape(source, (*shape[:at], ir.shape_of(places)[0], *shape[at + 1 :]))
    return e.reshape(_reduced_into(e, y, move(e, part, at, 0), (places,), (at,), how, include_self), call.shape())


# ---- scatter: an index for every element


def _element_places(
    e: Emitter, x: SSAValue, dim: int, index: SSAValue
) -> tuple[SSAValue, list[SSAValue], tuple[int, ...], SSAValue]:
    """x and the index with at least one dimension, and for each dimension the position of every update."""
    y, places = at_least_1d(e, x), at_least_1d(e, integers(e, index))
    at, shape = axis(y, dim), ir.shape_of(places)
    indices = [places if d == at else e.iota(shape, d, ir.dtype_of(places)) for d in range(len(shape))]
    return y, indices, tuple(range(len(shape))), places


def _updates(e: Emitter, call: Call, source: SSAValue, places: SSAValue) -> SSAValue:
    """The part of the source that the index has positions for."""
    y = e.convert(at_least_1d(e, source), call.dtype())
    for d, size in enumerate(ir.shape_of(places)):
        if ir.shape_of(y)[d] != size:
            y = e.slice(y, d, 0, size)
    return y


@decomposition("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def scatter(
    e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: Scalar, reduce: str | None = None
) -> SSAValue:
    """x with x[index[i, j], j] = source[i, j] for dim 0, or += or *="""
    if ir.numel(index) == 0:
        return x
    y, indices, dims, places = _element_places(e, x, dim, index)
    if isinstance(source, SSAValue) and (ir.shape_of(source) or not ir.shape_of(index)):
        updates = _updates(e, call, source, places)
    else:
        updates = e.full(source, ir.shape_of(places), call.dtype())
    kind = "set" if reduce is None else _COMBINERS[reduce]
    return e.reshape(put(e, y, updates, indices, dims, kind), call.shape())


@decomposition("scatter_add.default")
def scatter_add(e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: SSAValue) -> SSAValue:
    return scatter(e, call, x, dim, index, source, "add")


@decomposition("scatter_reduce.two")
def scatter_reduce(
    e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: SSAValue, how: str, include_self: bool
) -> SSAValue:
    if ir.numel(index) == 0:
        return x
    y, indices, dims, places = _element_places(e, x, dim, index)
    updates = _updates(e, call, source, places)
    return e.reshape(_reduced_into(e, y, updates, indices, dims, how, include_self), call.shape())


@decomposition("masked_scatter.default")
def masked_scatter(e: Emitter, call: Call, x: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    """Where the mask holds, the source's elements one after the other"""
    shape = call.shape()
    chosen = e.broadcast_to(mask, shape)
    n = ir.numel(source)
    if n == 0 or ir.numel(chosen) == 0:
        return e.broadcast_to(x, shape)
    flat = e.reshape(e.convert(chosen, "i64"), (ir.numel(chosen),))
    rank = e.shifted(e.cumulative("add", flat, 0), -1)
    held = e.min(e.max(rank, e.zeros_like(rank)), like(e, n - 1, rank))
    values = e.gather(e.reshape(source, (n,)), (held,), (0,))
    return e.select(chosen, e.reshape(values, shape), e.broadcast_to(x, shape))
