"""What a pass says of parts of a computation that are done one after the other, so that their memory is used again."""

from __future__ import annotations

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim

ACCUMULATES = "accumulates"
"""On an addition: the product that is its first operand adds to the memory of the second one, and rounds once."""

PIECE = "piece"
"""On an op: the number of the piece that it belongs to. No kernel computes for several pieces."""


def piece_of(op: Operation | None) -> int | None:
    """Give the piece that an op belongs to."""
    found = None if op is None else ir.literal(op, PIECE)
    return found if isinstance(found, int) else None


def product_that_adds(op: Operation) -> prim.DotOp | None:
    """Give the product that does an addition by itself."""
    if not isinstance(op, prim.AddOp) or ir.literal(op, ACCUMULATES) is not True:
        return None
    dot = op.a.owner
    return dot if isinstance(dot, prim.DotOp) and len(list(dot.y.uses)) == 1 else None
