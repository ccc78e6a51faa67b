"""Values with a part replaced, copies and conversions: what in-place writes become on values."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, SSAValue

from isthmus import ir
from isthmus.dialects import autodiff
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import axis, wrapped
from isthmus.passes.decompose.rules.views import bounds
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim

IDENTITIES = (
    "alias.default",
    "alias_copy.default",
    "clone.default",
    "contiguous.default",
    "lift.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "positive.default",
    "resolve_conj.default",
    "resolve_neg.default",
)


@decomposition(*IDENTITIES)
def identity(e: Emitter, call: Call, x: SSAValue, *how: object) -> SSAValue:
    return x


@decomposition("detach.default", "detach_copy.default")
def detach(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.stop_gradient(x)


CONVERSIONS = (
    "_to_copy.default",
    "to.dtype",
    "to.device",
    "to.other",
    "to.dtype_layout",
    "to.prim_dtype",
    "to.prim_Device",
    "to.prim_other",
    "type_as.default",
    "_autocast_to_reduced_precision.default",
    "_autocast_to_full_precision.default",
)
"""What they differ in is only how they name the result's dtype."""


@decomposition(*CONVERSIONS)
def convert(e: Emitter, call: Call, x: SSAValue, *how: object) -> SSAValue:
    return e.convert(e.real(x) if not ir.is_complex(call.dtype()) else x, call.dtype())


@decomposition("copy.default", "copy_.default")
def copy(e: Emitter, call: Call, x: SSAValue, source: Scalar, non_blocking: bool = False) -> SSAValue:
    """The source in the target's shape and dtype."""
    if not isinstance(source, SSAValue):
        return e.full(source, call.shape(), call.dtype())
    return e.broadcast_to(convert(e, call, _squeezed(e, source, call)), call.shape())


def _squeezed(e: Emitter, x: SSAValue, call: Call) -> SSAValue:
    """Drop leading dimensions of 1 that the target lacks."""
    extra = len(ir.shape_of(x)) - len(call.shape())
    return e.reshape(x, ir.shape_of(x)[extra:]) if extra > 0 else x


@decomposition("fill.Scalar", "fill.Tensor")
def fill(e: Emitter, call: Call, x: SSAValue, value: Scalar) -> SSAValue:
    return e.full(value, call.shape(), call.dtype())


