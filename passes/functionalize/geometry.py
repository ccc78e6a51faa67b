"""Which elements of a storage a reference addresses: density, overlap, the view that leads from one to another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from isthmus import ir
from isthmus.dialects.aten import RefFacts
from isthmus.ir import Shape
from isthmus.sizes import Dim, Size, exact_quotient

Interval = tuple[int, int]
"""First byte and byte after the last."""


def interval(facts: RefFacts) -> Interval | None:
    """Give the bytes between the first and the last element; None where sizes are not known."""
    last = facts.offset
    for size, stride in zip(facts.shape, facts.strides, strict=True):
        if size == 0:
            return 0, 0
        last = last + (size - 1) * stride
    if isinstance(last, Size) or isinstance(facts.offset, Size):
        return None
    unit = ir.itemsize(facts.dtype)
    return facts.offset * unit, (last + 1) * unit


def disjoint(a: Interval | None, b: Interval | None) -> bool:
    """Tell whether two intervals surely share no byte."""
    return a is not None and b is not None and (a[1] <= b[0] or b[1] <= a[0])


def steps(facts: RefFacts) -> Iterator[tuple[Dim, Dim]]:
    """Give (size, stride) of the dimensions that have more than one index."""
    return ((n, s) for n, s in zip(facts.shape, facts.strides, strict=True) if n != 1)


def repeats(facts: RefFacts) -> bool:
    """Tell whether elements surely share memory: a stride of 0 (torch's check before it writes)."""
    return 0 not in facts.shape and any(stride == 0 for _, stride in steps(facts))


def injective(facts: RefFacts) -> bool | None:
    """Tell whether different indices address different elements; None where sizes are not known."""
    if 0 in facts.shape:
        return True
    pairs = list(steps(facts))
    if dense_order(facts) is not None:
        return True
    if any(isinstance(v, Size) for pair in pairs for v in pair):
        return None
    known: list[tuple[int, int]] = sorted(((s, n) for n, s in pairs))  # pyright: ignore[reportAssignmentType]
    reach = 0
    for stride, size in known:
        if stride <= reach:
            return _all_different(known)
        reach += (size - 1) * stride
    return True


_ENOUGH = 1 << 20


def _all_different(pairs: list[tuple[int, int]]) -> bool | None:
    if math.prod(n for _, n in pairs) > _ENOUGH:
        return None
    addresses = {0}
    for stride, size in pairs:
        before = len(addresses)
        addresses = {a + i * stride for a in addresses for i in range(size)}
        if len(addresses) != before * size:
            return False
    return True


def dense_order(facts: RefFacts) -> tuple[int, ...] | None:
    """Give the order of dimensions that makes the reference row-major without gaps; None where there is none."""
    rest = [d for d, n in enumerate(facts.shape) if n != 1]
    order: list[int] = []
    step: Dim = 1
    while rest:
        inner = next((d for d in reversed(rest) if facts.strides[d] == step), None)
        if inner is None:
            return None
        rest.remove(inner)
        order.append(inner)
        step = step * facts.shape[inner]
    ones = [d for d, n in enumerate(facts.shape) if n == 1]
    return (*ones, *reversed(order))


def covers(outer: RefFacts, inner: RefFacts) -> bool:
    """Tell whether a dense reference surely holds every element of another one."""
    if outer.dtype != inner.dtype or dense_order(outer) is None:
        return False
    if outer.offset == inner.offset and inner.shape == outer.shape and inner.strides == outer.strides:
        return True
    a, b = interval(outer), interval(inner)
    return a is not None and b is not None and (b[0] == b[1] or (a[0] <= b[0] and b[1] <= a[1]))


def may_cover(outer: RefFacts, inner: RefFacts) -> bool:
    """Tell whether the elements of one reference may all lie between the first and the last of another."""
    a, b = interval(outer), interval(inner)
    return a is None or b is None or b[0] == b[1] or (a[0] <= b[0] and b[1] <= a[1])


def partly_overlaps(written: RefFacts, read: RefFacts) -> bool:
    """Tell what torch refuses: two dense tensors that share some elements, but not each at the same index."""
    if dense_order(written) is None or dense_order(read) is None:
        return False
    sizes = count(written), count(read)
    if 0 in sizes:
        return False
    distance = written.offset - read.offset
    if distance == 0 and sizes[0] == sizes[1]:
        return sizes[0] != 1 and list(steps(written)) != list(steps(read))
    if isinstance(distance, Size):
        return False  # parts of one tensor at a distance that grows with it, as split gives
    extent = sizes[1] if distance > 0 else sizes[0]
    return isinstance(extent, Size) or extent > abs(distance)


def count(facts: RefFacts) -> Dim:
    """Give the number of elements."""
    total: Dim = 1
    for size in facts.shape:
        total = total * size
    return total


# ---- The view from one reference to another


@dataclass(frozen=True)
class Same:
    """The same elements at the same indices."""


@dataclass(frozen=True)
class Reshaped:
    """The same elements in the same row-major order."""


@dataclass(frozen=True)
class Permuted:
    """Dimension k of the view is dimension order[k]; sizes of 1 may come and go."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Sliced:
    """start, start + step, ... below end along dim."""

    dim: int
    start: Dim
    end: Dim
    step: Dim


@dataclass(frozen=True)
class Selected:
    """One index of dim, which disappears."""

    dim: int
    index: Dim


Relation: TypeAlias = Same | Reshaped | Permuted | Sliced | Selected


def relation(base: RefFacts, view: RefFacts) -> Relation | None:
    """Say how a view of the same dtype follows from its base by geometry alone; None where no single step does it."""
    if view == base:
        return Same()
    if base.offset == view.offset or 0 in view.shape:
        if _merged(base) == _merged(view):
            return Reshaped()
        order = _permutation(base, view)
        if order is not None:
            return Permuted(order)
    return _sliced(base, view) or _selected(base, view)


def _merged(facts: RefFacts) -> list[tuple[Dim, Dim]]:
    """Give (size, stride) with neighbours joined that are one run of memory: equal lists, equal order of elements."""
    if 0 in facts.shape:
        return [(0, 0)]
    merged: list[tuple[Dim, Dim]] = []
    for size, stride in steps(facts):
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _permutation(base: RefFacts, view: RefFacts) -> tuple[int, ...] | None:
    """Give for each dimension of the view that is not 1 the base's dimension that it is."""
    free = [d for d, n in enumerate(base.shape) if n != 1]
    order: list[int] = []
    for size, stride in steps(view):
        found = next((d for d in free if base.shape[d] == size and base.strides[d] == stride), None)
        if found is None:
            return None
        free.remove(found)
        order.append(found)
    return None if free else tuple(order)


def _sliced(base: RefFacts, view: RefFacts) -> Sliced | None:
    if len(base.shape) != len(view.shape):
        return None
    changed = [
        d
        for d in range(len(base.shape))
        if base.shape[d] != view.shape[d] or (base.strides[d] != view.strides[d] and base.shape[d] != 1)
    ]
    if len(changed) != 1:
        return None
    (dim,) = changed
    step = 1 if view.shape[dim] == 1 else exact_quotient(view.strides[dim], base.strides[dim])
    start = exact_quotient(view.offset - base.offset, base.strides[dim])
    if step is None or start is None or not _within(start, base.shape[dim]):
        return None
    return Sliced(dim, start, start + (view.shape[dim] - 1) * step + 1, step)


def _selected(base: RefFacts, view: RefFacts) -> Selected | None:
    if len(base.shape) != len(view.shape) + 1:
        return None
    for dim in range(len(base.shape)):
        rest = [(n, s) for d, (n, s) in enumerate(zip(base.shape, base.strides, strict=True)) if d != dim]
        fits = all(n == m and (s == t or n == 1) for (n, s), m, t in zip(rest, view.shape, view.strides, strict=True))
        index = exact_quotient(view.offset - base.offset, base.strides[dim]) if fits else None
        if index is not None and _within(index, base.shape[dim]):
            return Selected(dim, index)
    return None


def _within(index: Dim, size: Dim) -> bool:
    low, high = index, size - 1 - index
    return (isinstance(low, Size) or low >= 0) and (isinstance(high, Size) or high >= 0)


def contiguous(shape: Shape, dtype: str) -> RefFacts:
    """Give the facts of a fresh row-major tensor."""
    return RefFacts(shape, dtype, ir.contiguous_strides(shape), 0)
