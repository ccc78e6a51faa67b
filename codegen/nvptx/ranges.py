"""What is known of a row value from how it is made: that spares checks for what cannot occur."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus.dialects import kernel as k
from isthmus.dialects import prim


def is_at_most_zero(value: SSAValue) -> bool:
    """Whether a value is x - max x: zero or less, or NaN."""
    op = value.owner
    if not isinstance(op, prim.SubOp):
        return False
    top = op.b.owner
    return isinstance(top, k.ReduceOp) and top.kind.data == "max" and op.a in top.operands


def is_a_fraction(value: SSAValue) -> bool:
    """Whether a value is a power of e to what is at most zero: from +0 to 1, or NaN."""
    op = value.owner
    return isinstance(op, prim.ExpOp) and is_at_most_zero(op.operands[0])
