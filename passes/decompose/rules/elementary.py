"""Structured primitives written out in elementary ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.attention import Attention, repeat_heads, sum_heads, sums_of
from isthmus.passes.decompose.dims import broadcast_over, count
from isthmus.passes.decompose.promotion import inside, like
from isthmus.passes.decompose.rules.attention import causal_mask
from isthmus.passes.decompose.table import elementary


def _narrowed(e: Emitter, dtype: str, *values: SSAValue) -> tuple[SSAValue, ...]:
    return tuple(e.convert(v, dtype) for v in values)


def _in_wide(e: Emitter, *values: SSAValue) -> list[SSAValue]:
    return [e.convert(v, inside(ir.dtype_of(v))) for v in values]


def _dims(op: prim.PrimOp, key: str) -> tuple[int, ...]:
    return cast(tuple[int, ...], ir.literal(op, key))


@elementary(prim.MomentsOp)
def moments(e: Emitter, op: prim.MomentsOp, x: SSAValue) -> Sequence[SSAValue]:
    """mean = Σx/n, var = Σ(x - mean)²/n"""
    dims, dtype = _dims(op, "dims"), ir.dtype_of(x)
    (y,) = _in_wide(e, x)
    total = e.sum(y, dims)
    n = like(e, count(y, dims), total)
    mean = e.div(total, n)
    centered = e.sub(y, broadcast_over(e, mean, y, dims))
    return _narrowed(e, dtype, mean, e.div(e.sum(e.square(centered), dims), n))


def _shifted(e: Emitter, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue, SSAValue]:
    """x - max x, its exponential, and the sum of that along dim; the maximum is constant to differentiation."""
    top = e.stop_gradient(e.reduce("max", x, (dim,)))
    z = e.sub(x, broadcast_over(e, top, x, (dim,)))
    p = e.exp(z)
    return z, p, e.sum(p, (dim,))


@elementary(prim.SoftmaxOp)
def softmax(e: Emitter, op: prim.SoftmaxOp, x: SSAValue) -> SSAValue:
    """eᶻ/Σeᶻ, z = x - max x"""
    dim = cast(int, ir.literal(op, "dim"))
    (y,) = _in_wide(e, x)
    _, p, total = _shifted(e, y, dim)
    return e.convert(e.div(p, broadcast_over(e, total, y, (dim,))), ir.dtype_of(x))


@elementary(prim.LogSoftmaxOp)
def log_softmax(e: Emitter, op: prim.LogSoftmaxOp, x: SSAValue) -> SSAValue:
    """z - ln Σeᶻ, z = x - max x"""
    dim = cast(int, ir.literal(op, "dim"))
    (y,) = _in_wide(e, x)
    z, _, total = _shifted(e, y, dim)
    return e.convert(e.sub(z, broadcast_over(e, e.log(total), y, (dim,))), ir.dtype_of(x))


@elementary(prim.CrossEntropyOp)
def cross_entropy(e: Emitter, op: prim.CrossEntropyOp, logits: SSAValue, target: SSAValue) -> Sequence[SSAValue]:
    """lse = max + ln Σeᶻ; loss = lse - logits[target], 0 where ignored"""
    dtype = ir.dtype_of(logits)
    (x,) = _in_wide(e, logits)
    top = e.stop_gradient(e.reduce("max", x, (1,)))
    total = e.sum(e.exp(e.sub(x, broadcast_over(e, top, x, (1,)))), (1,))
    lse = e.add(top, e.log(total))
    counted = e.cmp("ne", target, like(e, cast(int, ir.literal(op, "ignore")), target))
    held = e.select(counted, target, e.zeros_like(target))
    picked = e.gather(x, (e.iota(ir.shape_of(target), 0), held), (0, 1))
    loss = e.select(counted, e.sub(lse, picked), e.zeros_like(lse))
    return _narrowed(e, dtype, loss, lse)


HEADS = ((0, 1), (0, 1))
"""Batch and head dimensions of both operands."""


def _scores(
    e: Emitter, op: prim.AttentionOp | prim.AttentionBwdOp, q: SSAValue, k: SSAValue, mask: SSAValue | None
) -> SSAValue:
    """scale·q kᵀ + mask, -inf where a key is not allowed or comes after the query of causal attention"""
    given = Attention.of(op)
    x = e.scaled(e.dot(q, k, ((3,), (3,)), HEADS), given.scale)
    if mask is not None:
        boolean = ir.dtype_of(mask) == "i1"
        nothing = like(e, -math.inf if given.fill is None else given.fill, x)
        x = e.select(mask, x, nothing) if boolean else e.add(x, e.convert(mask, ir.dtype_of(x)))
    if given.causal:
        x = e.select(causal_mask(e, ir.shape_of(x)), x, like(e, -math.inf, x))
    return x


def _finite(e: Emitter, x: SSAValue) -> SSAValue:
    """x, 0 where it is -inf: rows without any allowed key"""
    return e.select(e.cmp("eq", x, like(e, -math.inf, x)), e.zeros_like(x), x)


@elementary(prim.AttentionOp)
def attention(
    e: Emitter, op: prim.AttentionOp, q: SSAValue, k: SSAValue, v: SSAValue, mask: SSAValue | None = None
) -> Sequence[SSAValue]:
    """p = e^(s - max s), o = p v / Σp, lse = max s + ln Σp"""
    dtype = ir.dtype_of(q)
    heads = ir.shape_of(q)[1]
    a, b, c = _in_wide(e, q, repeat_heads(e, k, heads), repeat_heads(e, v, heads))
    s = _scores(e, op, a, b, mask)
    top = _finite(e, e.stop_gradient(e.reduce("max", s, (3,))))
    p = e.exp(e.sub(s, broadcast_over(e, top, s, (3,))))
    total = e.sum(p, (3,))
    divisor = total
    if not Attention.of(op).nan_where_empty:
        divisor = e.select(e.cmp("eq", total, e.zeros_like(total)), e.const_like(1, total), total)
    weights = e.div(p, broadcast_over(e, divisor, s, (3,)))
    o, rest = e.convert(e.dot(weights, c, ((3,), (2,)), HEADS), dtype), e.log(total)
    if len(ir.shape_of(op.lse)) == 3:
        return o, e.add(top, rest)
    return o, e.concat([e.expand_dims(x, (0,)) for x in (top, rest)], 0)


@elementary(prim.AttentionBwdOp)
def attention_bwd(
    e: Emitter,
    op: prim.AttentionBwdOp,
    g: SSAValue,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    delta: SSAValue,
    lse: SSAValue,
    mask: SSAValue | None = None,
) -> Sequence[SSAValue]:
    """p = e^(s - lse), dv = pᵀ g, ds = p·(g vᵀ - delta), dq = scale·ds k, dk = scale·dsᵀ q"""
    dtype = ir.dtype_of(q)
    heads, own = (ir.shape_of(x)[1] for x in (q, k))
    w, a, b, c, d, m = _in_wide(e, g, q, repeat_heads(e, k, heads), repeat_heads(e, v, heads), delta, lse)
    s = _scores(e, op, a, b, mask)
    first, rest = sums_of(e, m)
    last = first if rest is None else rest
    held = last if Attention.of(op).nan_where_empty else _finite(e, last)
    below = s if rest is None else e.sub(s, broadcast_over(e, first, s, (3,)))
    p = e.exp(e.sub(below, broadcast_over(e, held, s, (3,))))
    dv = e.dot(p, w, ((2,), (2,)), HEADS)
    dp = e.dot(w, c, ((3,), (3,)), HEADS)
    ds = e.mul(p, e.sub(dp, broadcast_over(e, d, s, (3,))))
    ds = e.scaled(ds, Attention.of(op).scale)
    if mask is not None and ir.dtype_of(mask) == "i1":
        ds = e.select(mask, ds, e.zeros_like(ds))
    if Attention.of(op).causal:
        ds = e.select(causal_mask(e, ir.shape_of(ds)), ds, e.zeros_like(ds))
    dq = e.dot(ds, b, ((3,), (2,)), HEADS)
    dk = e.dot(ds, a, ((2,), (2,)), HEADS)
    return _narrowed(e, dtype, dq, sum_heads(e, dk, own), sum_heads(e, dv, own))
