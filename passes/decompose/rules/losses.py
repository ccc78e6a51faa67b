"""Losses; `reduction` is 0 (none), 1 (mean) or 2 (sum)."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import like
from isthmus.passes.decompose.rules.activations import log_sigmoid_of, softplus_of
from isthmus.passes.decompose.rules.arithmetic import xlogy
from isthmus.passes.decompose.rules.distances import distance, operands
from isthmus.passes.decompose.table import Call, Scalar, decomposition


def reduced(e: Emitter, call: Call, loss: SSAValue, reduction: int) -> SSAValue:
    """The loss of each element, their mean or their sum"""
    if reduction != 0:
        total = e.sum(loss, range(len(ir.shape_of(loss))))
        loss = e.div(total, like(e, ir.numel(loss), total)) if reduction == 1 else total
    return e.convert(loss, call.dtype())


Pair = Callable[[Emitter, SSAValue, SSAValue], SSAValue]


def _pairwise(overload: str) -> Callable[[Pair], Pair]:
    def enter(formula: Pair) -> Pair:
        @decomposition(overload)
        def rule(e: Emitter, call: Call, x: SSAValue, target: SSAValue, reduction: int) -> SSAValue:
            return reduced(e, call, formula(e, *operands(e, x, target)), reduction)

        del rule
        return formula

    return enter


@_pairwise("mse_loss.default")
def mse_loss(e: Emitter, x: SSAValue, target: SSAValue) -> SSAValue:
    """(x - t)²"""
    return e.square(e.sub(x, target))


@_pairwise("l1_loss.default")
def l1_loss(e: Emitter, x: SSAValue, target: SSAValue) -> SSAValue:
    """|x - t|"""
    return e.abs(e.sub(x, target))


@_pairwise("soft_margin_loss.default")
def soft_margin_loss(e: Emitter, x: SSAValue, target: SSAValue) -> SSAValue:
    """ln(1 + e^(-t·x))"""
    return softplus_of(e, e.mul(e.neg(target), x))


@decomposition("smooth_l1_loss.default")
def smooth_l1_loss(e: Emitter, call: Call, x: SSAValue, target: SSAValue, reduction: int, beta: Scalar) -> SSAValue:
    """z²/2β for z = |x - t| < β, z - β/2 beyond"""
    z = l1_loss(e, *operands(e, x, target))
    if beta == 0:
        return reduced(e, call, z, reduction)
    b = like(e, beta, z)
    near = e.cmp("lt", z, b)
    square = e.div(e.mul(e.scaled(z, 0.5), z), b)
    return reduced(e, call, e.select(near, square, e.sub(z, e.scaled(b, 0.5))), reduction)


@decomposition("huber_loss.default")
def huber_loss(e: Emitter, call: Call, x: SSAValue, target: SSAValue, reduction: int, delta: Scalar) -> SSAValue:
    """z²/2 for z = |x - t| < δ, δ(z - δ/2) beyond"""
    z = l1_loss(e, *operands(e, x, target))
    d = like(e, delta, z)
    beyond = e.mul(d, e.sub(z, e.scaled(d, 0.5)))
    return reduced(e, call, e.select(e.cmp("lt", z, d), e.mul(e.scaled(z, 0.5), z), beyond), reduction)


@decomposition("binary_cross_entropy.default")
def binary_cross_entropy(
    e: Emitter, call: Call, x: SSAValue, target: SSAValue, weight: SSAValue | None, reduction: int
) -> SSAValue:
    """-(t·ln x + (1 - t)·ln(1 - x)), the logarithms not below -100"""
    values = operands(e, x, target, *([] if weight is None else [weight]))
    p, t = values[:2]
    one = e.const_like(1, p)
    loss = e.sub(e.mul(e.sub(t, one), _held_log(e, e.sub(one, p))), e.mul(t, _held_log(e, p)))
    return reduced(e, call, loss if weight is None else e.mul(loss, values[2]), reduction)


def _held_log(e: Emitter, x: SSAValue) -> SSAValue:
    """max(ln x, -100), with derivative 0 where -100 is taken"""
    tiny = e.cmp("lt", x, like(e, math.exp(-100), x))
    return e.select(tiny, like(e, -100, x), e.log(e.select(tiny, e.const_like(1, x), x)))


@decomposition("binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    e: Emitter,
    call: Call,
    x: SSAValue,
    target: SSAValue,
    weight: SSAValue | None,
    pos_weight: SSAValue | None,
    reduction: int,
) -> SSAValue:
    """(1 - t)·x - (1 + (p - 1)·t)·ln σ(x)"""
    extra = [v for v in (weight, pos_weight) if v is not None]
    values = operands(e, x, target, *extra)
    z, t = values[:2]
    one = e.const_like(1, z)
    log = log_sigmoid_of(e, z)
    if pos_weight is not None:
        log = e.mul(log, e.add(e.mul(e.sub(values[-1], one), t), one))
    loss = e.sub(e.mul(e.sub(one, t), z), log)
    return reduced(e, call, loss if weight is None else e.mul(loss, values[2]), reduction)


@decomposition("kl_div.default")
def kl_div(e: Emitter, call: Call, x: SSAValue, target: SSAValue, reduction: int, log_target: bool) -> SSAValue:
    """t·(ln t - x), or eᵗ·(t - x) for a target that is a logarithm"""
    p, t = operands(e, x, target)
    loss = e.mul(e.exp(t), e.sub(t, p)) if log_target else e.sub(xlogy(e, t, t), e.mul(t, p))
    return reduced(e, call, loss, reduction)


@decomposition("poisson_nll_loss.default")
def poisson_nll_loss(
    e: Emitter, call: Call, x: SSAValue, target: SSAValue, log_input: bool, full: bool, eps: Scalar, reduction: int
) -> SSAValue:
    """eˣ - t·x, or x - t·ln(x + ε); Stirling's terms for t > 1 if full"""
    p, t = operands(e, x, target)
    loss = e.sub(e.exp(p), e.mul(t, p)) if log_input else e.sub(p, e.mul(t, e.log(e.add(p, like(e, eps, p)))))
    if full:
        big = e.cmp("gt", t, e.const_like(1, t))
        u = e.select(big, t, e.const_like(1, t))
        stirling = e.add(e.sub(e.mul(u, e.log(u)), u), e.scaled(e.log(e.scaled(u, 2 * math.pi)), 0.5))
        loss = e.add(loss, e.select(big, stirling, e.zeros_like(t)))
    return reduced(e, call, loss, reduction)


