"""Softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.attention import sums_of
from isthmus.passes.decompose.dims import at_least_1d, axis
from isthmus.passes.decompose.promotion import inside, like, wide
from isthmus.passes.decompose.rules.linear_algebra import broadcast_shapes
from isthmus.passes.decompose.rules.random import dropped
from isthmus.passes.decompose.rules.writes import on_diagonal
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim

# ---- softmax


def _along(e: Emitter, call: Call, x: SSAValue, dim: int, log: bool) -> SSAValue:
    """Softmax or its logarithm, in float32 for narrower floats, rounded once."""
    y = at_least_1d(e, e.convert(x, inside(call.dtype())))
    at = axis(y, dim)
    z = e.log_softmax(y, at) if log else e.softmax(y, at)
    return e.convert(e.reshape(z, call.shape()), call.dtype())


@decomposition("softmax.int", "_softmax.default", "special_softmax.default")
def softmax(e: Emitter, call: Call, x: SSAValue, dim: int, dtype: object) -> SSAValue:
    return _along(e, call, x, dim, log=False)


@decomposition("log_softmax.int", "_log_softmax.default", "special_log_softmax.default")
def log_softmax(e: Emitter, call: Call, x: SSAValue, dim: int, dtype: object) -> SSAValue:
    return _along(e, call, x, dim, log=True)


@decomposition("_safe_softmax.default")
def safe_softmax(e: Emitter, call: Call, x: SSAValue, dim: int, dtype: object) -> SSAValue:
    """Softmax that gives 0 where everything is masked with -inf"""
    y = at_least_1d(e, e.convert(x, call.dtype()))
    at = axis(y, dim)
    masked = e.reduce("and", e.cmp("eq", y, like(e, -math.inf, y)), (at,))
    spread = e.broadcast(masked, ir.shape_of(y), [d for d in range(len(ir.shape_of(y))) if d != at])
    z = e.convert(e.softmax(wide(e, e.select(spread, e.zeros_like(y), y)), at), call.dtype())
    return e.reshape(e.select(spread, e.zeros_like(z), z), call.shape())


@decomposition("_softmax_backward_data.default")
def softmax_backward(e: Emitter, call: Call, g: SSAValue, y: SSAValue, dim: int, dtype: str) -> SSAValue:
    """(g - Σ g·y)·y"""
    a, b = (at_least_1d(e, wide(e, v)) for v in (g, y))
    at = axis(b, dim)
    total = e.sum(e.mul(a, b), (at,))
    spread = e.broadcast(total, ir.shape_of(b), [d for d in range(len(ir.shape_of(b))) if d != at])
    return e.convert(e.reshape(e.mul(e.sub(a, spread), b), call.shape()), call.dtype())


@decomposition("_log_softmax_backward_data.default")
def log_softmax_backward(e: Emitter, call: Call, g: SSAValue, y: SSAValue, dim: int, dtype: str) -> SSAValue:
    """g - eʸ·Σ g"""
    a, b = (at_least_1d(e, wide(e, v)) for v in (g, y))
    at = axis(b, dim)
    total = e.sum(a, (at,))
    spread = e.broadcast(total, ir.shape_of(b), [d for d in range(len(ir.shape_of(b))) if d != at])
    return e.convert(e.reshape(e.sub(a, e.mul(e.exp(b), spread)), call.shape()), call.dtype())


# ---- attention


def _batched(e: Emitter, x: SSAValue, lead: Sequence[Dim]) -> SSAValue:
    """[B, H, L, E] from [..., L, E] whose leading dimensions broadcast to `lead`."""
    spread = e.broadcast_to(x, (*lead, *ir.shape_of(x)[-2:]))
    first: Dim = 1
    for size in lead[:-1]:
        first = first * size
    return e.reshape(spread, (first, lead[-1] if lead else 1, *ir.shape_of(x)[-2:]))


def _shared_heads(e: Emitter, x: SSAValue, heads: Dim) -> SSAValue:
    """Each head of keys or values repeated for the queries that share it."""
    *lead, own, length, width = ir.shape_of(x)
    if own == heads:
        return x
    if not isinstance(own, int) or not isinstance(heads, int):
        raise Refusal("a symbolic number of heads is left to the library")
    n = len(lead)
    wider = (*lead, own, heads // own, length, width)
    spread = e.broadcast(x, wider, (*range(n + 1), n + 2, n + 3))
    return e.reshape(spread, (*lead, heads, length, width))


def _additive(e: Emitter, mask: SSAValue, dtype: str) -> SSAValue:
    """A mask to add: 0 where attention is allowed, -inf elsewhere"""
    if ir.dtype_of(mask) != "i1":
        return e.convert(mask, dtype)
    shape = ir.shape_of(mask)
    return e.select(mask, e.const(0, shape, dtype), e.const(-math.inf, shape, dtype))


def _scaled(e: Emitter, q: SSAValue, scale: Scalar | None) -> tuple[SSAValue, float]:
    """The queries and a number that scores are multiplied by; 1/√width is in the queries where the width is unknown."""
    width = ir.shape_of(q)[-1]
    if scale is None:
        if isinstance(width, int):
            return q, 1 / math.sqrt(width) if width else 1.0
        root = e.rsqrt(e.convert(e.size(width), ir.dtype_of(wide(e, q))))
        return e.convert(e.mul(wide(e, q), e.broadcast(root, ir.shape_of(q), ())), ir.dtype_of(q)), 1.0
    if not isinstance(scale, (int, float)):
        raise Refusal("a scale that is a tensor is left to the library")
    return q, float(scale)


def _share(heads: Dim, *xs: SSAValue) -> bool:
    """Whether these have the same heads, fewer than the queries, that attention shares without repeating them."""
    own = {ir.shape_of(x)[-3] for x in xs}
    narrow = any(ir.dtype_of(x) not in ("f32", "f64") for x in xs)  # the library's kernels repeat them
    few = own.pop()
    return not own and not narrow and isinstance(few, int) and isinstance(heads, int) and 0 < few < heads


@decomposition("scaled_dot_product_attention.default")
def attention(
    e: Emitter,
    call: Call,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    mask: SSAValue | None,
    dropout: Scalar,
    causal: bool,
    scale: Scalar | None,
    grouped: bool,
) -> SSAValue:
    """softmax(scale·q kᵀ + mask) v; rows without any allowed key give 0

    Narrower floats than float32 that are not [batch, heads, length, width] eager computes in float32, rounded once.
    """
    if len(ir.shape_of(q)) != 4:
        q, k, v = (wide(e, x) for x in (q, k, v))
    q, number = _scaled(e, q, scale)
    heads = ir.shape_of(q)[-3:-2]
    if grouped and not (dropout == 0 and _share(heads[0], k, v)):
        k, v, grouped = _shared_heads(e, k, heads[0]), _shared_heads(e, v, heads[0]), False
    lead, own = (ir.shape_of(x)[: -3 if grouped else -2] for x in (q, k))
    lead = own = broadcast_shapes(broadcast_shapes(lead, own), ir.shape_of(v)[: -3 if grouped else -2])
    if grouped:
        lead, own = (*lead, heads[0]), (*own, ir.shape_of(k)[-3])
    parts = [_batched(e, q, lead), _batched(e, k, own), _batched(e, v, own)]
    shape = (*lead, ir.shape_of(q)[-2], ir.shape_of(k)[-2])
    if mask is not None:
        given = mask if ir.dtype_of(mask) == "i1" and dropout == 0 else _additive(e, mask, ir.dtype_of(q))
        mask = e.reshape(e.broadcast_to(given, shape), (*ir.shape_of(parts[0])[:3], shape[-1]))
    if dropout != 0:
        output = _with_dropout(e, call, parts, mask, dropout, causal, number)
    else:
        output, _ = e.attention(parts[0], parts[1], parts[2], mask, number, causal)
    return e.convert(e.reshape(output, call.shape()), call.dtype())


def _with_dropout(
    e: Emitter,
    call: Call,
    parts: Sequence[SSAValue],
    mask: SSAValue | None,
    dropout: Scalar,
    causal: bool,
    scale: float,
) -> SSAValue:
    """The same written out, with elements of the softmax dropped."""
    q, k, v = parts
    scores = e.dot(q, k, ((3,), (3,)), ((0, 1), (0, 1)))
    x = e.scaled(wide(e, scores), scale)
    if mask is not None:
        x = e.add(x, e.convert(mask, ir.dtype_of(x)))
    if causal:
        x = e.select(causal_mask(e, ir.shape_of(x)), x, like(e, -math.inf, x))
    empty = e.reduce("and", e.cmp("eq", x, like(e, -math.inf, x)), (3,))
    masked = e.broadcast(empty, ir.shape_of(x), (0, 1, 2))
    weights = e.softmax(e.select(masked, e.zeros_like(x), x), 3)
    weights = e.convert(e.select(masked, e.zeros_like(x), weights), ir.dtype_of(q))
    if not isinstance(dropout, (int, float)):
        raise Refusal("a chance that is a tensor is left to the library")
    # torch's own stream, as eager draws it: see docs/decisions/dropout-of-attention-is-torchs.md
    noise = call.library_noise(1 - dropout, weights)
    kept = dropped(e, call, weights, dropout, e.cmp("ne", noise, e.zeros_like(noise)))
    return e.dot(kept, v, ((3,), (2,)), ((0, 1), (0, 1)))


def causal_mask(e: Emitter, shape: Sequence[Dim]) -> SSAValue:
    """True where the position of the key (last dimension) is not after that of the query."""
    rank = len(shape)
    return on_diagonal(e, shape, rank - 2, rank - 1, 0, "le")


FLASH = "_scaled_dot_product_flash_attention_for_cpu.default"


@decomposition(FLASH)
def flash_attention_for_cpu(
    e: Emitter,
    call: Call,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    dropout: Scalar,
    causal: bool,
    mask: SSAValue | None,
    scale: Scalar | None,
) -> tuple[SSAValue, SSAValue]:
    added = None
    if mask is not None:
        shape = (*ir.shape_of(q)[:3], ir.shape_of(k)[2])
        added = e.broadcast_to(_additive(e, mask, ir.dtype_of(q)), shape)
    q, number = _scaled(e, q, scale)
    output, lse = e.attention(q, k, v, added, number, causal)
    first, rest = sums_of(e, lse)
    return output, e.convert(first if rest is None else e.add(first, rest), call.dtype(1))
