"""Reads and writes at positions that are data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Shape
from isthmus.passes.decompose.dims import at_least_1d, axis, move
from isthmus.passes.decompose.promotion import like, wide
from isthmus.passes.decompose.rules.reductions import take_along
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


def wrap_negative(e: Emitter, index: SSAValue, size: Dim) -> SSAValue:
    """Positions counted from the end where negative."""
    if isinstance(index.owner, prim.IotaOp):
        return index
    return e.select(e.cmp("lt", index, e.zeros_like(index)), e.add(index, like(e, size, index)), index)


def _integers(e: Emitter, index: SSAValue) -> SSAValue:
    return index if ir.dtype_of(index) in ("i32", "i64") else e.convert(index, "i64")


# ---- advanced indexing


@dataclass(frozen=True)
class Places:
    """What `x[i, :, j]` selects: index values of one shape, the dimensions they index, where theirs come in x[...]."""

    indices: tuple[SSAValue, ...]
    dims: tuple[int, ...]
    shape: Shape
    at: int

    def to_result(self, e: Emitter, gathered: SSAValue) -> SSAValue:
        """From [index shape, rest] to the order of the result."""
        n, rank = len(self.shape), len(ir.shape_of(gathered))
        rest = list(range(n, rank))
        return e.transpose(gathered, (*rest[: self.at], *range(n), *rest[self.at :]))

    def from_result(self, e: Emitter, values: SSAValue) -> SSAValue:
        """From the order of the result to [index shape, rest]."""
        n, rank = len(self.shape), len(ir.shape_of(values))
        lead = range(self.at, self.at + n)
        return e.transpose(values, (*lead, *(d for d in range(rank) if d not in lead)))


def places_of(e: Emitter, x: SSAValue, indices: Sequence[SSAValue | None]) -> Places:
    """Read a list of indices; Refusal where a mask makes the number of positions depend on data."""
    shape = ir.shape_of(x)
    found = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(ir.dtype_of(i) in ("i1", "u8") for _, i in found):
        raise Refusal("the size of a masked selection depends on data")
    together: Shape = ()
    for _, index in found:
        together = _broadcast_shapes(together, ir.shape_of(index))
    dims = tuple(d for d, _ in found)
    dtype = "i64" if any(ir.dtype_of(i) != "i32" for _, i in found) else "i32"
    values = tuple(
        wrap_negative(e, e.convert(e.broadcast_to(_as_index(e, i, dtype), together), dtype), shape[d]) for d, i in found
    )
    adjacent = dims == tuple(range(dims[0], dims[0] + len(dims)))
    return Places(values, dims, together, dims[0] if adjacent else 0)


def _as_index(e: Emitter, index: SSAValue, dtype: str) -> SSAValue:
    return index if isinstance(index.owner, prim.IotaOp) else e.convert(index, dtype)


def _broadcast_shapes(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(r if s == 1 else s for s, r in zip(left, right, strict=True))


INDEX = ("index.Tensor", "_unsafe_index.Tensor")


@decomposition(*INDEX)
def index(e: Emitter, call: Call, x: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    """x[i, :, j]"""
    places = places_of(e, x, indices)
    return places.to_result(e, e.gather(x, places.indices, places.dims))


@decomposition("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(
    e: Emitter,
    call: Call,
    x: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue,
    accumulate: bool,
    unsafe: bool = False,
) -> SSAValue:
    """x with x[i, :, j] = values, or += values"""
    given = [i for i in indices if i is not None]
    if len(given) == 1 and ir.dtype_of(given[0]) == "i1":
        return _masked_put(e, x, indices, values, accumulate)
    places = places_of(e, x, indices)
    rest = [s for d, s in enumerate(ir.shape_of(x)) if d not in places.dims]
    result = (*rest[: places.at], *places.shape, *rest[places.at :])
    updates = places.from_result(e, e.broadcast_to(_fitted(e, e.convert(values, call.dtype()), result), result))
    return put(e, x, updates, places.indices, places.dims, "add" if accumulate else "set")


def _fitted(e: Emitter, values: SSAValue, shape: Sequence[Dim]) -> SSAValue:
    """Drop leading dimensions of 1 beyond the rank of the target."""
    extra = len(ir.shape_of(values)) - len(shape)
    return e.reshape(values, ir.shape_of(values)[extra:]) if extra > 0 else values


def put(
    e: Emitter, x: SSAValue, updates: SSAValue, indices: Sequence[SSAValue], dims: Sequence[int], kind: str
) -> SSAValue:
    """Scatter; on booleans `add` is `or`, which is `max`."""
    if ir.dtype_of(x) == "i1":
        kind = {"add": "max", "mul": "min"}.get(kind, kind)
    return e.scatter(x, updates, indices, dims, kind)


def _masked_put(
    e: Emitter, x: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue, accumulate: bool
) -> SSAValue:
    """One number (or one slice) for all positions of a mask is a choice."""
    lead = next(d for d, i in enumerate(indices) if i is not None)
    mask = indices[lead]
    assert mask is not None
    rank, shape, own = len(ir.shape_of(mask)), ir.shape_of(x), ir.shape_of(values)
    front = len(own) - (len(shape) - lead - rank)  # dimensions of the values up to the one that runs over positions
    if front > 0 and own[front - 1] != 1:
        raise Refusal("which value goes where depends on data")
    aligned = (*own[: front - 1], *(1,) * rank, *own[front:]) if front > 0 else own
    spread = e.broadcast_to(e.convert(e.reshape(values, aligned), ir.dtype_of(x)), shape)
    chosen = e.broadcast(mask, shape, range(lead, lead + rank))
    return e.select(chosen, e.add(x, spread) if accumulate else spread, x)


@decomposition("_unsafe_masked_index.default")
def masked_index(
    e: Emitter, call: Call, x: SSAValue, mask: SSAValue, indices: Sequence[SSAValue | None], fill: Scalar
) -> SSAValue:
    """mask ? x[indices held in range] : fill"""
    y = index(e, call, x, _held(e, x, indices))
    return e.select(e.broadcast_to(mask, call.shape()), y, like(e, fill, y))


@decomposition("_unsafe_masked_index_put_accumulate.default")
def masked_index_put(
    e: Emitter, call: Call, x: SSAValue, mask: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue
) -> SSAValue:
    """x with x[indices] += mask ? values : 0"""
    wanted = e.select(e.broadcast_to(mask, ir.shape_of(values)), values, e.zeros_like(values))
    return index_put(e, call, x, _held(e, x, indices), wanted, True)


def _held(e: Emitter, x: SSAValue, indices: Sequence[SSAValue | None]) -> list[SSAValue | None]:
    held: list[SSAValue | None] = []
    for d, i in enumerate(indices):
        size = ir.shape_of(x)[d]
        held.append(None if i is None else e.max(e.min(i, like(e, size - 1, i)), like(e, -size, i)))
    return held


# ---- one dimension


@decomposition("gather.default")
def gather(e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, sparse_grad: bool) -> SSAValue:
    """y[i, j] = x[index[i, j], j] for dim 0"""
    if ir.numel(index) == 0:
        return e.const(0, call.shape(), call.dtype())
    y, places = at_least_1d(e, x), at_least_1d(e, _integers(e, index))
    return e.reshape(take_along(e, y, places, axis(y, dim)), call.shape())


@decomposition("take_along_dim.default")
def take_along_dim(e: Emitter, call: Call, x: SSAValue, index: SSAValue, dim: int | None) -> SSAValue:
    """`gather` after broadcasting both; negative positions count from the end"""
    if dim is None:
        flat, places = e.reshape(x, (ir.numel(x),)), e.reshape(index, (ir.numel(index),))
        return take_along(e, flat, wrap_negative(e, places, ir.numel(x)), 0)
    at, shape = axis(x, dim), call.shape()
    y = e.broadcast_to(x, (*shape[:at], ir.shape_of(x)[at], *shape[at + 1 :]))
    places = e.broadcast_to(index, shape)
    return take_along(e, y, wrap_negative(e, places, ir.shape_of(x)[at]), at)


@decomposition("index_select.default")
def index_select(e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    y, at = at_least_1d(e, x), axis(x, dim)
    places = at_least_1d(e, _integers(e, index))
    return e.reshape(move(e, e.gather(y, (places,), (at,)), 0, at), call.shape())


@decomposition("take.default")
def take(e: Emitter, call: Call, x: SSAValue, index: SSAValue) -> SSAValue:
    """Elements of the flat x"""
    if ir.numel(index) == 0:
        return e.const(0, call.shape(), call.dtype())
    flat = e.reshape(x, (ir.numel(x),))
    return e.gather(flat, (wrap_negative(e, index, ir.numel(x)),), (0,))


@decomposition("put.default")
def put_flat(e: Emitter, call: Call, x: SSAValue, index: SSAValue, source: SSAValue, accumulate: bool) -> SSAValue:
    """Elements of the flat x replaced or added to"""
    n = ir.numel(index)
    places = wrap_negative(e, e.reshape(index, (n,)), ir.numel(x))
    flat = put(
        e,
        e.reshape(x, (ir.numel(x),)),
        e.reshape(source, (n,)),
        (places,),
        (0,),
        "add" if accumulate else "set",
    )
    return e.reshape(flat, call.shape())


def _rows(e: Emitter, x: SSAValue, dim: int, index: SSAValue, source: SSAValue, kind: str) -> SSAValue:
    """x with slices along dim combined with those of the source, one for each index."""
    y, at = at_least_1d(e, x), axis(x, dim)
    places = at_least_1d(e, _integers(e, index))
    shape = ir.shape_of(y)
    part = e.reshape(source, (*shape[:at], ir.shape_of(places)[0], *shape[at + 1 :]))
    updates = move(e, e.convert(part, ir.dtype_of(x)), at, 0)
    return e.reshape(put(e, y, updates, (places,), (at,), kind), ir.shape_of(x))


@decomposition("index_add.default")
def index_add(
    e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Scalar
) -> SSAValue:
    """x with x[index] += alpha·source along dim"""
    scaled = source if alpha == 1 else e.mul(source, like(e, alpha, source))
    return _rows(e, x, dim, index, scaled, "add")


@decomposition("index_copy.default")
def index_copy(e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: SSAValue) -> SSAValue:
    """x with x[index] = source along dim"""
    return _rows(e, x, dim, index, source, "set")


@decomposition("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, value: Scalar) -> SSAValue:
    """x with x[index] = value along dim, a choice by the mask of positions; negative ones count from the end"""
    y, at = at_least_1d(e, x), axis(x, dim)
    shape = ir.shape_of(y)
    places = wrap_negative(e, at_least_1d(e, _integers(e, index)), shape[at])
    none, all_ = e.const(False, (shape[at],), "i1"), e.const(True, ir.shape_of(places), "i1")
    mask = e.broadcast(e.scatter(none, all_, (places,), (0,), "set"), shape, (at,))
    return e.reshape(e.select(mask, e.full(value, shape, ir.dtype_of(x)), y), call.shape())


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
    places = at_least_1d(e, _integers(e, index))
    shape = ir.shape_of(y)
    part = e.reshape(source, (*shape[:at], ir.shape_of(places)[0], *shape[at + 1 :]))
    return e.reshape(_reduced_into(e, y, move(e, part, at, 0), (places,), (at,), how, include_self), call.shape())


# ---- scatter: an index for every element


def _element_places(
    e: Emitter, x: SSAValue, dim: int, index: SSAValue
) -> tuple[SSAValue, list[SSAValue], tuple[int, ...], SSAValue]:
    """x and the index with at least one dimension, and for each dimension the position of every update."""
    y, places = at_least_1d(e, x), at_least_1d(e, _integers(e, index))
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


# ---- embeddings


@decomposition("embedding.default")
def embedding(
    e: Emitter, call: Call, weight: SSAValue, indices: SSAValue, padding: Dim, scale_by_freq: bool, sparse: bool
) -> SSAValue:
    """Rows of the table; the row of `padding` gets no derivative"""
    if scale_by_freq or sparse:
        raise Refusal("scaled or sparse gradients of an embedding are the library's")
    y = e.gather(weight, (_integers(e, indices),), (0,))
    if padding == -1:
        return y
    places = _integers(e, indices)
    padded = e.broadcast(e.cmp("eq", places, like(e, padding, places)), call.shape(), range(len(ir.shape_of(indices))))
    return e.select(padded, e.stop_gradient(y), y)


@decomposition("one_hot.default")
def one_hot(e: Emitter, call: Call, x: SSAValue, classes: Dim) -> SSAValue:
    """y[..., c] = x = c"""
    shape = call.shape()
    rank = len(shape) - 1
    return e.convert(e.cmp("eq", e.broadcast(x, shape, range(rank)), e.iota(shape, rank)), "i64")


@decomposition("embedding_renorm.default")
def embedding_renorm(
    e: Emitter, call: Call, weight: SSAValue, indices: SSAValue, max_norm: Scalar, order: Scalar
) -> SSAValue:
    raise Refusal("renormalizing an embedding in place is the library's")


@decomposition("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    e: Emitter,
    call: Call,
    ordered: SSAValue,
    x: Scalar,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: SSAValue | None,
) -> SSAValue:
    """The number of elements of the row that are less than x (right: not greater)"""
    if not isinstance(x, SSAValue):
        x = e.full(x, (), ir.dtype_of(ordered))
    if sorter is not None:
        ordered = take_along(e, ordered, sorter, len(ir.shape_of(ordered)) - 1)
    values = wide(e, x)
    row = e.convert(ordered, ir.dtype_of(values))
    lead = len(ir.shape_of(row)) - 1
    if lead > 0 and not ir.shape_of(values):
        raise Refusal("a number searched in many rows is left to the library")
    shape = (*ir.shape_of(values), ir.shape_of(row)[-1])
    last = len(shape) - 1
    table = e.broadcast(row, shape, (last,)) if lead == 0 else e.broadcast(row, shape, (*range(lead), last))
    wanted = e.broadcast(values, shape, range(last))
    goes_right = right or side == "right"
    before = e.not_(e.cmp("gt" if goes_right else "ge", table, wanted))  # NaN is greater than every number
    return e.convert(e.sum(e.convert(before, "i64"), (last,)), call.dtype())


@decomposition("bucketize.Tensor", "bucketize.Scalar")
def bucketize(e: Emitter, call: Call, x: Scalar, boundaries: SSAValue, out_int32: bool, right: bool) -> SSAValue:
    return searchsorted(e, call, boundaries, x, out_int32, right, None, None)