# ---- margins


def _hinge(e: Emitter, x: SSAValue) -> SSAValue:
    """max(x, 0) as clamp_min: the derivative at 0 is 1"""
    return e.select(e.cmp("lt", x, e.zeros_like(x)), e.zeros_like(x), x)


@decomposition("margin_ranking_loss.default")
def margin_ranking_loss(
    e: Emitter, call: Call, a: SSAValue, b: SSAValue, target: SSAValue, margin: Scalar, reduction: int
) -> SSAValue:
    """max(-t·(a - b) + margin, 0)"""
    x, y, t = operands(e, a, b, target)
    return reduced(e, call, _hinge(e, e.add(e.mul(e.neg(t), e.sub(x, y)), like(e, margin, x))), reduction)


@decomposition("hinge_embedding_loss.default")
def hinge_embedding_loss(
    e: Emitter, call: Call, x: SSAValue, target: SSAValue, margin: Scalar, reduction: int
) -> SSAValue:
    """x where t = 1, max(margin - x, 0) where t = -1"""
    p, t = operands(e, x, target)
    zero, one = e.zeros_like(p), e.const_like(1, p)
    apart = e.select(e.cmp("ne", t, one), _hinge(e, e.sub(like(e, margin, p), p)), zero)
    return reduced(e, call, e.add(apart, e.select(e.cmp("ne", t, e.const_like(-1, t)), p, zero)), reduction)


@decomposition("cosine_embedding_loss.default")
def cosine_embedding_loss(
    e: Emitter, call: Call, a: SSAValue, b: SSAValue, target: SSAValue, margin: Scalar, reduction: int
) -> SSAValue:
    """1 - cos where t = 1, max(cos - margin, 0) where t = -1"""
    x, y = operands(e, a, b)
    last = (len(ir.shape_of(x)) - 1,)
    eps = e.const(1e-12, (), ir.dtype_of(x))
    sums = [e.sum(e.mul(u, v), last) for u, v in ((x, y), (x, x), (y, y))]
    small = e.broadcast_to(eps, ir.shape_of(sums[0]))
    cos = e.div(sums[0], e.sqrt(e.mul(e.add(sums[1], small), e.add(sums[2], small))))
    t = e.broadcast_to(e.convert(target, ir.dtype_of(cos)), ir.shape_of(cos))
    zero, one = e.zeros_like(cos), e.const_like(1, cos)
    near = e.select(e.cmp("eq", t, one), e.sub(one, cos), zero)
    apart = e.select(e.cmp("eq", t, e.const_like(-1, t)), _hinge(e, e.sub(cos, like(e, margin, cos))), zero)
    return reduced(e, call, e.add(near, apart), reduction)


@decomposition("triplet_margin_loss.default")
def triplet_margin_loss(
    e: Emitter,
    call: Call,
    anchor: SSAValue,
    positive: SSAValue,
    negative: SSAValue,
    margin: Scalar,
    order: Scalar,
    eps: Scalar,
    swap: bool,
    reduction: int,
) -> SSAValue:
    """max(d(a, p) - d(a, n) + margin, 0), with `swap` the smaller of d(a, n) and d(p, n)"""
    near, far = (distance(e, anchor, v, order, eps) for v in (positive, negative))
    if swap:
        far = e.min(far, distance(e, positive, negative, order, eps))
    return reduced(e, call, _hinge(e, e.add(e.sub(near, far), like(e, margin, near))), reduction)
