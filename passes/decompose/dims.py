"""Dimensions as torch names them: negative ones count from the end, 0-d tensors have a dimension 0."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.table import Call
from isthmus.sizes import Dim, size_max, size_min


def axis(x: SSAValue, dim: int) -> int:
    """Give a dimension as 0 <= d < rank (0 for a 0-d tensor)."""
    rank = max(len(ir.shape_of(x)), 1)
    return dim + rank if dim < 0 else dim


def axes(x: SSAValue, dims: Sequence[int] | int | None) -> tuple[int, ...]:
    """Give dimensions in ascending order; all of them where none are named; () for a 0-d tensor."""
    rank = len(ir.shape_of(x))
    if rank == 0:
        return ()
    if isinstance(dims, int):
        return (axis(x, dims),)
    return tuple(sorted(axis(x, d) for d in dims)) if dims else tuple(range(rank))


def kept(e: Emitter, x: SSAValue, call: Call, result: int = 0) -> SSAValue:
    """Give a reduced value the result's shape, in which reduced dimensions may be kept as 1."""
    return e.reshape(x, call.shape(result))


def at_least_1d(e: Emitter, x: SSAValue) -> SSAValue:
    """Give a 0-d value a dimension."""
    return x if ir.shape_of(x) else e.reshape(x, (1,))


def count(x: SSAValue, dims: Sequence[int]) -> Dim:
    """Give the number of elements along dims."""
    total: Dim = 1
    for d in dims:
        total = total * ir.shape_of(x)[d]
    return total


def broadcast_over(e: Emitter, x: SSAValue, like: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Spread x, whose dimensions are those of `like` without dims, over `like`'s shape."""
    shape = ir.shape_of(like)
    return e.broadcast(x, shape, [d for d in range(len(shape)) if d not in dims])


def along(e: Emitter, x: SSAValue, like: SSAValue, dim: int) -> SSAValue:
    """Spread a vector that runs along one dimension of `like`."""
    return e.broadcast(x, ir.shape_of(like), (dim,))


def move(e: Emitter, x: SSAValue, source: int, target: int) -> SSAValue:
    """Move one dimension, the others keep their order."""
    rank = len(ir.shape_of(x))
    perm = [d for d in range(rank) if d != source]
    perm.insert(target, source)
    return e.transpose(x, perm)


def wrapped(index: Dim, size: Dim) -> Dim:
    """Give a position counted from the end where it is negative."""
    return index + size if isinstance(index, int) and index < 0 else index


def clamped(index: Dim | None, size: Dim, default: Dim) -> Dim:
    """Give a bound of a Python slice within [0, size]."""
    if index is None:
        return default
    at = wrapped(index, size)
    if isinstance(at, int) and at <= 0:
        return 0
    if isinstance(index, int) and index < 0:
        return size_max(at, 0)
    return size_min(at, size)