@decomposition("zero.default")
def zero(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.const(0, call.shape(), call.dtype())


# ---- a part replaced


@decomposition("slice_scatter.default")
def slice_scatter(
    e: Emitter,
    call: Call,
    x: SSAValue,
    source: SSAValue,
    dim: int,
    start: Dim | None,
    end: Dim | None,
    step: Dim,
) -> SSAValue:
    """x with x[..., start:end:step, ...] = source"""
    at = axis(x, dim)
    if not isinstance(step, int):
        raise Refusal("the step of a slice must be a number")
    length = ir.shape_of(source)[at] if ir.shape_of(source) else 1
    low, high = bounds(call, x, at, length, start, step)
    part_shape = (*call.shape()[:at], length, *call.shape()[at + 1 :])
    part = e.broadcast_to(e.convert(source, call.dtype()), part_shape)
    if step == 1:
        return replaced(e, x, part, at, low, high)
    size = call.shape()[at]
    spread = e.pad(part, at, low, size - high, step - 1)
    place = e.shifted(e.iota(call.shape(), at), -low) if isinstance(low, int) else _minus(e, call, at, low)
    hit = e.cmp("eq", e.rem(place, e.const_like(step, place)), e.zeros_like(place))
    inside = e.and_(
        e.cmp("ge", place, e.zeros_like(place)), e.cmp("lt", place, e.full(high - low, call.shape(), "i64"))
    )
    return e.select(e.and_(hit, inside), spread, x)


def _minus(e: Emitter, call: Call, at: int, low: Dim) -> SSAValue:
    return e.sub(e.iota(call.shape(), at), e.full(low, call.shape(), "i64"))


def replaced(e: Emitter, x: SSAValue, part: SSAValue, dim: int, low: Dim, high: Dim) -> SSAValue:
    """x with the range [low, high) along dim replaced."""
    size = ir.shape_of(x)[dim]
    pieces: list[SSAValue] = []
    if low != 0:
        pieces.append(e.slice(x, dim, 0, low))
    pieces.append(part)
    if high != size:
        pieces.append(e.slice(x, dim, high, size))
    return e.concat(pieces, dim)


@decomposition("select_scatter.default")
def select_scatter(e: Emitter, call: Call, x: SSAValue, source: SSAValue, dim: int, index: Dim) -> SSAValue:
    """x with x[..., index, ...] = source"""
    at = axis(x, dim)
    low = wrapped(index, ir.shape_of(x)[at])
    one = (*call.shape()[:at], 1, *call.shape()[at + 1 :])
    return replaced(e, x, e.reshape(e.convert(source, call.dtype()), one), at, low, low + 1)


@decomposition("slice_backward.default")
def slice_backward(
    e: Emitter, call: Call, g: SSAValue, sizes: tuple[Dim, ...], dim: int, start: Dim, end: Dim, step: Dim
) -> SSAValue:
    """g where the slice is, 0 elsewhere"""
    return slice_scatter(e, call, e.const(0, call.shape(), call.dtype()), g, dim, start, end, step)


@decomposition("select_backward.default")
def select_backward(e: Emitter, call: Call, g: SSAValue, sizes: tuple[Dim, ...], dim: int, index: Dim) -> SSAValue:
    """g at the index, 0 elsewhere"""
    return select_scatter(e, call, e.const(0, call.shape(), call.dtype()), g, dim, index)


@decomposition("diagonal.default", "diagonal_copy.default", "linalg_diagonal.default")
def diagonal(e: Emitter, call: Call, x: SSAValue, offset: int, first: int, second: int) -> SSAValue:
    """y[..., k] = x[..., k - min(offset, 0), k + max(offset, 0)]: every (m + 1)-th element of the flat n×m matrix"""
    rows, columns = axis(x, first), axis(x, second)
    rest = [d for d in range(len(ir.shape_of(x))) if d not in (rows, columns)]
    y = e.transpose(x, (*rest, rows, columns))
    n, m = ir.shape_of(y)[-2:]
    length = call.shape()[-1]
    if length == 0:
        return e.const(0, call.shape(), call.dtype())
    if not isinstance(m, int):
        i = e.shifted(e.iota((length,), 0), max(-offset, 0))
        j = e.shifted(e.iota((length,), 0), max(offset, 0))
        return _last(e, e.gather(y, (i, j), (len(rest), len(rest) + 1)))
    start = max(offset, 0) + max(-offset, 0) * m
    flat = e.reshape(y, (*ir.shape_of(y)[:-2], n * m))
    return e.slice(flat, len(rest), start, start + (length - 1) * (m + 1) + 1, m + 1)


def _last(e: Emitter, x: SSAValue) -> SSAValue:
    """The first dimension moved to the end."""
    rank = len(ir.shape_of(x))
    return e.transpose(x, (*range(1, rank), 0))


@decomposition("diagonal_scatter.default")
def diagonal_scatter(
    e: Emitter, call: Call, x: SSAValue, source: SSAValue, offset: int, first: int, second: int
) -> SSAValue:
    """x with its diagonal replaced: at column = row + offset the element of the source"""
    rows, columns = axis(x, first), axis(x, second)
    shape = call.shape()
    rest = [d for d in range(len(shape)) if d not in (rows, columns)]
    along = rows if offset >= 0 else columns
    padded = e.pad(e.convert(source, call.dtype()), len(rest), 0, shape[along] - ir.shape_of(source)[-1])
    order = sorted(range(len(rest) + 1), key=lambda k: (*rest, along)[k])
    spread = e.broadcast(e.transpose(padded, order), shape, sorted((*rest, along)))
    return e.select(on_diagonal(e, shape, rows, columns, offset), spread, x)


def on_diagonal(e: Emitter, shape: Sequence[Dim], rows: int, columns: int, offset: Dim, how: str = "eq") -> SSAValue:
    """Whether column - row = offset (or ≤, ≥ it)."""
    difference = e.sub(e.iota(shape, columns), e.iota(shape, rows))
    return e.cmp(how, difference, e.full(offset, shape, "i64"))


@decomposition("diag_embed.default")
def diag_embed(e: Emitter, call: Call, x: SSAValue, offset: int, first: int, second: int) -> SSAValue:
    """A matrix of zeros with x on its diagonal"""
    rank = len(call.shape())
    return diagonal_scatter(e, call, e.const(0, call.shape(), call.dtype()), x, offset, first % rank, second % rank)


@decomposition("diag.default")
def diag(e: Emitter, call: Call, x: SSAValue, offset: int) -> SSAValue:
    """The diagonal of a matrix, or the matrix of a diagonal"""
    if len(ir.shape_of(x)) == 1:
        return diag_embed(e, call, x, offset, 0, 1)
    return diagonal(e, call, x, offset, 0, 1)


@decomposition("diagflat.default")
def diagflat(e: Emitter, call: Call, x: SSAValue, offset: int) -> SSAValue:
    return diag_embed(e, call, e.reshape(x, (ir.numel(x),)), offset, 0, 1)


@decomposition("trace.default")
def trace(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    on = on_diagonal(e, ir.shape_of(x), 0, 1, 0)
    y = e.convert(x, call.dtype())
    return e.sum(e.select(on, y, e.zeros_like(y)), (0, 1))


@decomposition("tril.default")
def tril(e: Emitter, call: Call, x: SSAValue, offset: Dim) -> SSAValue:
    """x where column - row ≤ offset, else 0"""
    return _triangle(e, x, offset, "le")


@decomposition("triu.default")
def triu(e: Emitter, call: Call, x: SSAValue, offset: Dim) -> SSAValue:
    """x where column - row ≥ offset, else 0"""
    return _triangle(e, x, offset, "ge")


def _triangle(e: Emitter, x: SSAValue, offset: Dim, how: str) -> SSAValue:
    rank = len(ir.shape_of(x))
    return e.select(on_diagonal(e, ir.shape_of(x), rank - 2, rank - 1, offset, how), x, e.zeros_like(x))


# ---- views by strides


def _positions(e: Emitter, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> SSAValue:
    """Σ i[k]·strides[k] + offset"""
    total = e.full(offset, shape, "i64")
    for d, stride in enumerate(strides):
        total = e.add(total, e.mul(e.iota(shape, d), e.full(stride, shape, "i64")))
    return total


@decomposition("as_strided.default", "as_strided_copy.default")
def as_strided(
    e: Emitter, call: Call, x: SSAValue, size: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None
) -> SSAValue:
    """y[i] = the row-major elements of x at Σ i·strides + offset (x stands for its storage)"""
    return _strided(e, x, call.shape(), strides, 0 if offset is None else offset)


def _strided(e: Emitter, x: SSAValue, shape: ir.Shape, strides: Sequence[Dim], first: Dim) -> SSAValue:
    flat, type_ = e.reshape(x, (ir.numel(x),)), ir.tensor(shape, ir.dtype_of(x))
    total = ir.numel(type_)
    if tuple(strides) == ir.contiguous_strides(shape):
        return e.reshape(e.slice(flat, 0, first, first + total), shape)
    if total == 0:
        return e.const(0, shape, ir.dtype_of(x))
    return e.gather(flat, (_positions(e, shape, strides, first),), (0,))


@decomposition("as_strided_scatter.default")
def as_strided_scatter(
    e: Emitter,
    call: Call,
    x: SSAValue,
    source: SSAValue,
    size: Sequence[Dim],
    strides: Sequence[Dim],
    offset: Dim | None,
) -> SSAValue:
    """x with the elements that `as_strided` would read replaced; of several writes to one the last stays

    Torch's formula gives x the cotangent where x was replaced and nothing elsewhere; a call of the program's has that.
    """
    first = 0 if offset is None else offset
    value = _put(e, x, e.convert(source, call.dtype()), strides, first)
    if call.puts_back or not ir.is_differentiable(call.dtype()):
        return value
    block = Block(arg_types=[value.type])
    inner = Emitter(block)
    read = _strided(inner, block.args[0], ir.shape_of(source), strides, first)
    replaced_ones = _put(inner, inner.zeros_like(block.args[0]), read, strides, first)
    block.add_op(ir.create_op(autodiff.YieldOp, [replaced_ones, inner.convert(read, ir.dtype_of(source))], ()))
    op = autodiff.with_derivative(value, [x, source], block, e.location)
    e.block.add_op(op)
    return op.results[0]


def _put(e: Emitter, x: SSAValue, update: SSAValue, strides: Sequence[Dim], first: Dim) -> SSAValue:
    flat, shape = e.reshape(x, (ir.numel(x),)), ir.shape_of(update)
    if tuple(strides) == ir.contiguous_strides(shape):
        part = e.reshape(update, (ir.numel(update),))
        return e.reshape(replaced(e, flat, part, 0, first, first + ir.numel(update)), ir.shape_of(x))
    places = _positions(e, shape, strides, first)
    return e.reshape(e.scatter(flat, update, (places,), (0,), "set"), ir.shape_of(x))
