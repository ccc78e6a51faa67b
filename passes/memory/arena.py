"""Packing intervals into one block of memory: numbers in, offsets out, no IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.dialects.kernel import is_nonnegative
from isthmus.passes.analysis import cost
from isthmus.sizes import Dim

ALIGNMENT = 64
"""Bytes: a cache line and a vector."""

WORD = 8
"""Bytes: the alignment of small values that are kept for long, whose padding would cost more than it gains."""


@dataclass(frozen=True)
class Interval:
    """A buffer of `nbytes` that is alive from step `first` to step `last`, both included."""

    nbytes: Dim
    first: int
    last: int

    def meets(self, other: Interval) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


def aligned(nbytes: Dim, alignment: int = ALIGNMENT) -> Dim:
    """Round up to the alignment."""
    return (nbytes + (alignment - 1)) // alignment * alignment


def is_small(nbytes: Dim) -> bool:
    """Whether padding to whole cache lines would be a good part of a value."""
    return isinstance(nbytes, int) and nbytes < 16 * ALIGNMENT


def pack(intervals: Sequence[Interval]) -> tuple[list[Dim], Dim]:
    """Give an offset for each interval, and the bytes of the whole; intervals that meet never overlap.

    Known sizes: largest first, each into the smallest gap that holds it. Symbolic sizes come after them, in slots
    that a later buffer takes over only where it is provably no larger.
    """
    offsets: list[Dim] = [0] * len(intervals)
    known = [k for k, i in enumerate(intervals) if isinstance(i.nbytes, int)]
    placed: list[tuple[int, int, Interval]] = []
    for k in sorted(known, key=lambda k: (-cost.numeric(intervals[k].nbytes), intervals[k].first)):
        interval = intervals[k]
        size = cost.numeric(aligned(interval.nbytes))
        busy = sorted((start, end) for start, end, other in placed if other.meets(interval))
        at = _best_gap(busy, size)
        offsets[k] = at
        placed.append((at, at + size, interval))
    total: Dim = max((end for _, end, _ in placed), default=0)
    return offsets, _pack_symbolic(intervals, offsets, total)


def _best_gap(busy: Sequence[tuple[int, int]], size: int) -> int:
    best, smallest = None, 0
    cursor = 0
    for start, end in busy:
        gap = start - cursor
        if gap >= size and (best is None or gap < smallest):
            best, smallest = cursor, gap
        cursor = max(cursor, end)
    return cursor if best is None else best


def _pack_symbolic(intervals: Sequence[Interval], offsets: list[Dim], total: Dim) -> Dim:
    slots: list[tuple[Dim, Dim, int]] = []  # offset, bytes, step at which it is free
    symbolic = [k for k, i in enumerate(intervals) if not isinstance(i.nbytes, int)]
    for k in sorted(symbolic, key=lambda k: (intervals[k].first, -cost.numeric(intervals[k].nbytes))):
        interval = intervals[k]
        fitting = [
            (cost.numeric(size), n)
            for n, (_, size, free) in enumerate(slots)
            if free < interval.first and is_nonnegative(size - interval.nbytes)
        ]
        if fitting:
            _, n = min(fitting)
            at, size, _ = slots[n]
            slots[n] = (at, size, interval.last)
        else:
            at = total
            slots.append((at, interval.nbytes, interval.last))
            total = total + aligned(interval.nbytes)
        offsets[k] = at
    return total


__all__ = ["ALIGNMENT", "WORD", "Interval", "aligned", "is_small", "pack"]
