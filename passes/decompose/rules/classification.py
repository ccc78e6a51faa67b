"""Losses over classes: cross-entropy and negative log-likelihood."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import inside, like
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


def _rows(e: Emitter, x: SSAValue) -> SSAValue:
    """[rows, classes] of [classes], [n, classes] or [n, classes, ...]"""
    shape = ir.shape_of(x)
    if len(shape) < 2:
        return e.reshape(x, (1, ir.numel(x)))
    y = e.transpose(x, (0, *range(2, len(shape)), 1))
    return e.reshape(y, (_product((shape[0], *shape[2:])), shape[1]))


def _product(sizes: tuple[Dim, ...]) -> Dim:
    total: Dim = 1
    for s in sizes:
        total = total * s
    return total


def _weighted(
    e: Emitter, loss: SSAValue, target: SSAValue, weight: SSAValue | None, ignore: Dim
) -> tuple[SSAValue, SSAValue]:
    """Row losses times the weight of their class (0 where ignored), and those weights."""
    dtype = ir.dtype_of(loss)
    counted = e.cmp("ne", target, like(e, ignore, target))
    loss = e.select(counted, loss, e.zeros_like(loss))
    if weight is None:
        return loss, e.convert(counted, dtype)
    held = e.select(counted, target, e.zeros_like(target))
    of_class = e.gather(e.convert(weight, dtype), (held,), (0,))
    weights = e.select(counted, of_class, e.zeros_like(of_class))
    return e.mul(loss, weights), weights


def _averaged(e: Emitter, call: Call, loss: SSAValue, weights: SSAValue, reduction: int) -> SSAValue:
    """Rows in the result's shape, Σ loss / Σ weights, or Σ loss"""
    if reduction == 0:
        return e.convert(e.reshape(loss, call.shape()), call.dtype())
    total = e.sum(loss, (0,))
    return e.convert(e.div(total, e.sum(weights, (0,))) if reduction == 1 else total, call.dtype())


def _nll(
    e: Emitter, call: Call, x: SSAValue, target: SSAValue, weight: SSAValue | None, reduction: int, ignore: Dim
) -> tuple[SSAValue, SSAValue]:
    """-x[target], and the sum of weights"""
    rows = e.convert(_rows(e, x), inside(ir.dtype_of(x)))
    classes = e.convert(e.reshape(target, ir.shape_of(rows)[:1]), "i64")
    counted = e.cmp("ne", classes, like(e, ignore, classes))
    held = e.select(counted, classes, e.zeros_like(classes))
    picked = e.gather(rows, (e.iota(ir.shape_of(classes), 0), held), (0, 1))
    loss, weights = _weighted(e, e.neg(picked), classes, weight, ignore)
    return _averaged(e, call, loss, weights, reduction), e.sum(weights, (0,))


NLL = ("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")


@decomposition(*NLL)
def nll_loss(
    e: Emitter, call: Call, x: SSAValue, target: SSAValue, weight: SSAValue | None, reduction: int, ignore: Dim
) -> SSAValue:
    return _nll(e, call, x, target, weight, reduction, ignore)[0]


@decomposition("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss_forward(
    e: Emitter, call: Call, x: SSAValue, target: SSAValue, weight: SSAValue | None, reduction: int, ignore: Dim
) -> tuple[SSAValue, SSAValue]:
    loss, total = _nll(e, call, x, target, weight, reduction, ignore)
    return loss, e.const(0, (), call.dtype(1)) if reduction == 0 else e.convert(total, call.dtype(1))


@decomposition("cross_entropy_loss.default")
def cross_entropy(
    e: Emitter,
    call: Call,
    x: SSAValue,
    target: SSAValue,
    weight: SSAValue | None,
    reduction: int,
    ignore: Dim,
    smoothing: Scalar,
) -> SSAValue:
    """Σ -ln softmax(x)[target], smoothed over the classes; or -Σ t·ln softmax(x) for a target of chances"""
    if not isinstance(smoothing, (int, float)) or not isinstance(ignore, int):
        raise Refusal("smoothing and ignored class must be numbers")
    rows = e.convert(_rows(e, x), inside(ir.dtype_of(x)))
    if ir.shape_of(target) == ir.shape_of(x) and ir.is_float(ir.dtype_of(target)):
        return _soft_cross_entropy(e, call, rows, target, weight, reduction, smoothing)
    classes = e.convert(e.reshape(target, ir.shape_of(rows)[:1]), "i64")
    plain, lse = e.cross_entropy(rows, classes, ignore)
    loss, weights = _weighted(e, plain, classes, weight, ignore)
    if smoothing:
        counted = e.cmp("ne", classes, like(e, ignore, classes))
        smooth = _smooth(e, rows, lse, weight, counted)
        share = like(e, smoothing, loss)
        n = like(e, ir.shape_of(rows)[1], loss)
        loss = e.add(e.mul(e.sub(e.const_like(1, loss), share), loss), e.mul(e.div(share, n), smooth))
    return _averaged(e, call, loss, weights, reduction)


