"""Give structured primitives to the library where its kernel for the whole is better than fused parts.

Before:
    %o, %lse = prim.attention %q, %k, %v {scale = 0.125, causal = true} : ...
After:
    %o, %lse = prim.opaque %q, %k, %v {callee = "_scaled_dot_product_flash_attention_for_cpu.default", ...} : ...

What is not taken (other dtypes, head sizes that differ, masks: NaN where one leaves a row nothing) expands to
elementary primitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints
from isthmus.ir import Literal, LiteralValue, Operand

FORWARD = "_scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward.default"


@dataclass(frozen=True)
class SelectLibraryPass(ModulePass):
    """Needs: functions in primitives, not to be differentiated again. Leaves: library calls for claimed primitives."""

    name = "select-library"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace what the library does better, in one walk."""
        for found in list(op.walk()):
            if isinstance(found, prim.AttentionOp):
                _attention(found)
            elif isinstance(found, prim.AttentionBwdOp):
                _attention_bwd(found)


def _attention(op: prim.AttentionOp) -> None:
    if op.mask is not None or not _is_streamed(op.q, op.k, op.v):
        return
    args = (Operand(0), Operand(1), Operand(2), 0.0, op.causal.data, None, op.scale.data)
    _replace(op, FORWARD, ir.operands_of(op), args)


def _attention_bwd(op: prim.AttentionBwdOp) -> None:
    """The library's backward forms Σ g·o itself, so it serves where delta is that sum and nothing else."""
    o = _summed_with(op.delta, op.g)
    if o is None or op.mask is not None or not _is_streamed(op.q, op.k, op.v):
        return
    args = (*(Operand(i) for i in range(6)), 0.0, op.causal.data, None, op.scale.data)
    _replace(op, BACKWARD, (op.g, op.q, op.k, op.v, o, op.lse), args)


def _is_streamed(q: SSAValue, k: SSAValue, v: SSAValue) -> bool:
    """Whether torch's streaming kernel takes these: equal head sizes, float32 or float64, nothing empty."""
    head_sizes = {ir.shape_of(x)[3] for x in (q, k, v)}
    return ir.dtype_of(q) in ("f32", "f64") and len(head_sizes) == 1 and 0 not in (*ir.shape_of(q), *ir.shape_of(k))


def _summed_with(delta: SSAValue, g: SSAValue) -> SSAValue | None:
    """Give o where delta = Σ g·o over the last dimension."""
    total = delta.owner
    if not isinstance(total, prim.ReduceOp) or total.kind.data != "add" or ints(total.dims.data) != (3,):
        return None
    product = total.x.owner
    if not isinstance(product, prim.MulOp) or g not in (product.a, product.b):
        return None
    return product.b if product.a is g else product.a


def _replace(op: Operation, callee: str, operands: Sequence[SSAValue], args: tuple[LiteralValue, ...]) -> None:
    literals = {"callee": Literal.of(callee), "args": Literal.of(args)}
    types = [r.type for r in op.results]
    call = ir.create_op(prim.OpaqueOp, operands, types, literals, location=op.location)
    block = op.parent
    assert block is not None
    block.insert_op_before(call, op)
    for old, new in zip(op.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()
