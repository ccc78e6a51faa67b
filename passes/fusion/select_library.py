"""Give structured primitives to a kernel for the whole, ours or the library's, where it is better than fused parts.

Before:
    %o, %lse = prim.attention %q, %k, %v {scale = 0.125, causal = true} : ...
After, for a CPU:
    %o, %lse = kernel.attention %q, %k, %v {scale = 0.125, causal = true} : ...
and for a GPU (half precision):
    %o, %lse = prim.opaque %q, %k, %v {callee = "isthmus::attention.default", ...} : ...

On a CPU half precision is widened for the kernel, which computes in float32. What is not taken (on a GPU other dtypes,
masks and head sizes that differ) expands to elementary primitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.base import ints
from isthmus.ir import Literal, LiteralValue, Operand
from isthmus.passes.options import check_words

GPU_FORWARD = "isthmus::attention.default"
GPU_BACKWARD = "isthmus::attention_backward.default"
CPU_FORWARD = "_scaled_dot_product_flash_attention_for_cpu.default"
CPU_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward.default"
WIDEST = 256
"""The longest head that our kernel takes: its blocks then stay in the second cache."""

GPU_WIDTH = 256
"""The longest head that fused kernels of GPUs take; a multiple of 8."""


@dataclass(frozen=True)
class SelectLibraryPass(ModulePass):
    """Needs: functions in primitives, not to be differentiated again. Leaves: kernels and library calls for claimed
    primitives."""

    name = "select-library"
    device: str = "cpu"
    """Whose library: cpu or cuda."""

    def __post_init__(self) -> None:
        """Check the device; IRError for another."""
        check_words(self, device=("cpu", "cuda"))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace what is better done as a whole, in one walk."""
        attentions = [found for found in op.walk() if isinstance(found, (prim.AttentionOp, prim.AttentionBwdOp))]
        for found in attentions:
            on_gpu = self.device == "cuda"
            if not on_gpu and _is_streamed(found):
                _stream(found)
            elif isinstance(found, prim.AttentionOp):
                _attention(found, on_gpu)
            else:
                _attention_bwd(found, on_gpu)


def _is_streamed(op: prim.AttentionOp | prim.AttentionBwdOp) -> bool:
    """Whether the kernel of ours takes it: heads whose known width leaves blocks of them in a cache, nothing empty."""
    widths = [ir.shape_of(x)[3] for x in (op.q, op.k, op.v)]
    known = all(isinstance(w, int) and 0 < w <= WIDEST for w in widths)
    filled = all(0 not in ir.shape_of(x) for x in (op.q, op.k))
    return ir.is_float(ir.dtype_of(op.q)) and known and filled


def _stream(op: prim.AttentionOp | prim.AttentionBwdOp) -> None:
    """The kernel, in float32 for narrower floats: whoever makes an operand or reads a result converts it."""
    cls = kernel.AttentionOp if isinstance(op, prim.AttentionOp) else kernel.AttentionBwdOp
    literals = {key: attr for key, attr in op.properties.items() if isinstance(attr, Literal)}
    block = op.parent
    assert block is not None
    operands = [_converted(op, x, _wide(ir.dtype_of(x))) for x in ir.operands_of(op)]
    types = [ir.tensor(ir.shape_of(r), _wide(ir.dtype_of(r))) for r in op.results]
    made = ir.create_op(cls, operands, types, literals, location=op.location)
    block.insert_op_before(made, op)
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(_converted(op, new, ir.dtype_of(old)))
    op.detach()
    op.erase()


def _wide(dtype: str) -> str:
    return "f32" if dtype in ("bf16", "f16") else dtype


def _converted(before: Operation, x: SSAValue, dtype: str) -> SSAValue:
    """The value in another format, made before an op."""
    if ir.dtype_of(x) == dtype:
        return x
    e = Emitter(Block())
    e.location = before.location
    y = e.convert(x, dtype)
    e.put_before(before)
    return y


def _attention(op: prim.AttentionOp, on_gpu: bool) -> None:
    if op.mask is not None or not _is_taken(op, on_gpu):
        return
    operands = tuple(Operand(i) for i in range(3))
    if on_gpu:
        _replace(op, GPU_FORWARD, ir.operands_of(op), (*operands, op.causal.data, op.scale.data))
    else:
        args = (*operands, 0.0, op.causal.data, None, op.scale.data)
        _replace(op, CPU_FORWARD, ir.operands_of(op), args)


def _attention_bwd(op: prim.AttentionBwdOp, on_gpu: bool) -> None:
    """The library's backward forms Σ g·o itself, so it serves where delta is that sum and nothing else."""
    o = _summed_with(op.delta, op.g)
    if o is None or op.mask is not None or not _is_taken(op, on_gpu):
        return
    given, operands = (op.g, op.q, op.k, op.v, o, op.lse), tuple(Operand(i) for i in range(6))
    if on_gpu:
        _replace(op, GPU_BACKWARD, given, (*operands, op.causal.data, op.scale.data))
    else:
        _replace(op, CPU_BACKWARD, given, (*operands, 0.0, op.causal.data, None, op.scale.data))


def _is_taken(op: prim.AttentionOp | prim.AttentionBwdOp, on_gpu: bool) -> bool:
    """Whether the library takes it: on a CPU float32 and float64 of equal head sizes, nothing empty or weighed."""
    if op.hidden is not None:
        return False
    if not on_gpu:
        sizes = {ir.shape_of(x)[3] for x in (op.q, op.k, op.v)}
        filled = 0 not in (*ir.shape_of(op.q), *ir.shape_of(op.k))
        return ir.dtype_of(op.q) in ("f32", "f64") and len(sizes) == 1 and filled
    heads = {ir.shape_of(x)[3] for x in (op.q, op.k, op.v)}
    width = heads.pop()
    square = ir.shape_of(op.q)[2] == ir.shape_of(op.k)[2]
    return (
        ir.dtype_of(op.q) in ("bf16", "f16")
        and not heads
        and isinstance(width, int)
        and width % 8 == 0
        and 0 < width <= GPU_WIDTH
        and all(isinstance(d, int) and d > 0 for x in (op.q, op.k) for d in ir.shape_of(x))
        and (square or not op.causal.data)
    )


def _summed_with(delta: SSAValue, g: SSAValue) -> SSAValue | None:
    """Give o where delta = Σ g·o over the last dimension."""
    total = delta.owner
    if not isinstance(total, prim.ReduceOp) or total.kind.data != "add" or ints(total.dims.data) != (3,):
        return None
    product = total.x.owner
    if not isinstance(product, prim.MulOp):
        return None
    a, b = _unconverted(product.a), _unconverted(product.b)
    found = b if a is g else a if b is g else None
    return found if found is not None and ir.dtype_of(found) == ir.dtype_of(g) else None


def _unconverted(x: SSAValue) -> SSAValue:
    """What was widened for a sum."""
    return x.owner.x if isinstance(x.owner, prim.ConvertOp) else x


def _replace(op: Operation, callee: str, operands: Sequence[SSAValue], args: tuple[LiteralValue, ...]) -> None:
    literals = {"callee": Literal.of(callee), "args": Literal.of(args)}
    types = [r.type for r in op.results]
    _put(op, ir.create_op(prim.OpaqueOp, operands, types, literals, location=op.location))


def _put(op: Operation, made: Operation) -> None:
    """Another op in place of one."""
    block = op.parent
    assert block is not None
    block.insert_op_before(made, op)
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()
