"""Pullbacks of gather and scatter: each is made of the other."""

from __future__ import annotations

from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.table import Cotangents, Needs, one, pullback


@pullback(prim.GatherOp)
def gather(e: Emitter, op: prim.GatherOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = zeros with ȳ added where it was read."""
    x, *indices = ir.operands_of(op)
    dims = cast(tuple[int, ...], op.dims.data)
    x_bar = e.scatter(e.zeros_like(x), one(cts), indices, dims, "add")
    return (x_bar, *(None for _ in indices))


@pullback(prim.ScatterOp)
def scatter(e: Emitter, op: prim.ScatterOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """Set: ū = ȳ there and x̄ = ȳ elsewhere; add: ū = ȳ there, x̄ = ȳ; mul, max, min: see below."""
    x, updates, *indices = ir.operands_of(op)
    g, kind, at = one(cts), op.kind.data, _Places(e, indices, cast(tuple[int, ...], op.dims.data))
    if kind == "set":
        x_bar = at.write(g, e.zeros_like(updates), "set") if needs[0] else None
        updates_bar = at.read(g) if needs[1] else None
    elif kind == "add":
        x_bar, updates_bar = g, at.read(g) if needs[1] else None
    elif kind == "mul":
        x_bar = e.mul(g, e.conj(at.write(e.const_like(1, x), updates, "mul"))) if needs[0] else None
        updates_bar = _factor(e, at, x, updates, op.y, g) if needs[1] else None
    else:
        x_bar, updates_bar = _extremum(e, at, x, updates, op.y, g)
    return (x_bar, updates_bar, *(None for _ in indices))


class _Places:
    """Reads and writes at the scatter's positions."""

    def __init__(self, e: Emitter, indices: list[SSAValue], dims: tuple[int, ...]) -> None:
        self._e, self._indices, self._dims = e, indices, dims

    def read(self, x: SSAValue) -> SSAValue:
        return self._e.gather(x, self._indices, self._dims)

    def write(self, x: SSAValue, updates: SSAValue, kind: str) -> SSAValue:
        return self._e.scatter(x, updates, self._indices, self._dims, kind)


def _factor(e: Emitter, at: _Places, x: SSAValue, updates: SSAValue, y: SSAValue, g: SSAValue) -> SSAValue:
    """ū = ȳ·(the product of the other factors)*, which is y/u for u ≠ 0, p for the only zero, 0 with more of them.

    p is the product with the zeros left out. Right once where there are more zeros (torch refuses twice there).
    """
    zero, one_ = e.zeros_like(updates), e.const_like(1, updates)
    vanishes = e.cmp("eq", updates, zero)
    p = at.write(x, e.select(vanishes, one_, updates), "mul")
    zeros = at.read(at.write(e.zeros_like(x), e.select(vanishes, one_, zero), "add"))
    for_zero = e.select(e.cmp("eq", zeros, one_), at.read(p), zero)
    others = e.select(vanishes, for_zero, e.div(at.read(y), e.select(vanishes, one_, updates)))
    return e.mul(at.read(g), e.conj(others))


def _extremum(
    e: Emitter, at: _Places, x: SSAValue, updates: SSAValue, y: SSAValue, g: SSAValue
) -> tuple[SSAValue, SSAValue]:
    """ȳ shared by x and the updates that equal y (torch's scatter_reduce with amax)."""
    dtype = ir.dtype_of(x)
    stays = e.convert(e.cmp("eq", x, y), dtype)
    wins = e.convert(e.cmp("eq", updates, at.read(y)), dtype)
    share = e.div(g, at.write(stays, wins, "add"))
    return e.mul(stays, share), e.mul(wins, at.read(share))
