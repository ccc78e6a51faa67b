"""What a pass says of parts of a computation that are done one after the other, so that their memory is used again."""

from __future__ import annotations

import math
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints

ACCUMULATES = "accumulates"
"""On an addition: the product that is its first operand adds to the memory of the second one, and rounds once."""

PIECE = "piece"
"""On an op: the number of the piece that it belongs to. No kernel computes for several pieces."""

LARGE = 1 << 28
"""Bytes of a matrix that is better made in pieces."""

DEEP = 1024
"""So many numbers have the rows that such a matrix is made from: products of fewer wait for the memory that pieces add
to (a head of 768 features of 50304 classes takes an H200 13 % longer in four pieces, one of 4096 no longer)."""


def is_large_product(op: Operation, least: int = LARGE, deep: int = DEEP) -> bool:
    """Whether an op is a product that is better made in pieces, where all that follows allows that."""
    if not isinstance(op, prim.DotOp):
        return False
    size, shape = ir.nbytes(op.y), ir.shape_of(op.a)
    depth = [shape[d] for d in ints(op.contract_a.data)]
    known = isinstance(size, int) and all(isinstance(n, int) for n in depth)
    return known and cast(int, size) >= least and math.prod(cast("list[int]", depth)) >= deep


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
