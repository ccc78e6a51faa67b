"""Resizing: nearest, linear in one to three dimensions, cubic; channel shuffles."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import along, move
from isthmus.passes.decompose.promotion import like, wide
from isthmus.passes.decompose.rules.padding import replicated
from isthmus.passes.decompose.table import Call, Refusal, decomposition
from isthmus.sizes import Dim, exact_quotient

Factors = Sequence[float] | None


def _scales(
    call: Call, x: SSAValue, factors: Sequence[float | None] | None
) -> list[tuple[int, Dim, Dim, float | None]]:
    """(dimension, size before, size after, the user's factor) for each spatial dimension."""
    rank = len(ir.shape_of(x)) - 2
    given = list(factors) if factors else [None] * rank
    return [(2 + k, ir.shape_of(x)[2 + k], call.shape()[2 + k], given[k]) for k in range(rank)]


def _ratio(e: Emitter, n: Dim, out: Dim, factor: float | None, dtype: str) -> SSAValue:
    """Source steps for one step of the result: 1/factor where the user gave one, else n/out."""
    if factor is not None and factor > 0:
        return e.const(1.0 / factor, (), dtype)
    if isinstance(n, int) and isinstance(out, int):
        return e.const(n / out, (), dtype)
    return e.div(e.number(n, dtype), e.number(out, dtype))


def _taken(e: Emitter, x: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    return move(e, e.gather(x, (index,), (dim,)), 0, dim)


# ---- nearest


def _nearest(e: Emitter, call: Call, x: SSAValue, factors: Sequence[float | None] | None, exact: bool) -> SSAValue:
    for dim, n, out, factor in _scales(call, x, factors):
        times = exact_quotient(out, n)
        if times is not None and isinstance(times, int) and (factor is None or factor == times):
            x = _repeated(e, x, dim, times)
            continue
        ratio = e.broadcast(_ratio(e, n, out, factor, "f32"), (out,), ())
        place = e.convert(e.iota((out,), 0), "f32")
        place = e.shifted(place, 0.5) if exact else place
        source = e.convert(e.floor(e.mul(place, ratio)), "i64")
        x = _taken(e, x, dim, e.min(source, e.full(n - 1, (out,), "i64")))
    return x


def _repeated(e: Emitter, x: SSAValue, dim: int, times: int) -> SSAValue:
    shape = ir.shape_of(x)
    spread = (*shape[: dim + 1], times, *shape[dim + 1 :])
    y = e.broadcast(x, spread, [d + (d > dim) for d in range(len(shape))])
    return e.reshape(y, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


def _spatial(kind: str) -> list[str]:
    return [f"{kind}{k}d" for k in (1, 2, 3)]


@decomposition(*(f"{n}.vec" for n in _spatial("upsample_nearest")))
def nearest(e: Emitter, call: Call, x: SSAValue, size: object, factors: Factors) -> SSAValue:
    """y[i] = x[⌊i·n/m⌋]"""
    return _nearest(e, call, x, factors, exact=False)


@decomposition(*(f"{n}.default" for n in _spatial("upsample_nearest")))
def nearest_by_size(e: Emitter, call: Call, x: SSAValue, size: object, *factors: float | None) -> SSAValue:
    return _nearest(e, call, x, factors, exact=False)


@decomposition(*(f"{n}.vec" for n in _spatial("_upsample_nearest_exact")))
def nearest_exact(e: Emitter, call: Call, x: SSAValue, size: object, factors: Factors) -> SSAValue:
    """y[i] = x[⌊(i + ½)·n/m⌋]"""
    return _nearest(e, call, x, factors, exact=True)


@decomposition(*(f"{n}.default" for n in _spatial("_upsample_nearest_exact")))
def nearest_exact_by_size(e: Emitter, call: Call, x: SSAValue, size: object, *factors: float | None) -> SSAValue:
    return _nearest(e, call, x, factors, exact=True)


# ---- linear


def _source_places(
    e: Emitter, n: Dim, out: Dim, factor: float | None, align: bool, dtype: str, clamp: bool
) -> SSAValue:
    """Where in the source each element of the result stands."""
    i = e.iota((out,), 0, dtype)
    if align:
        if out == 1:
            return e.zeros_like(i)
        if isinstance(n, int) and isinstance(out, int):
            return e.scaled(i, (n - 1) / (out - 1))
        gaps = [e.number(v - 1, dtype) for v in (n, out)]
        return e.mul(i, e.broadcast(e.div(*gaps), (out,), ()))
    ratio = e.broadcast(_ratio(e, n, out, factor, dtype), (out,), ())
    place = e.shifted(e.mul(e.shifted(i, 0.5), ratio), -0.5)
    return e.max(place, e.zeros_like(place)) if clamp else place


def _linear_along(e: Emitter, x: SSAValue, dim: int, n: Dim, out: Dim, factor: float | None, align: bool) -> SSAValue:
    """(1 - λ)·x[i] + λ·x[i + 1]"""
    if n == out and factor in (None, 1):
        return x
    times = exact_quotient(out, n)
    if isinstance(times, int) and not align and (factor is None or factor == times):
        return _phases(e, x, dim, n, times)
    place = _source_places(e, n, out, factor, align, ir.dtype_of(x), clamp=True)
    low = e.min(e.convert(e.floor(place), "i64"), e.full(n - 1, (out,), "i64"))
    high = e.min(e.shifted(low, 1), e.full(n - 1, (out,), "i64"))
    weight = e.sub(place, e.convert(low, ir.dtype_of(x)))
    weight = e.min(e.max(weight, e.zeros_like(weight)), e.const_like(1, weight))
    below, above = _taken(e, x, dim, low), _taken(e, x, dim, high)
    rest = e.sub(e.const_like(1, weight), weight)
    return e.add(e.mul(along(e, rest, below, dim), below), e.mul(along(e, weight, above, dim), above))


def _phases(e: Emitter, x: SSAValue, dim: int, n: Dim, times: int) -> SSAValue:
    """A whole factor: result i·times + p stands at i + (p + ½)/times - ½, the same blend of neighbours for all i."""
    edged = replicated(e, x, dim, 1, 1)
    parts: list[SSAValue] = []
    for p in range(times):
        offset = (p + 0.5) / times - 0.5
        first = 0 if offset < 0 else 1
        weight = offset + 1 - first
        below = e.slice(edged, dim, first, first + n)
        above = e.slice(edged, dim, first + 1, first + 1 + n) if weight else below
        blend = e.add(e.scaled(below, 1 - weight), e.scaled(above, weight)) if weight else below
        parts.append(e.expand_dims(blend, (dim + 1,)))
    shape = ir.shape_of(x)
    return e.reshape(e.concat(parts, dim + 1), (*shape[:dim], n * times, *shape[dim + 1 :]))


def _linear(e: Emitter, call: Call, x: SSAValue, align: bool, factors: Sequence[float | None] | None) -> SSAValue:
    if not ir.is_float(call.dtype()):
        raise Refusal("linear interpolation of integers is left to the library")
    y = wide(e, x)
    for dim, n, out, factor in reversed(_scales(call, x, factors)):
        y = _linear_along(e, y, dim, n, out, factor, align)
    return e.convert(y, call.dtype())


LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")


@decomposition(*(f"{n}.vec" for n in LINEAR))
def linear(e: Emitter, call: Call, x: SSAValue, size: object, align: bool, factors: Factors) -> SSAValue:
    return _linear(e, call, x, align, factors)


@decomposition(*(f"{n}.default" for n in LINEAR))
def linear_by_size(e: Emitter, call: Call, x: SSAValue, size: object, align: bool, *factors: float | None) -> SSAValue:
    return _linear(e, call, x, align, factors)


# ---- cubic


def cubic_weights(e: Emitter, t: SSAValue) -> list[SSAValue]:
    """Keys' convolution kernel with a = -0.75 at distances 1 + t, t, 1 - t, 2 - t (IEEE ASSP-29, 1981)"""
    a = -0.75

    def near(d: SSAValue) -> SSAValue:
        inner = e.sub(e.scaled(d, a + 2), e.const_like(a + 3, d))
        return e.shifted(e.mul(e.mul(inner, d), d), 1)

    def far(d: SSAValue) -> SSAValue:
        inner = e.shifted(e.mul(e.sub(e.scaled(d, a), e.const_like(5 * a, d)), d), 8 * a)
        return e.sub(e.mul(inner, d), e.const_like(4 * a, d))

    rest = e.sub(e.const_like(1, t), t)
    return [far(e.shifted(t, 1)), near(t), near(rest), far(e.shifted(rest, 1))]


def _cubic_along(e: Emitter, x: SSAValue, dim: int, n: Dim, out: Dim, factor: float | None, align: bool) -> SSAValue:
    place = _source_places(e, n, out, factor, align, ir.dtype_of(x), clamp=False)
    base = e.floor(place)
    low = e.convert(base, "i64")
    total: SSAValue | None = None
    for k, weight in enumerate(cubic_weights(e, e.sub(place, base))):
        index = e.shifted(low, k - 1)
        held = e.max(e.min(index, like(e, n - 1, index)), e.zeros_like(index))
        y = _taken(e, x, dim, held)
        term = e.mul(y, along(e, weight, y, dim))
        total = term if total is None else e.add(total, term)
    assert total is not None
    return total


def _cubic(e: Emitter, call: Call, x: SSAValue, align: bool, factors: Sequence[float | None] | None) -> SSAValue:
    if not ir.is_float(call.dtype()):
        raise Refusal("cubic interpolation of integers is left to the library")
    y = wide(e, x)
    for dim, n, out, factor in reversed(_scales(call, x, factors)):
        y = _cubic_along(e, y, dim, n, out, factor, align)
    return e.convert(y, call.dtype())


@decomposition("upsample_bicubic2d.vec")
def cubic(e: Emitter, call: Call, x: SSAValue, size: object, align: bool, factors: Factors) -> SSAValue:
    return _cubic(e, call, x, align, factors)


@decomposition("upsample_bicubic2d.default")
def cubic_by_size(e: Emitter, call: Call, x: SSAValue, size: object, align: bool, *factors: float | None) -> SSAValue:
    return _cubic(e, call, x, align, factors)


# ---- channels into pixels


@decomposition("pixel_shuffle.default")
def pixel_shuffle(e: Emitter, call: Call, x: SSAValue, r: int) -> SSAValue:
    """[c·r², h, w] → [c, h·r, w·r]"""
    *lead, channels, h, w = ir.shape_of(x)
    n = len(lead)
    y = e.reshape(x, (*lead, channels // (r * r), r, r, h, w))
    perm = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return e.reshape(e.transpose(y, perm), call.shape())


@decomposition("pixel_unshuffle.default")
def pixel_unshuffle(e: Emitter, call: Call, x: SSAValue, r: int) -> SSAValue:
    """[c, h·r, w·r] → [c·r², h, w]"""
    *lead, channels, h, w = ir.shape_of(x)
    n = len(lead)
    y = e.reshape(x, (*lead, channels, h // r, r, w // r, r))
    perm = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return e.reshape(e.transpose(y, perm), call.shape())


@decomposition("channel_shuffle.default", "native_channel_shuffle.default")
def channel_shuffle(e: Emitter, call: Call, x: SSAValue, groups: int) -> SSAValue:
    """[g, c/g] of the channels transposed"""
    n, channels, *spatial = ir.shape_of(x)
    y = e.reshape(x, (n, groups, channels // groups, *spatial))
    return e.reshape(e.transpose(y, (0, 2, 1, *range(3, 3 + len(spatial)))), call.shape())
