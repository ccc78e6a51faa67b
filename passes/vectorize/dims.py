"""Moving the dimension that counts the examples."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter


def moved_to_front(e: Emitter, x: SSAValue, dim: int) -> SSAValue:
    """Give x with a dimension first and the others in order."""
    rank = len(ir.shape_of(x))
    return e.transpose(x, (dim, *(d for d in range(rank) if d != dim)))


def moved_behind(e: Emitter, x: SSAValue, dim: int) -> SSAValue:
    """Give x with its first dimension behind `dim` others: [B, a, b, ..] is [a, B, b, ..] for 1."""
    rank = len(ir.shape_of(x))
    return e.transpose(x, (*range(1, dim + 1), 0, *range(dim + 1, rank)))


def folded(e: Emitter, x: SSAValue) -> SSAValue:
    """Give x with its first two dims as one."""
    first, second, *rest = ir.shape_of(x)
    return e.reshape(x, (first * second, *rest))


def unfolded(e: Emitter, x: SSAValue, size: ir.Dim, inner: ir.Dim, dim: int = 0) -> SSAValue:
    """Give x with a dimension cut in two, [.., size·inner, ..] as [.., size, inner, ..]."""
    shape = ir.shape_of(x)
    return e.reshape(x, (*shape[:dim], size, inner, *shape[dim + 1 :]))
