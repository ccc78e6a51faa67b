"""Sampling images at points that are data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import like, wide
from isthmus.passes.decompose.rules.activations import within
from isthmus.passes.decompose.rules.interpolation import cubic_weights
from isthmus.passes.decompose.table import Call, Refusal, decomposition
from isthmus.sizes import Dim

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def _position(e: Emitter, x: SSAValue, size: Dim, align: bool) -> SSAValue:
    """From [-1, 1] to elements: the ends are the centres of the outer elements, or their edges."""
    n = like(e, size, x)
    one = e.const_like(1, x)
    if align:
        return e.mul(e.scaled(e.add(x, one), 0.5), e.sub(n, one))
    return e.scaled(e.sub(e.mul(e.add(x, one), n), one), 0.5)


def _padded(e: Emitter, x: SSAValue, size: Dim, padding: int, align: bool) -> SSAValue:
    """Positions outside held at the border, or reflected at it (at the edges of the outer elements unless aligned)."""
    if padding == ZEROS:
        return x
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align else (-0.5, size)
        x = _reflected(e, x, low, span)
    return within(e, x, 0, size - 1)


def _reflected(e: Emitter, x: SSAValue, low: float, span: Dim) -> SSAValue:
    """A zigzag between low and low + span"""
    if span == 0:
        return e.zeros_like(x)
    width = like(e, span, x)
    distance = e.abs(e.shifted(x, -low))
    rest = e.rem(distance, width)
    turns = e.floor(e.div(distance, width))
    odd = e.cmp("ne", e.rem(turns, e.const_like(2, turns)), e.zeros_like(turns))
    return e.shifted(e.select(odd, e.sub(width, rest), rest), low)


def _element(e: Emitter, image: SSAValue, places: Sequence[SSAValue]) -> SSAValue:
    """image[n, :, places[n, ...]] as [n, c, ...], 0 outside; places are whole floats."""
    shape = ir.shape_of(places[0])
    inside: SSAValue | None = None
    indices: list[SSAValue] = [e.iota(shape, 0)]
    for d, place in enumerate(places):
        top = like(e, ir.shape_of(image)[2 + d] - 1, place)
        zero = e.zeros_like(place)
        within = e.and_(e.cmp("ge", place, zero), e.cmp("le", place, top))
        inside = within if inside is None else e.and_(inside, within)
        held = e.select(within, place, zero)
        indices.append(e.convert(held, "i64"))
    assert inside is not None
    rank = len(shape)
    found = e.gather(image, indices, (0, *range(2, 2 + len(places))))  # [n, ..., c]
    y = e.transpose(found, (0, rank, *range(1, rank)))
    return e.select(e.broadcast(inside, ir.shape_of(y), (0, *range(2, rank + 1))), y, e.zeros_like(y))


def _weighted(e: Emitter, y: SSAValue, weight: SSAValue) -> SSAValue:
    rank = len(ir.shape_of(y))
    return e.mul(y, e.broadcast(weight, ir.shape_of(y), (0, *range(2, rank))))


def _linear(e: Emitter, image: SSAValue, places: Sequence[SSAValue]) -> SSAValue:
    """The 2ⁿ neighbours, each weighted by its nearness in every dimension"""
    lows = [e.floor(p) for p in places]
    total: SSAValue | None = None
    for corner in itertools.product((0, 1), repeat=len(places)):
        at = [e.shifted(low, bit) for low, bit in zip(lows, corner, strict=True)]
        weight: SSAValue | None = None
        for place, low, bit in zip(places, lows, corner, strict=True):
            high = e.shifted(low, 1)
            near = e.sub(place, low) if bit else e.sub(high, place)
            weight = near if weight is None else e.mul(weight, near)
        assert weight is not None
        term = _weighted(e, _element(e, image, at), weight)
        total = term if total is None else e.add(total, term)
    assert total is not None
    return total


def _cubic(e: Emitter, image: SSAValue, places: Sequence[SSAValue], padding: int, align: bool) -> SSAValue:
    """16 neighbours with the weights of cubic interpolation"""
    lows = [e.floor(p) for p in places]
    weights = [cubic_weights(e, e.sub(p, low)) for p, low in zip(places, lows, strict=True)]
    total: SSAValue | None = None
    for taps in itertools.product(range(4), repeat=len(places)):
        at = [
            e.round(_padded(e, e.shifted(low, tap - 1), ir.shape_of(image)[2 + d], padding, align))
            for d, (low, tap) in enumerate(zip(lows, taps, strict=True))
        ]
        weight = weights[0][taps[0]]
        for d in range(1, len(places)):
            weight = e.mul(weight, weights[d][taps[d]])
        term = _weighted(e, _element(e, image, at), weight)
        total = term if total is None else e.add(total, term)
    assert total is not None
    return total


@decomposition("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(e: Emitter, call: Call, x: SSAValue, grid: SSAValue, mode: int, padding: int, align: bool) -> SSAValue:
    """x at the points of the grid, whose last dimension names the last dimension of x first"""
    image, points = wide(e, x), wide(e, grid)
    if not ir.is_float(ir.dtype_of(image)):
        raise Refusal("sampling other than floats is left to the library")
    rank = len(ir.shape_of(x)) - 2
    shape = ir.shape_of(points)[:-1]
    places: list[SSAValue] = []
    for d in range(rank):
        k = rank - 1 - d
        coordinate = e.reshape(e.slice(points, rank + 1, k, k + 1), shape)
        size = ir.shape_of(image)[2 + d]
        place = _position(e, coordinate, size, align)
        places.append(place if mode == BICUBIC else _padded(e, place, size, padding, align))
    if mode == NEAREST:
        y = _element(e, image, [e.round(p) for p in places])
    else:
        y = _linear(e, image, places) if mode == BILINEAR else _cubic(e, image, places, padding, align)
    return e.convert(y, call.dtype())


@decomposition("affine_grid_generator.default")
def affine_grid(e: Emitter, call: Call, theta: SSAValue, size: Sequence[Dim], align: bool) -> SSAValue:
    """θ·(position, 1) for every position of the image, from -1 to 1 in each dimension"""
    spatial = call.shape()[1:-1]
    dtype = ir.dtype_of(theta)
    columns: list[SSAValue] = []
    for d in reversed(range(len(spatial))):
        columns.append(_steps(e, spatial, d, align, dtype))
    columns.append(e.const(1, spatial, dtype))
    base = e.concat([e.expand_dims(c, (len(spatial),)) for c in columns], len(spatial))
    last = len(spatial)
    y = e.dot(base, theta, ((last,), (2,)))  # [*spatial, n, rank]
    return e.transpose(y, (last, *range(last), last + 1))


def _steps(e: Emitter, spatial: Sequence[Dim], d: int, align: bool, dtype: str) -> SSAValue:
    i, n = e.iota(spatial, d, dtype), e.full(spatial[d], spatial, dtype)
    if align:
        gaps = e.max(e.shifted(n, -1), e.const_like(1, n))
        whole = e.shifted(e.div(e.scaled(i, 2), gaps), -1)
        return e.select(e.cmp("gt", n, e.const_like(1, n)), whole, e.zeros_like(i))
    return e.shifted(e.div(e.shifted(e.scaled(i, 2), 1), n), -1)
