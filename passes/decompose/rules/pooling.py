"""Pooling over windows; the windows of ceil_mode may reach beyond the padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import count
from isthmus.passes.decompose.promotion import wide
from isthmus.passes.decompose.rules.reductions import take_along
from isthmus.passes.decompose.table import Call, Refusal, decomposition
from isthmus.sizes import Dim, exact_quotient


@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions of x, one entry a dimension."""

    dims: tuple[int, ...]
    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    high: tuple[int, ...]
    """Padding after the last element: more than `padding` where a window of ceil_mode reaches further."""
    dilations: tuple[int, ...]


def _numbers(values: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    listed = (values,) if isinstance(values, int) else tuple(values)
    return listed * rank if len(listed) == 1 else listed


def windows(
    call: Call,
    x: SSAValue,
    rank: int,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | int,
    dilation: Sequence[int] | int,
    ceil_mode: bool,
) -> Windows:
    """Read torch's arguments; the result's shape says how many windows there are."""
    lead = len(ir.shape_of(x)) - rank
    sizes = _numbers(size, rank)
    strides = _numbers(stride, rank) if stride else sizes
    pads, dilations = _numbers(padding, rank), _numbers(dilation, rank)
    high: list[int] = []
    for k in range(rank):
        if not ceil_mode:
            high.append(pads[k])
            continue
        n, out = ir.shape_of(x)[lead + k], call.shape()[lead + k]
        reach = (out - 1) * strides[k] + dilations[k] * (sizes[k] - 1) + 1 - n - pads[k]
        if not isinstance(reach, int):
            raise Refusal("ceil_mode with symbolic sizes is left to the library")
        high.append(max(reach, 0))
    return Windows(tuple(range(lead, lead + rank)), sizes, strides, pads, tuple(high), dilations)


# ---- averages


def _positions_in_window(e: Emitter, call: Call, x: SSAValue, w: Windows, k: int, padded: bool) -> SSAValue:
    """Along one dimension, how many positions of each window are in x (or in x and its padding)"""
    d = w.dims[k]
    n, out = ir.shape_of(x)[d], call.shape()[d]
    start = e.shifted(e.scaled(e.iota((out,), 0), w.strides[k]), -w.padding[k])
    end = e.shifted(start, w.size[k])
    first = e.const_like(-w.padding[k] if padded else 0, start)
    last = e.full(n + w.padding[k] if padded else n, (out,), "i64")
    return e.sub(e.min(end, last), e.max(start, first))


def _average(e: Emitter, call: Call, x: SSAValue, w: Windows, include_pad: bool, divisor: int | None) -> SSAValue:
    """Σ / number of elements in the window"""
    y = wide(e, x)
    total = e.reduce_window("add", y, w.dims, w.size, w.strides, w.padding, w.high, w.dilations)
    shape, dtype = ir.shape_of(total), ir.dtype_of(total)
    whole = all(h <= p for h, p in zip(w.high, w.padding, strict=True))
    plain = not any(w.padding) or include_pad
    if divisor is not None or (plain and whole):
        n = divisor if divisor is not None else count(e.const(0, w.size), range(len(w.size)))
        return e.convert(e.div(total, e.full(n, shape, dtype)), ir.dtype_of(x))
    number = e.const(1, shape, "i64")
    for k, d in enumerate(w.dims):
        along = _positions_in_window(e, call, x, w, k, include_pad)
        number = e.mul(number, e.broadcast(along, shape, (d,)))
    return e.convert(e.div(total, e.convert(number, dtype)), ir.dtype_of(x))


@decomposition("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    e: Emitter,
    call: Call,
    x: SSAValue,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    include_pad: bool,
    divisor: int | None = None,
) -> SSAValue:
    w = windows(call, x, _rank(call), size, stride, padding, 1, ceil_mode)
    return _average(e, call, x, w, include_pad, divisor)


def _rank(call: Call) -> int:
    """The number in the operator's name: max_pool2d has 2 dimensions."""
    return int(next(c for c in call.overload if c.isdigit()))


ADAPTIVE = (
    *(f"adaptive_avg_pool{k}d.default" for k in (1, 2, 3)),
    *(f"_adaptive_avg_pool{k}d.default" for k in (2, 3)),
)


@decomposition(*ADAPTIVE)
def adaptive_avg_pool(e: Emitter, call: Call, x: SSAValue, size: Sequence[Dim]) -> SSAValue:
    """Window i covers [⌊i·n/m⌋, ⌈(i + 1)·n/m⌉): equal windows are a reshape, others a product with a matrix"""
    rank = _rank(call)
    lead = len(ir.shape_of(x)) - rank
    y = wide(e, x)
    for d in range(lead, lead + rank):
        y = _averaged_along(e, y, d, call.shape()[d])
    return e.convert(y, ir.dtype_of(x))


def _averaged_along(e: Emitter, x: SSAValue, dim: int, out: Dim) -> SSAValue:
    shape = ir.shape_of(x)
    n = shape[dim]
    if n == out:
        return x
    window = exact_quotient(n, out)
    if window is not None:
        tiles = e.reshape(x, (*shape[:dim], out, window, *shape[dim + 1 :]))
        total = e.sum(tiles, (dim + 1,))
        return e.div(total, e.full(window, ir.shape_of(total), ir.dtype_of(x)))
    weights = _window_weights(e, out, n, ir.dtype_of(x))
    summed = e.dot(x, weights, ((dim,), (1,)))  # the new dimension comes last
    rank = len(shape)
    return e.transpose(summed, (*range(dim), rank - 1, *range(dim, rank - 1)))


def _window_weights(e: Emitter, out: Dim, n: Dim, dtype: str) -> SSAValue:
    """w[i, j] = 1 / length of window i where it covers j"""
    shape = (out, n)
    i, j = e.iota(shape, 0), e.iota(shape, 1)
    size, parts = e.full(n, shape, "i64"), e.full(out, shape, "i64")
    start = e.div(e.mul(i, size), parts)
    end = e.div(e.shifted(e.add(e.mul(e.shifted(i, 1), size), parts), -1), parts)
    inside = e.and_(e.cmp("ge", j, start), e.cmp("lt", j, end))
    length = e.convert(e.sub(end, start), dtype)
    return e.select(inside, e.reciprocal(length), e.const(0, shape, dtype))


# ---- maxima

MAX_POOLS = tuple(f"max_pool{k}d.default" for k in (1, 2, 3))
MAX_POOLS_WITH_INDICES = tuple(f"max_pool{k}d_with_indices.default" for k in (1, 2, 3))


@decomposition(*MAX_POOLS_WITH_INDICES)
def max_pool_with_indices(
    e: Emitter,
    call: Call,
    x: SSAValue,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[SSAValue, SSAValue]:
    w = windows(call, x, _rank(call), size, stride, padding, dilation, ceil_mode)
    return e.max_pool(x, w.dims, w.size, w.strides, w.padding, w.high, w.dilations)


@decomposition(*MAX_POOLS)
def max_pool(
    e: Emitter,
    call: Call,
    x: SSAValue,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> SSAValue:
    return max_pool_with_indices(e, call, x, size, stride, padding, dilation, ceil_mode)[0]


@decomposition(*(f"adaptive_max_pool{k}d.default" for k in (1, 2, 3)))
def adaptive_max_pool(e: Emitter, call: Call, x: SSAValue, size: Sequence[int]) -> tuple[SSAValue, SSAValue]:
    """Equal windows are a plain pooling, others are gathered"""
    rank = _rank(call)
    lead = len(ir.shape_of(x)) - rank
    dims = range(lead, lead + rank)
    quotients = [exact_quotient(ir.shape_of(x)[d], call.shape()[d]) for d in dims]
    if all(isinstance(q, int) and q > 0 for q in quotients):
        window = tuple(q for q in quotients if isinstance(q, int))
        none, one = (0,) * rank, (1,) * rank
        return e.max_pool(x, dims, window, window, none, none, one)
    return _gathered_maxima(e, call, x, lead, rank)


def _gathered_maxima(e: Emitter, call: Call, x: SSAValue, lead: int, rank: int) -> tuple[SSAValue, SSAValue]:
    """[outputs, places of the window, planes]: the first largest place of each window, and what stands there"""
    sizes, outputs = ir.shape_of(x)[lead:], call.shape()[lead:]
    widths = [_widest(n, m) for n, m in zip(sizes, outputs, strict=True)]
    table = (*outputs, *widths)
    flat = e.const(0, table, "i64")
    for d, (n, m) in enumerate(zip(sizes, outputs, strict=True)):
        i, k = e.iota(table, d), e.iota(table, rank + d)
        size, parts = e.full(n, table, "i64"), e.full(m, table, "i64")
        start = e.div(e.mul(i, size), parts)
        end = e.div(e.shifted(e.add(e.mul(e.shifted(i, 1), size), parts), -1), parts)
        place = e.min(e.add(start, k), e.shifted(end, -1))
        flat = e.add(e.mul(flat, e.full(n, table, "i64")), place)
    places = e.reshape(flat, (*outputs, count(flat, range(rank, 2 * rank))))
    planes = e.transpose(_flat_planes(e, x, rank), (1, 0))
    windows_ = e.gather(e.stop_gradient(planes), (places,), (0,))  # [outputs, places, planes]
    best = e.arg_reduce("max", windows_, rank)
    spread = e.broadcast(places, ir.shape_of(windows_), range(rank + 1))
    index = e.reshape(take_along(e, spread, e.expand_dims(best, (rank,)), rank), ir.shape_of(best))
    index = e.transpose(index, (rank, *range(rank)))  # [planes, outputs]
    rows = e.iota(ir.shape_of(index), 0)
    values = e.gather(e.transpose(planes, (1, 0)), (rows, index), (0, 1))
    return e.reshape(values, call.shape()), e.reshape(index, call.shape(1))


def _widest(n: Dim, m: Dim) -> int:
    """The most elements that a window ⌊i·n/m⌋ .. ⌈(i + 1)·n/m⌉ covers"""
    if not isinstance(n, int) or not isinstance(m, int):
        raise Refusal("windows of symbolic sizes are left to the library")
    return max((-(-(i + 1) * n // m) - i * n // m for i in range(m)), default=1)


def _flat_planes(e: Emitter, x: SSAValue, rank: int) -> SSAValue:
    """[planes, positions]"""
    lead = len(ir.shape_of(x)) - rank
    return e.reshape(x, (count(x, range(lead)), count(x, range(lead, lead + rank))))


def _put_at(e: Emitter, values: SSAValue, indices: SSAValue, target: SSAValue, rank: int, kind: str) -> SSAValue:
    """Values put into (or added to) each plane of the target at flat positions."""
    flat, places, planes = (_flat_planes(e, v, rank) for v in (values, indices, target))
    rows = e.iota(ir.shape_of(places), 0)
    return e.reshape(e.scatter(planes, flat, (rows, places), (0, 1), kind), ir.shape_of(target))


@decomposition("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def max_pool_backward(
    e: Emitter,
    call: Call,
    g: SSAValue,
    x: SSAValue,
    size: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
    indices: SSAValue,
) -> SSAValue:
    """g added up where the maxima were"""
    return _put_at(e, g, indices, e.const(0, call.shape(), call.dtype()), _rank(call), "add")


@decomposition("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(e: Emitter, call: Call, x: SSAValue, indices: SSAValue, *how: object) -> SSAValue:
    """Zeros with x put where the maxima were"""
    return _put_at(e, x, indices, e.const(0, call.shape(), call.dtype()), _rank(call), "set")


# ---- windows as columns


@decomposition("im2col.default")
def im2col(
    e: Emitter,
    call: Call,
    x: SSAValue,
    size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> SSAValue:
    """[n, c·kh·kw, windows]: for each place in the window the elements that stand there"""
    batched = len(ir.shape_of(x)) == 4
    y = x if batched else e.expand_dims(x, (0,))
    for k in range(2):
        y = e.pad(y, 2 + k, padding[k], padding[k])
    extent = [dilation[k] * (size[k] - 1) + 1 for k in range(2)]
    counts = [(ir.shape_of(y)[2 + k] - extent[k]) // stride[k] + 1 for k in range(2)]
    parts: list[SSAValue] = []
    for i in range(size[0]):
        for j in range(size[1]):
            part = y
            for k, at in enumerate((i * dilation[0], j * dilation[1])):
                part = e.slice(part, 2 + k, at, at + (counts[k] - 1) * stride[k] + 1, stride[k])
            parts.append(e.expand_dims(part, (2,)))
    return e.reshape(e.concat(parts, 2), call.shape())


@decomposition("col2im.default")
def col2im(
    e: Emitter,
    call: Call,
    x: SSAValue,
    output: Sequence[Dim],
    size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> SSAValue:
    """The transpose of `im2col`: a sum of the places of the window, spread out and shifted"""
    batched = len(ir.shape_of(x)) == 3
    y = x if batched else e.expand_dims(x, (0,))
    n, columns, _ = ir.shape_of(y)
    full = [output[k] + 2 * padding[k] for k in range(2)]
    extent = [dilation[k] * (size[k] - 1) + 1 for k in range(2)]
    counts = [(full[k] - extent[k]) // stride[k] + 1 for k in range(2)]
    channels = columns // (size[0] * size[1])
    tiles = e.reshape(y, (n, channels, size[0] * size[1], *counts))
    total: SSAValue | None = None
    for place in range(size[0] * size[1]):
        part = e.reshape(e.slice(tiles, 2, place, place + 1), (n, channels, *counts))
        for k, at in enumerate((place // size[1] * dilation[0], place % size[1] * dilation[1])):
            reach = at + (counts[k] - 1) * stride[k] + 1
            part = e.pad(part, 2 + k, at, full[k] - reach, stride[k] - 1)
        total = part if total is None else e.add(total, part)
    assert total is not None
    for k in range(2):
        total = e.slice(total, 2 + k, padding[k], padding[k] + output[k])
    return e.reshape(total, call.shape())