def _smooth(e: Emitter, rows: SSAValue, lse: SSAValue, weight: SSAValue | None, counted: SSAValue) -> SSAValue:
    """Σ over classes of weight·(lse - x), 0 where ignored"""
    terms = e.sub(e.broadcast(lse, ir.shape_of(rows), (0,)), rows)
    if weight is not None:
        terms = e.mul(terms, e.broadcast(e.convert(weight, ir.dtype_of(rows)), ir.shape_of(rows), (1,)))
    total = e.sum(terms, (1,))
    return e.select(counted, total, e.zeros_like(total))


def _soft_cross_entropy(
    e: Emitter,
    call: Call,
    rows: SSAValue,
    target: SSAValue,
    weight: SSAValue | None,
    reduction: int,
    smoothing: float,
) -> SSAValue:
    """-Σ (t·(1 - ε) + ε/n)·weight·ln softmax(x); the mean is over the rows"""
    chances = e.convert(_rows(e, target), ir.dtype_of(rows))
    n = ir.shape_of(rows)[1]
    if smoothing:
        chances = e.add(e.scaled(chances, 1 - smoothing), e.div(like(e, smoothing, chances), like(e, n, chances)))
    terms = e.neg(e.mul(e.log_softmax(rows, 1), chances))
    if weight is not None:
        terms = e.mul(terms, e.broadcast(e.convert(weight, ir.dtype_of(rows)), ir.shape_of(rows), (1,)))
    loss = e.sum(terms, (1,))
    return _averaged(e, call, loss, e.const_like(1, loss), reduction)


@decomposition("multi_margin_loss.default")
def multi_margin_loss(
    e: Emitter,
    call: Call,
    x: SSAValue,
    target: SSAValue,
    order: Scalar,
    margin: Scalar,
    weight: SSAValue | None,
    reduction: int,
) -> SSAValue:
    """Σ over other classes of max(margin - x[target] + x, 0)ᵖ·weight[target] / number of classes"""
    rows = e.convert(_rows(e, x), inside(ir.dtype_of(x)))
    shape = ir.shape_of(rows)
    classes = e.reshape(target, shape[:1])
    picked = e.gather(rows, (e.iota(shape[:1], 0), classes), (0, 1))
    z = e.add(e.sub(like(e, margin, rows), e.broadcast(picked, shape, (0,))), rows)
    own = e.cmp("eq", e.iota(shape, 1), e.broadcast(classes, shape, (0,)))
    z = e.select(e.or_(own, e.cmp("le", z, e.zeros_like(z))), e.zeros_like(z), z)
    if order != 1:
        z = e.square(z)
    if weight is not None:
        of_class = e.gather(e.convert(weight, ir.dtype_of(rows)), (classes,), (0,))
        z = e.mul(z, e.broadcast(of_class, shape, (0,)))
    total = e.sum(z, (1,))
    loss = e.div(total, like(e, shape[1], total))
    return _averaged(e, call, loss, e.const_like(1, loss), reduction)


@decomposition("multilabel_margin_loss.default")
def multilabel_margin_loss(e: Emitter, call: Call, x: SSAValue, target: SSAValue, reduction: int) -> SSAValue:
    """Σ over the classes t before the first negative one, over the others j, of max(1 - x[t] + x[j], 0) / classes"""
    rows = e.convert(_rows(e, x), inside(ir.dtype_of(x)))
    shape = ir.shape_of(rows)
    count, classes = shape
    listed, position = e.reshape(target, shape), e.iota(shape, 1)
    negative = e.cmp("lt", listed, e.zeros_like(listed))
    first = e.reduce("min", e.select(negative, position, e.full(classes, shape, "i64")), (1,))
    live = e.cmp("lt", position, e.broadcast(first, shape, (0,)))
    label = e.select(live, listed, e.zeros_like(listed))
    picked = e.gather(rows, (e.iota(shape, 0), label), (0, 1))
    pairs = (count, classes, classes)
    live = e.broadcast(live, pairs, (0, 1))
    is_label = e.and_(live, e.cmp("eq", e.iota(pairs, 2), e.broadcast(label, pairs, (0, 1))))
    own = e.broadcast(e.reduce("or", is_label, (1,)), pairs, (0, 2))
    z = e.add(
        e.sub(e.const(1, pairs, ir.dtype_of(rows)), e.broadcast(picked, pairs, (0, 1))),
        e.broadcast(rows, pairs, (0, 2)),
    )
    counts = e.and_(e.and_(live, e.not_(own)), e.cmp("gt", z, e.zeros_like(z)))
    total = e.sum(e.select(counts, z, e.zeros_like(z)), (1, 2))
    loss = e.div(total, like(e, classes, total))
    return _averaged(e, call, loss, e.const_like(1, loss), reduction)
