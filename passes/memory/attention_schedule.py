"""Decisions about attention kernels: tiles for the vector registers, blocks for the caches, partitions for the threads.

Before:
    %o, %lse = kernel.attention %q, %k, %v {scale = 0.125, causal = true} : ...
After: ... partitions = 64, tile = [6, 2, 8], block = [96, 96] ...
"""

from __future__ import annotations

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.ir import Literal
from isthmus.sizes import Dim, size_max, size_min

TILES = {512: (12, 2), 256: (6, 2), 128: (6, 2)}
"""Bits of a vector -> rows and vectors of a tile: rows · vectors + vectors + 1 registers, of 32 or 16."""

QUERIES, KEYS = 96, 96
"""Of a block: multiples of every tile's rows and columns. Sums are chains over a block, so no machine changes them."""

MOST_PARTITIONS = 64


def schedule_attention(op: kernel.StreamOp, tile_bits: int) -> None:
    """Write tile, block, partitions and symbols."""
    rows, vectors = TILES[tile_bits]
    lanes = tile_bits // (8 * ir.itemsize(ir.dtype_of(op.inputs[op.query])))
    batch, heads, length, _ = op.shape(op.query)
    units: Dim = batch * heads * ((length + (QUERIES - 1)) // QUERIES)
    if isinstance(op, kernel.AttentionBwdOp):
        units = batch * op.shape(op.query + 1)[1]
    partitions = max(1, min(units, MOST_PARTITIONS)) if isinstance(units, int) else None
    partitions = partitions or size_max(1, size_min(units, MOST_PARTITIONS))
    set_ = op.properties.__setitem__
    set_("tile", Literal.of((rows, vectors, lanes)))
    set_("block", Literal.of((QUERIES, KEYS)))
    set_("partitions", Literal.of(partitions))
    set_("symbols", Literal.of(kernel.size_symbols(op)))
