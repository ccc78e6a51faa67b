"""Heads of keys and values that are repeated for attention are shared by it.

Before:
    %b = prim.broadcast %k {dims = [0, 1, 3, 4]} : tensor<2x2x3x40x8xf32>
    %r = prim.reshape %b : tensor<2x6x40x8xf32>          (and %s from %v in the same way)
    %o, %lse = prim.attention %q, %r, %s {...} : ...
After:
    %o, %lse = prim.attention %q, %k, %v {...} : ...
"""

from __future__ import annotations

from xdsl.ir import Block, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints


def share_heads(block: Block) -> bool:
    """Let the attentions of a block read heads where they were before they were repeated; says whether one does.

    Only of f32 and f64: the library's kernels for narrower floats want a head for each.
    """
    found = False
    for op in list(block.ops):
        if isinstance(op, prim.AttentionOp) and ir.dtype_of(op.q) in ("f32", "f64"):
            k, v = _before(op.k), _before(op.v)
            if k is not None and v is not None and ir.shape_of(k)[1] == ir.shape_of(v)[1]:
                operands = (op.q, k, v, *ir.operands_of(op)[3:])
                types = [r.type for r in op.results]
                made = ir.create_op(prim.AttentionOp, operands, types, op.properties, location=op.location)
                made.attributes.update(op.attributes)
                block.insert_op_before(made, op)
                for old, new in zip(op.results, made.results, strict=True):
                    old.replace_all_uses_with(new)
                op.detach()
                op.erase()
                found = True
    return found


def _before(x: SSAValue) -> SSAValue | None:
    """[B, G, S, E] where x is that with every head repeated, [B, G·n, S, E]."""
    joined = x.owner
    spread = joined.x.owner if isinstance(joined, prim.ReshapeOp) else None
    if not isinstance(spread, prim.BroadcastOp) or ints(spread.dims.data) != (0, 1, 3, 4):
        return None
    wide, shape = ir.shape_of(spread.y), ir.shape_of(x)
    batch, own, times, *rest = wide
    known = isinstance(own, int) and isinstance(times, int)
    return spread.x if known and shape == (batch, own * times, *rest) else None
