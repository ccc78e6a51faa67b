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
from isthmus.passes.decompose.promotion import like
from isthmus.passes.decompose.rules.reductions import take_along
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


def wrap_negative(e: Emitter, index: SSAValue, size: Dim) -> SSAValue:
    """Positions counted from the end where negative."""
    if isinstance(index.owner, prim.IotaOp):
        return index
    return e.select(e.cmp("lt", index, e.zeros_like(index)), e.add(index, like(e, size, index)), index)


def integers(e: Emitter, index: SSAValue) -> SSAValue:
    """Positions as i64 or i32."""
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
    added = e.or_(x, spread) if ir.dtype_of(x) == "i1" else e.add(x, spread)
    return e.select(chosen, added if accumulate else spread, x)


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
    if ir.numel(index) == 0:  # of no element, but of x: autograd asks whose result it is
        return e.reshape(e.slice(e.reshape(x, (ir.numel(x),)), 0, 0, 0), call.shape())
    y, places = at_least_1d(e, x), at_least_1d(e, integers(e, index))
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
    places = at_least_1d(e, integers(e, index))
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
    places = at_least_1d(e, integers(e, index))
    shape = ir.shape_of(y)
    part = e.reshape(source, (*shape[:at], ir.shape_of(places)[0], *shape[at + 1 :]))
    updates = move(e, e.convert(part, ir.dtype_of(x)), at, 0)
    return e.reshape(put(e, y, updates, (places,), (at,), kind), ir.shape_of(x))


@decomposition("index_add.default")
def index_add(
    e: Emitter, call: Call, x: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Scalar
) -> SSAValue:
    """x with x[index] += alpha·source along dim"""
    if ir.dtype_of(source) == "i1":
        scaled = e.and_(source, like(e, alpha, source))
    else:
        scaled = e.mul(source, like(e, alpha, source))
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
    places = wrap_negative(e, at_least_1d(e, integers(e, index)), shape[at])
    none, all_ = e.const(False, (shape[at],), "i1"), e.const(True, ir.shape_of(places), "i1")
    mask = e.broadcast(e.scatter(none, all_, (places,), (0,), "set"), shape, (at,))
    return e.reshape(e.select(mask, e.full(value, shape, ir.dtype_of(x)), y), call.shape())
