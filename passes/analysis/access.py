"""Index maps of movements: where an operand is read for one element of the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel import Bounds, Expr, constant
from isthmus.dialects.prim.base import integer, ints
from isthmus.ir import Shape
from isthmus.sizes import Dim, exact_quotient

Index = tuple[Expr, ...]
"""One index for each dimension of a tensor."""

ZERO = constant(0)


def operand_index(op: prim.ViewOp, index: Index, bounds: Bounds) -> Index:
    """Give the index at which a view reads its operand for the element of its result at `index`."""
    return _VIEWS[type(op)](op, index, bounds)


def _broadcast(op: Operation, index: Index, bounds: Bounds) -> Index:
    return tuple(index[d] for d in ints(ir.literal(cast(prim.BroadcastOp, op), "dims")))


def _transpose(op: Operation, index: Index, bounds: Bounds) -> Index:
    perm = ints(ir.literal(cast(prim.TransposeOp, op), "perm"))
    source = [ZERO] * len(perm)
    for k, p in enumerate(perm):
        source[p] = index[k]
    return tuple(source)


def _slice(op: Operation, index: Index, bounds: Bounds) -> Index:
    view = cast(prim.SliceOp, op)
    at, start = integer(view.dim.data), cast(Dim, view.start.data)
    return (*index[:at], index[at] * integer(view.stride.data) + start, *index[at + 1 :])


def _reverse(op: Operation, index: Index, bounds: Bounds) -> Index:
    view = cast(prim.ReverseOp, op)
    dims, shape = ints(view.dims.data), ir.shape_of(view.x)
    return tuple(e * -1 + (shape[d] - 1) if d in dims else e for d, e in enumerate(index))


def _reshape(op: Operation, index: Index, bounds: Bounds) -> Index:
    view = cast(prim.ReshapeOp, op)
    return reshape_index(ir.shape_of(view.x), ir.shape_of(view.y), index, bounds)


_VIEWS: dict[type[Operation], Callable[[Operation, Index, Bounds], Index]] = {
    prim.BroadcastOp: _broadcast,
    prim.TransposeOp: _transpose,
    prim.SliceOp: _slice,
    prim.ReverseOp: _reverse,
    prim.ReshapeOp: _reshape,
}


def reshape_index(source: Shape, target: Shape, index: Index, bounds: Bounds) -> Index:
    """Give the index into `source` of the element at `index` of `target`, both in row-major order.

    Dimensions are taken apart in groups whose sizes multiply to the same number, so that most need no quotient.
    """
    found: list[Expr] = []
    for sources, targets in reshape_groups(source, target):
        if len(sources) == len(targets) == 1:
            found.append(index[targets[0]])
            continue
        linear = ZERO
        for t in targets:
            linear = linear * target[t] + index[t]
        found += _delinearised(linear, [source[s] for s in sources], bounds)
    return tuple(found)


def _delinearised(linear: Expr, sizes: list[Dim], bounds: Bounds) -> list[Expr]:
    """Take a position apart into one index per size; the outermost needs no remainder."""
    parts: list[Expr] = []
    inner: Dim = 1
    for k in reversed(range(len(sizes))):
        size = sizes[k]
        if size == 1:
            parts.append(ZERO)
            continue
        quotient = linear.floordiv(inner, bounds)
        outermost = all(s == 1 for s in sizes[:k])
        parts.append(quotient if outermost else quotient.mod(size, bounds))
        inner = inner * size
    return parts[::-1]


@lru_cache(maxsize=4096)
def reshape_groups(source: Shape, target: Shape) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Pair up dims of two shapes of equal size: the shortest runs whose products are equal, outermost first."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    s = t = 0
    while s < len(source) or t < len(target):
        s0, t0 = s, t
        left: Dim = 1
        right: Dim = 1
        if s < len(source):
            left, s = source[s], s + 1
        if t < len(target):
            right, t = target[t], t + 1
        while left != right:
            if s < len(source) and (exact_quotient(right, left) is not None or t == len(target)):
                left, s = left * source[s], s + 1
            elif t < len(target) and (exact_quotient(left, right) is not None or s == len(source)):
                right, t = right * target[t], t + 1
            elif s < len(source):
                left, right = left * source[s], right * target[t]
                s, t = s + 1, t + 1
            else:
                break
        groups.append((tuple(range(s0, s)), tuple(range(t0, t))))
    return tuple(groups)


def radix(expr: Expr, size: Dim, bounds: Bounds) -> tuple[tuple[int, Dim], ...] | None:
    """Give the dims that an index is put together from, outermost first, each with its size; None where it is not.

    d0*12 + d2 with sizes 5 and 12 of a dimension of 60 gives ((0, 5), (2, 12)): each value is taken exactly once.
    """
    if size == 1:
        return () if not expr.terms and expr.constant == 0 else None
    if expr.constant != 0 or not expr.is_affine() or expr.values():
        return None
    terms = [(cast(int, atom[1]), coefficient, bounds(atom)) for atom, coefficient in expr.terms]
    found: list[tuple[int, Dim]] = []
    inner: Dim = 1
    while terms:
        at = next((k for k, (_, c, _) in enumerate(terms) if c == inner), None)
        if at is None:
            return None
        dim, _, extent = terms.pop(at)
        if extent is None:
            return None
        found.append((dim, extent))
        inner = inner * extent
    return tuple(reversed(found)) if inner == size else None
