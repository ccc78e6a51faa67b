"""Pullbacks of structured ops, with a cotangent on every result: the first derivative reads the auxiliary ones too."""

from __future__ import annotations

import math
from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.attention import Attention, repeat_heads, sums_of
from isthmus.passes.autodiff.rules.along import count, divided, restore
from isthmus.passes.autodiff.table import Cotangents, Needs, one, pullback


@pullback(prim.MomentsOp)
def moments(e: Emitter, op: prim.MomentsOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """m̄ and v̄ of mean and variance over n elements: x̄ = m̄/n + (2v̄/n)·(x - mean)."""
    x, dims = op.x, cast(tuple[int, ...], op.dims.data)
    g_mean, g_var = cts
    n = count(x, dims)
    x_bar: SSAValue | None = None
    if g_var is not None:
        centred = e.sub(x, restore(e, op.mean, x, dims))
        x_bar = e.mul(restore(e, divided(e, e.scaled(g_var, 2), n), x, dims), centred)
    if g_mean is not None:
        shift = restore(e, divided(e, g_mean, n), x, dims)
        x_bar = shift if x_bar is None else e.add(x_bar, shift)
    return (x_bar,)


@pullback(prim.SoftmaxOp)
def softmax(e: Emitter, op: prim.SoftmaxOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = y·(ȳ - Σ ȳ·y)."""
    g, y, dims = one(cts), op.y, (cast(int, op.dim.data),)
    return (e.mul(y, e.sub(g, restore(e, e.sum(e.mul(g, y), dims), y, dims))),)


@pullback(prim.LogSoftmaxOp)
def log_softmax(e: Emitter, op: prim.LogSoftmaxOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = ȳ - eʸ·Σ ȳ."""
    g, y, dims = one(cts), op.y, (cast(int, op.dim.data),)
    return (e.sub(g, e.mul(e.exp(y), restore(e, e.sum(g, dims), y, dims))),)


@pullback(prim.CrossEntropyOp)
def cross_entropy(e: Emitter, op: prim.CrossEntropyOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """With p = e^(logits - lse) and ȳ = loss's cotangent, 0 where ignored: p·(ȳ + lse's) - onehot(target)·ȳ."""
    logits, target = op.logits, op.target
    g_loss, g_lse = cts
    p = e.exp(e.sub(logits, restore(e, op.lse, logits, (1,))))
    if g_loss is None:
        assert g_lse is not None
        return e.mul(p, restore(e, g_lse, logits, (1,))), None
    counted = e.cmp("ne", target, e.const_like(op.ignore.data, target))
    g_loss = e.select(counted, g_loss, e.zeros_like(g_loss))
    weight = g_loss if g_lse is None else e.add(g_loss, g_lse)
    hit = e.cmp("eq", e.iota(ir.shape_of(logits), 1), restore(e, target, logits, (1,)))
    row = restore(e, g_loss, logits, (1,))
    return e.sub(e.mul(p, restore(e, weight, logits, (1,))), e.select(hit, row, e.zeros_like(row))), None


@pullback(prim.AttentionOp)
def attention(e: Emitter, op: prim.AttentionOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """With δ = Σ ȳ·o - lse's cotangent per row: attention_bwd, and for the mask p·(ȳ vᵀ - δ)."""
    g, g_lse = cts
    q, k, v, o, lse, mask = op.q, op.k, op.v, op.o, op.lse, op.mask
    wide = ir.dtype_of(lse)
    delta = None if g is None else e.sum(e.mul(e.convert(g, wide), e.convert(o, wide)), [3])
    if g_lse is not None:
        first, rest = sums_of(e, g_lse)  # of two parts, whoever reads one takes it from what is left by the other
        g_lse = first if rest is None else rest
        delta = e.neg(g_lse) if delta is None else e.sub(delta, g_lse)
    assert delta is not None
    g = e.zeros_like(o) if g is None else g
    found: list[SSAValue | None] = [None, None, None]
    if any(needs[:3]):
        found = list(Attention.of(op).backward(e, g, (q, k, v), (delta, lse), mask))
    if mask is not None:
        found.append(_mask(e, op, mask, g, delta) if needs[3] else None)
    return tuple(found)


def _mask(e: Emitter, op: prim.AttentionOp, mask: SSAValue, g: SSAValue, delta: SSAValue) -> SSAValue:
    """p·(ȳ vᵀ - δ) with p = exp(scale·q kᵀ + mask - lse), 0 where no key is allowed."""
    heads = ir.shape_of(op.q)[1]
    k, v = repeat_heads(e, op.k, heads), repeat_heads(e, op.v, heads)
    q, k, v, added, g = (e.convert(x, ir.dtype_of(op.lse)) for x in (op.q, k, v, mask, g))
    last, heads = ((3,), (3,)), ((0, 1), (0, 1))
    scores = e.add(e.scaled(e.dot(q, k, last, heads), op.scale.data), added)
    first, rest = sums_of(e, op.lse)
    lse = restore(e, first if rest is None else rest, scores, (3,))
    if rest is not None:
        scores = e.sub(scores, restore(e, first, scores, (3,)))
    nothing = e.const_like(-math.inf, scores)
    allowed = e.cmp("ne", lse, nothing)
    if op.causal.data is True:
        shape = ir.shape_of(scores)
        allowed = e.and_(allowed, e.cmp("le", e.iota(shape, 3), e.iota(shape, 2)))
    p = e.exp(e.select(allowed, e.sub(scores, lse), nothing))
    g_p = e.sub(e.dot(g, v, last, heads), restore(e, delta, scores, (3,)))
    return e.convert(e.select(allowed, e.mul(p, g_p), e.zeros_like(scores)), ir.dtype_of(mask))
