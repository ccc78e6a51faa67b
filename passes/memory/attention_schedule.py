"""Decisions about attention kernels: tiles for the vector registers, blocks for the caches, partitions for the threads.

Before:
    %o, %lse = kernel.attention %q, %k, %v {scale = 0.125, causal = true} : ...
After: ... partitions = 64, tile = [6, 2, 8], block = [96, 96] ...
"""

from __future__ import annotations

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.sizes import Dim, size_max, size_min

TILES = {512: (12, 2), 256: (6, 2), 128: (6, 2)}
"""Bits of a vector -> rows and vectors of a tile: rows · vectors + vectors + 1 registers, of 32 or 16."""

QUERIES, KEYS = 96, 96
"""Of a block: multiples of every tile's rows and columns. Sums are chains over a block, so no machine changes them."""

MOST_PARTITIONS = 64


FEW = 2
"""Heads of keys are few where there are so many times more cores; work that is done twice then costs no time."""


def schedule_attention(op: kernel.StreamOp, tile_bits: int, cores: int) -> None:
    """Write tile, block, partitions, symbols, and split."""
    rows, vectors = TILES[tile_bits]
    lanes = tile_bits // (8 * ir.itemsize(ir.dtype_of(op.inputs[op.query])))
    batch, heads, length, _ = op.shape(op.query)
    _, key_heads, keys, _ = op.shape(op.query + 1)
    units = batch * heads * _blocks(length, QUERIES)
    set_ = op.properties.__setitem__
    if isinstance(op, kernel.AttentionBwdOp):
        blocks = batch * key_heads * _blocks(keys, KEYS)
        alone = batch * key_heads
        if cost.numeric(alone) * FEW <= cores and cost.numeric(blocks) > cost.numeric(alone):
            set_("split", Literal.of(True))
            units = units + blocks
        else:
            units = alone
    known = isinstance(units, int)
    partitions = max(1, min(units, MOST_PARTITIONS)) if known else size_max(1, size_min(units, MOST_PARTITIONS))
    set_("tile", Literal.of((rows, vectors, lanes)))
    set_("block", Literal.of((QUERIES, KEYS)))
    set_("partitions", Literal.of(partitions))
    set_("symbols", Literal.of(kernel.size_symbols(op)))


def _blocks(extent: Dim, size: int) -> Dim:
    return (extent + (size - 1)) // size
