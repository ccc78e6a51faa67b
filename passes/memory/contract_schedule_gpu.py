"""Decisions about contractions on a GPU: the tile of the result that a block computes.

Before:
    %y = kernel.contract %x, %w {sizes = [8192, 768, 768], classes = ["m", "n", "k"]} ({...})
After: ... partitions = 256, grid = [1, 64, 4], tile = [128, 192, 64] ...
"""

from __future__ import annotations

from isthmus.dialects import kernel
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.memory.accuracy_gpu import mark_accuracy
from isthmus.sizes import Size

ROWS = 128
"""Rows of a tile."""
DEPTH = 64
"""Terms of k that are read at once."""
RATES = {256: 1.0, 192: 0.98, 128: 0.86, 64: 0.55}
"""Columns of a tile -> how fast its products are made, compared with the widest."""
PROCESSORS = 132
"""Tiles that are computed at once, on a large GPU; what is chosen by it is right on every other."""
AROUND = 128
"""Beginning and ending a column of a tile costs as much as so many terms of k."""


def schedule_contraction(op: kernel.ContractOp) -> None:
    """Write tile, grid and partitions of a contraction."""
    m, n, _ = (op.sizes_[d] for d in op.mnk)
    batch = cost.product(tuple(op.sizes_[d] for d in op.batch))
    columns = min(RATES, key=lambda width: _time(op, width))
    grid = (batch, (m + (ROWS - 1)) // ROWS, (n + (columns - 1)) // columns)
    partitions = grid[0] * grid[1] * grid[2]
    mark_accuracy(op)
    set_ = op.properties.__setitem__
    set_("tile", Literal.of((ROWS, columns, DEPTH)))
    set_("grid", Literal.of(grid))
    set_("partitions", Literal.of(partitions))
    if isinstance(partitions, Size):
        set_("symbols", Literal.of(tuple(sorted(partitions.symbols().union(op.symbols_)))))


def _time(op: kernel.ContractOp, columns: int) -> float:
    """How long tiles of so many columns take: as many rounds of one for each processor as there are, in terms of k."""
    m, n, k = (cost.numeric(op.sizes_[d]) for d in op.mnk)
    batch = cost.numeric(cost.product(tuple(op.sizes_[d] for d in op.batch)))
    tiles = batch * -(-m // ROWS) * -(-n // columns)
    return -(-tiles // PROCESSORS) * columns * (k / RATES[columns] + AROUND)
