"""Moves that several rules share: restoring reduced dimensions, reading and adding along one dimension."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.ir import LiteralValue
from isthmus.sizes import Dim


def restore(e: Emitter, y: SSAValue, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Repeat y, which lacks `dims` of x, along them."""
    shape = ir.shape_of(x)
    return e.broadcast(y, shape, [d for d in range(len(shape)) if d not in dims])


def count(x: SSAValue, dims: Sequence[int]) -> Dim:
    """Give the number of elements along dims."""
    number: Dim = 1
    for d in dims:
        number = number * ir.shape_of(x)[d]
    return number


def divided(e: Emitter, x: SSAValue, number: Dim) -> SSAValue:
    """y = x / number."""
    return e.div(x, e.full(number, ir.shape_of(x), ir.dtype_of(x)))


def positions(e: Emitter, index: SSAValue, dim: int) -> tuple[SSAValue, ...]:
    """Give index operands of gather and scatter that keep every position but take `index` in dim."""
    shape, dtype = ir.shape_of(index), ir.dtype_of(index)
    return tuple(index if d == dim else e.iota(shape, d, dtype) for d in range(len(shape)))


def add_along(e: Emitter, updates: SSAValue, index: SSAValue, like: SSAValue, dim: int) -> SSAValue:
    """Zeros like `like`, with updates[.., k, ..] added at index[.., k, ..] in dim."""
    rank = len(ir.shape_of(like))
    return e.scatter(e.zeros_like(like), updates, positions(e, index, dim), range(rank), "add")


def shifted_up(e: Emitter, x: SSAValue, dim: int, by: int, fill: LiteralValue) -> SSAValue:
    """y[k] = x[k - by] along dim, `fill` before."""
    size = ir.shape_of(x)[dim]
    return e.pad(e.slice(x, dim, 0, size - by), dim, by, 0, 0, fill)


def shifted_down(e: Emitter, x: SSAValue, dim: int, by: int, fill: LiteralValue) -> SSAValue:
    """y[k] = x[k + by] along dim, `fill` after."""
    return e.pad(e.slice(x, dim, by, ir.shape_of(x)[dim]), dim, 0, by, 0, fill)
