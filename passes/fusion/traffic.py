"""What a kernel moves, in bytes, from its maps: each buffer once, narrow strides dearer."""

from __future__ import annotations

from typing import cast

from isthmus import ir
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.fusion.emit import Strides, linear_index
from isthmus.passes.fusion.graph import Value

FEW_ROWS = 64
"""So many rows of a narrow walk stay in the first cache."""


def traffic(draft: Draft, parallel: int, strides: Strides, prices: Prices) -> float:
    """Give the weighted bytes that a kernel reads and writes, symbols guessed."""
    touched: dict[Value, float] = {}
    weights: dict[Value, float] = {}
    counts: dict[int, int] = {}
    for instr in draft.loads():
        value, index, _ = cast("tuple[Value, Index, bool]", instr.data)
        bits = instr.bits
        if (count := counts.get(bits)) is None:
            count = counts[bits] = points(draft, bits)
        touched[value] = touched.get(value, 0.0) + count
        weights[value] = max(weights.get(value, 1.0), _weight(draft, parallel, value, index, bits, strides, prices))
    total = 0.0
    for value, count in touched.items():
        total += min(count * ir.itemsize(value.dtype), value.nbytes) * weights[value]
    for sink in draft.sinks:
        bits = sink.instr.bits
        factor = (
            1.0
            if sink.kind == "accumulate"
            else _weight(draft, parallel, sink.value, sink.index, bits, strides, prices)
        )
        pieces = 1 if sink.value.maker.along is None else len(sink.value.maker.operands)
        total += sink.value.nbytes / pieces * factor
        if sink.kind == "scatter":
            total += 2 * min(sink.value.nbytes, points(draft, bits) * ir.itemsize(sink.value.dtype))
    return total


def work(draft: Draft, along: int = -1) -> float:
    """Give what the arithmetic costs, in additions, symbols guessed; of what depends on one of the dims `along`."""
    return sum(i.cost * points(draft, i.bits) for i in draft.instrs if i.cost and (along == -1 or i.bits & along))


def points(draft: Draft, bits: int) -> int:
    """Give the number of positions of some dims of a draft, symbols guessed."""
    total = 1
    for d, size in enumerate(draft.sizes):
        if bits >> d & 1:
            total *= cost.numeric(size)
    return total


def _weight(
    draft: Draft, parallel: int, value: Value, index: Index, bits: int, strides: Strides, prices: Prices
) -> float:
    """More than 1 where points are neighbours but rows are far apart."""
    rows = ((1 << len(draft.sizes)) - 1) & ~parallel & bits
    if not rows or points(draft, rows) <= FEW_ROWS:
        return 1.0
    linear = linear_index(value, index, strides)
    near = [d for d in linear.dims() if linear.coefficient(d) == 1]
    return prices.narrow_walk if near and all(parallel >> d & 1 for d in near) else 1.0
