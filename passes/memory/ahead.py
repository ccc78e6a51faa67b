"""Where a kernel asks for the next row while it computes with this one."""

from __future__ import annotations

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import Prices

PAGE = 4 << 10
"""What a processor reads ahead by itself ends with a page: shorter rows are there when they are needed."""

LARGE = 1 << 20
"""Bytes of all rows that do not stay in the second cache."""


def read_ahead(op: kernel.FusedOp, prices: Prices) -> None:
    """Write `ahead`, the level whose walk asks for the next point's row, where the first walk only waits for memory.

    In between lies the walk with the most arithmetic: it has the time.
    """
    levels = kernel.levels(op)
    vector = ir.literal(op, "vector")
    if max(levels.values(), default=0) == 0 or op.rows != (vector,) or not op.parallel:
        return
    read = sum(ir.itemsize(ir.dtype_of(o.results[0])) for o in op.block.ops if levels[o] == 0 and _is_row(op, o))
    length = cost.numeric(op.sizes_[op.rows[0]])
    if read * length < PAGE or read * length * cost.numeric(kernel.points(op)) < LARGE:
        return
    work = [0.0] * (max(levels.values()) + 1)
    varying = kernel.varying(op)
    for inner in op.block.ops:
        if any(vector in varying[r] for r in inner.results):
            work[levels[inner]] += _additions(inner, prices)
    most = max(work[1:])
    if work[0] < prices.additions_per_byte * read and most >= prices.long_chain:
        op.properties["ahead"] = Literal.of(work.index(most, 1))


def _is_row(op: kernel.FusedOp, inner: Operation) -> bool:
    """Whether an op reads neighbours of a row, and other ones at the next point."""
    if not isinstance(inner, kernel.LoadOp) or inner.index_values:
        return False
    (place,) = kernel.linear_map(op, inner).data
    return place.coefficient(op.rows[0]) == 1 and place.coefficient(op.parallel[-1]) != 0


def _additions(op: Operation, prices: Prices) -> float:
    return prices.additions_of(prim.RngOp) if isinstance(op, kernel.RngOp) else prices.additions(op, 0.0)
