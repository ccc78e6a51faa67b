"""Prices that fusion, partition and schedule share. All depend on sizes alone, never on the machine's load.

Symbols count as `GUESS` where a number is needed to choose between two correct programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints
from isthmus.ir import Shape
from isthmus.sizes import Dim, size_max, size_min

GUESS = 256
"""What an unknown size is taken for."""

LAUNCH_BYTES = 8 << 10
"""A launch costs as much as moving so many bytes."""

SPLIT_BYTES = 64 << 10
"""Below so many elements' bytes a reduction down columns is one kernel."""

LONGEST_SERIAL = 1 << 14
"""A full reduction of up to so many elements is one point of one kernel."""

PARTITION_BYTES = 128 << 10
"""Work that is worth a partition of its own, in bytes moved."""

MOST_PARTITIONS = 64
MOST_PARTIAL_RESULTS = 16
ROWS_PER_PARTIAL_RESULT = 32


@dataclass(frozen=True)
class Splitting:
    """When a reduction is two kernels, and into how many partial results it is cut."""

    column_bytes: int
    """Below so many elements' bytes a reduction down columns is one kernel."""
    longest: int
    """A reduction of up to so many elements of a row is one kernel."""
    together: int
    """So many rows count as one."""
    few: int
    """So many rows keep everybody busy, however long they are."""
    partition_bytes: int
    most: int
    rows: int
    """Rows of one partial result, at least."""
    narrow: int = 0
    """Rows of up to so many elements have twice as many partial results: more of them are read at a time."""

    @staticmethod
    def on(target: str) -> Splitting:
        """Give the limits of a kind of machine: `cpu` or `gpu`, whose blocks are many and start in a microsecond."""
        if target == "gpu":
            return Splitting(SPLIT_BYTES, 1 << 15, 1, 64, 4 << 10, 256, 8, narrow=2560)
        return Splitting(
            SPLIT_BYTES, LONGEST_SERIAL, 8, 8, PARTITION_BYTES, MOST_PARTIAL_RESULTS, ROWS_PER_PARTIAL_RESULT
        )


class _Guesses(Mapping[str, int]):
    """Every symbol, guessed."""

    def __getitem__(self, key: str) -> int:
        return GUESS

    def __contains__(self, key: object) -> bool:
        return True

    def get(self, key: str, default: object = None) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return GUESS

    def __iter__(self):
        return iter(())

    def __len__(self) -> int:
        return 0


GUESSES = _Guesses()


def numeric(dim: Dim) -> int:
    """Give a number for a size, symbols guessed."""
    return dim if isinstance(dim, int) else dim.evaluate(GUESSES)


def product(shape: Shape) -> Dim:
    """Give the number of elements."""
    return math.prod(cast(tuple[int, ...], shape))


def splits(shape: Shape, reduced: tuple[int, ...], target: str = "cpu") -> bool:
    """Whether a reduction is two kernels: partial results of each partition, then their combination.

    Down columns (the innermost dim is kept), where walking them takes narrow strides; and where so few results are
    left that nobody would work in parallel.
    """
    limits, extents = Splitting.on(target), [numeric(s) for s in shape]
    total = math.prod(extents)
    kept = math.prod(n for d, n in enumerate(extents) if d not in reduced)
    inner = max((d for d, n in enumerate(extents) if n > 1), default=0)
    if inner not in reduced:
        return total * 4 > limits.column_bytes and total // max(kept, 1) > limits.rows
    return total // max(kept, 1) * min(kept, limits.together) > limits.longest and kept < limits.few


def partial_results(shape: Shape, reduced: tuple[int, ...], itemsize: int, target: str = "cpu") -> Dim:
    """Give the number of partial results of a split reduction: a function of its sizes.

    They cost a pass over `partitions x kept` elements, so few rows or wide columns have few.
    """
    limits = Splitting.on(target)
    rows = product(tuple(s for d, s in enumerate(shape) if d in reduced))
    kept = product(tuple(s for d, s in enumerate(shape) if d not in reduced))
    if isinstance(rows, int) and isinstance(kept, int):
        work = rows * kept * itemsize
        most = limits.most * (2 if kept <= limits.narrow else 1)
        count = max(1, min(rows // limits.rows, work // limits.partition_bytes, most))
        return 1 << (count.bit_length() - 1)  # so that sums of one kernel often agree
    if isinstance(rows, int):
        return max(1, min(limits.most, rows // limits.rows))
    return size_max(1, size_min(limits.most, rows // limits.rows))


def partitions(points: int, nbytes: int, most: int = MOST_PARTITIONS) -> int:
    """Give the number of partitions for so many points that move so many bytes; 1 where a region is not worth it."""
    return max(1, min(points, nbytes // PARTITION_BYTES, most))


def symbolic_partitions(points: Dim, nbytes: Dim) -> Dim:
    """The same for sizes that are known when it runs."""
    if isinstance(points, int) and isinstance(nbytes, int):
        return partitions(points, nbytes)
    return size_max(1, size_min(size_min(points, nbytes // PARTITION_BYTES), MOST_PARTITIONS))


def flops(op: Operation) -> float:
    """Give the floating-point operations of a contraction or attention, symbols guessed; 0 for anything else."""
    if isinstance(op, prim.DotOp):
        shape = ir.shape_of(op.a)
        inner = product(tuple(shape[d] for d in ints(op.contract_a.data)))
        return 2.0 * numeric(ir.numel(op.y)) * numeric(inner)
    if isinstance(op, (prim.ConvOp, prim.ConvDxOp, prim.ConvDwOp)):
        w = ir.shape_of(op.dw if isinstance(op, prim.ConvDwOp) else op.w)
        y = op.y if isinstance(op, prim.ConvOp) else op.g
        return 2.0 * numeric(ir.numel(y)) * numeric(product(w[1:]))
    if isinstance(op, (prim.AttentionOp, prim.AttentionBwdOp)):
        pairs = numeric(ir.numel(op.q)) * numeric(ir.shape_of(op.k)[2])
        return (4.0 if isinstance(op, prim.AttentionOp) else 10.0) * pairs
    return 0.0
