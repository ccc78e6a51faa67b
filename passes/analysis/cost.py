"""What follows from sizes and prices, for fusion, partition and schedule alike; never from the machine's load.

Symbols count as `GUESS` where a number is needed to choose between two correct programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints
from isthmus.ir import Shape
from isthmus.passes.analysis.prices import CPU, Prices
from isthmus.sizes import Dim, size_max, size_min

GUESS = 256
"""What an unknown size is taken for."""

MOST_PARTITIONS = 64
"""So many threads at most share a kernel."""


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
    return math.prod(cast("tuple[int, ...]", shape))


def splits(shape: Shape, reduced: tuple[int, ...], prices: Prices = CPU) -> bool:
    """Whether a reduction is two kernels: partial results of each partition, then their combination.

    Down columns (the innermost dim is kept), where walking them takes narrow strides; and where so few results are
    left that nobody would work in parallel.
    """
    extents = [numeric(s) for s in shape]
    total = math.prod(extents)
    kept = math.prod(n for d, n in enumerate(extents) if d not in reduced)
    inner = max((d for d, n in enumerate(extents) if n > 1), default=0)
    if inner not in reduced:
        return total * 4 > prices.column_bytes and total // max(kept, 1) > prices.rows_per_sum
    return total // max(kept, 1) * min(kept, prices.rows_together) > prices.longest_sum and kept < prices.busy_rows


def partial_results(shape: Shape, reduced: tuple[int, ...], itemsize: int, prices: Prices = CPU) -> Dim:
    """Give the number of partial results of a split reduction: a function of its sizes.

    They cost a pass over `partitions x kept` elements, so few rows or wide columns have few.
    """
    rows = product(tuple(s for d, s in enumerate(shape) if d in reduced))
    kept = product(tuple(s for d, s in enumerate(shape) if d not in reduced))
    if isinstance(rows, int) and isinstance(kept, int):
        work = rows * kept * itemsize
        most = prices.most_sums * (2 if kept <= prices.narrow_sums else 1)
        count = max(1, min(rows // prices.rows_per_sum, work // prices.sum_bytes, most))
        return 1 << (count.bit_length() - 1)  # so that sums of one kernel often agree
    if isinstance(rows, int):
        return max(1, min(prices.most_sums, rows // prices.rows_per_sum))
    return size_max(1, size_min(prices.most_sums, rows // prices.rows_per_sum))


def partitions(points: int, nbytes: int, prices: Prices = CPU) -> int:
    """Give the number of partitions for so many points that move so many bytes; 1 where a region is not worth it."""
    return max(1, min(points, nbytes // prices.partition_bytes, MOST_PARTITIONS))


def symbolic_partitions(points: Dim, nbytes: Dim, prices: Prices = CPU) -> Dim:
    """The same for sizes that are known when it runs."""
    if isinstance(points, int) and isinstance(nbytes, int):
        return partitions(points, nbytes, prices)
    return size_max(1, size_min(size_min(points, nbytes // prices.partition_bytes), MOST_PARTITIONS))


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
