"""Decisions about contractions on a GPU: the tile of the result that a block computes.

Before:
    %y = kernel.contract %x, %w {sizes = [8192, 768, 768], classes = ["m", "n", "k"]} ({...})
After: ... partitions = 256, grid = [1, 64, 4], tile = [128, 192, 64] ...
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.memory.accuracy_gpu import mark_accuracy
from isthmus.sizes import Size

ROWS = 128
"""Rows of a tile."""
READ_BYTES = 128
"""What is read at once along k: 64 terms of 16 bits, 32 of f32."""
PROCESSORS = 132
"""Tiles that are computed at once, on a large GPU; what is chosen by it is right on every other."""


@dataclass(frozen=True)
class Width:
    """What is measured of tiles of so many columns, in terms of k of one column (1/16 cycle of a processor)."""

    rate: float
    """How fast products are made, compared with the widest tiles."""
    around: int
    """What beginning and ending a column costs."""
    hides: bool
    """Whether the epilogue of one tile runs beside the products of another."""


WIDTHS = {
    256: Width(1.0, 115, False),
    192: Width(1.0, 115, False),
    128: Width(0.99, 105, True),
    64: Width(0.67, 105, True),
}


def schedule_contraction(op: kernel.ContractOp) -> None:
    """Write tile, grid and partitions of a contraction."""
    m, n, _ = (op.sizes_[d] for d in op.mnk)
    batch = cost.product(tuple(op.sizes_[d] for d in op.batch))
    prices = Prices.of(op, "gpu")
    after = prices.epilogue_addition * _epilogue(op, prices)
    columns = min(WIDTHS, key=lambda width: _time(op, width, after))
    grid = (batch, (m + (ROWS - 1)) // ROWS, (n + (columns - 1)) // columns)
    partitions = grid[0] * grid[1] * grid[2]
    mark_accuracy(op)
    set_ = op.properties.__setitem__
    set_("tile", Literal.of((ROWS, columns, READ_BYTES // ir.itemsize(ir.dtype_of(op.dot.y)))))
    set_("grid", Literal.of(grid))
    set_("partitions", Literal.of(partitions))
    if isinstance(partitions, Size):
        set_("symbols", Literal.of(tuple(sorted(partitions.symbols().union(op.symbols_)))))


def _time(op: kernel.ContractOp, columns: int, after: float) -> float:
    """How long tiles of so many columns take: as many rounds of one for each processor as there are, in terms of k.

    `after`: what the epilogue of an element takes.
    """
    m, n, k = (cost.numeric(op.sizes_[d]) for d in op.mnk)
    batch = cost.numeric(cost.product(tuple(op.sizes_[d] for d in op.batch)))
    tiles = batch * -(-m // ROWS) * -(-n // columns)
    width = WIDTHS[columns]
    wide = ir.itemsize(ir.dtype_of(op.dot.y)) / 2
    products = k * wide / width.rate
    column = max(products, after) if width.hides and tiles > PROCESSORS else products + after
    around = width.around if width.hides else width.around * wide  # no boxes: threads write f32
    return -(-tiles // PROCESSORS) * columns * (column + around)


def _epilogue(op: kernel.ContractOp, prices: Prices) -> float:
    """The additions of an element's epilogue."""
    total, after = 0.0, {op.dot.y}
    for inner in op.block.ops:
        if not after.isdisjoint(ir.operands_of(inner)):
            after.update(inner.results)
            total += prices.additions(inner)
    return total
