"""Tables of rows looked up by number."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import like, wide
from isthmus.passes.decompose.rules.indexing import integers
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


@decomposition("embedding.default")
def embedding(
    e: Emitter, call: Call, weight: SSAValue, indices: SSAValue, padding: Dim, scale_by_freq: bool, sparse: bool
) -> SSAValue:
    """Rows of the table; the row of `padding` gets no derivative"""
    if scale_by_freq or sparse:
        raise Refusal("scaled or sparse gradients of an embedding are the library's")
    y = e.gather(weight, (integers(e, indices),), (0,))
    if padding == -1:
        return y
    places = integers(e, indices)
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


EMBEDDING_BAGS = ("_embedding_bag.default", "_embedding_bag_forward_only.default", "embedding_bag.padding_idx")
SUM, MEAN = 0, 1


@decomposition(*EMBEDDING_BAGS)
def embedding_bag(
    e: Emitter,
    call: Call,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    scale_by_freq: bool,
    mode: int,
    sparse: bool,
    scales: SSAValue | None,
    include_last: bool,
    padding: Dim | None,
) -> tuple[SSAValue, ...]:
    """Sums or means of rows, bag by bag: bag b begins at offsets[b]"""
    if scale_by_freq or sparse or mode not in (SUM, MEAN) or len(ir.shape_of(indices)) != 1:
        raise Refusal("only sums and means with dense gradients are written out")
    places, starts = integers(e, indices), e.convert(offsets, "i64")
    n, (bags, width) = ir.shape_of(places)[0], call.shape()
    starts = e.slice(starts, 0, 0, bags) if include_last else starts
    table = (n, bags)
    begun = e.cmp("le", e.broadcast(starts, table, (1,)), e.iota(table, 0))
    bag = e.shifted(e.sum(e.convert(begun, "i64"), (1,)), -1)
    rows = wide(e, e.gather(weight, (places,), (0,)))
    if scales is not None:
        rows = e.mul(rows, e.broadcast(e.convert(scales, ir.dtype_of(rows)), (n, width), (0,)))
    counted = e.const(True, (n,), "i1")
    if call.overload == "embedding_bag.padding_idx" and isinstance(padding, int) and padding < 0:
        padding = ir.shape_of(weight)[0] + padding  # counts from the end here; elsewhere -1 means none
    if padding is not None and padding != -1:
        counted = e.cmp("ne", places, like(e, padding, places))
        rows = e.select(e.broadcast(counted, (n, width), (0,)), rows, e.zeros_like(rows))
    total = e.scatter(e.const(0, (bags, width), ir.dtype_of(rows)), rows, (bag,), (0,), "add")
    sizes = e.scatter(e.const(0, (bags,), "i64"), e.convert(counted, "i64"), (bag,), (0,), "add")
    if mode == MEAN:
        divisor = e.convert(e.max(sizes, e.const_like(1, sizes)), ir.dtype_of(rows))
        total = e.div(total, e.broadcast(divisor, (bags, width), (0,)))
    return e.convert(total, call.dtype()), *_bookkeeping(e, call, bag, sizes)


def _bookkeeping(e: Emitter, call: Call, bag: SSAValue, sizes: SSAValue) -> list[SSAValue]:
    """The bag of each index, the size of each bag, and places of maxima: empty where torch leaves them out"""
    values: list[SSAValue] = []
    for k, value in zip(range(1, len(call.types)), (bag, sizes, sizes), strict=False):
        fits = ir.shape_of(value) == call.shape(k)
        values.append(e.convert(value, call.dtype(k)) if fits else e.const(0, call.shape(k), call.dtype(k)))
    return values
