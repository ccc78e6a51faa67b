"""What is only copied to its part of a larger tensor is made there.

Before (a concatenation of what other steps have made):
    %y = kernel.fused %a, %b {sizes = [64, 32], classes = ["parallel", "parallel"]} ({
      %x = kernel.load {operand = 0, map = [d0, d1]} : bf16
      %z = kernel.load {operand = 1, map = [d0, d1]} : bf16
      kernel.store %x {result = 0, map = [d0, d1]}
      kernel.store %z {result = 0, map = [d0 + 64, d1]}
    }) : tensor<128x32xbf16>
After:
    %y = kernel.join %a, %b : tensor<128x32xbf16>
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.memory.plan_memory import is_handle


@dataclass(frozen=True)
class JoinInPlacePass(ModulePass):
    """Needs: kernels in execution order. Leaves: `kernel.join` where a kernel only put together what others made."""

    name = "join-in-place"

    least: int | None = None
    """Bytes that are worth a place; none: by the program's prices."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace kernels in every function of the module."""
        for func in ir.functions(op).values():
            join_in_place(func, Prices.of(func).join_bytes if self.least is None else self.least)


def join_in_place(func: FuncOp, least: int) -> None:
    """Replace the kernels that put together at least so many bytes."""
    for op in list(func.body.block.ops):
        size = ir.nbytes(op.results[0]) if isinstance(op, kernel.FusedOp) else None
        if not isinstance(op, kernel.FusedOp) or not isinstance(size, int) or size < least:
            continue
        parts = _parts(op)
        if parts is not None and all(_is_made_for(v, op) for v in parts):
            made = ir.create_op(kernel.JoinOp, parts, [op.results[0].type], location=op.location)
            func.body.block.insert_op_before(made, op)
            op.results[0].replace_all_uses_with(made.results[0])
            op.detach()
            op.erase()


def _is_made_for(value: SSAValue, op: kernel.FusedOp) -> bool:
    """Whether a step of the same function writes a value, into memory that it is given, for this kernel alone."""
    owner = value.owner
    if not isinstance(owner, kernel.LaunchOp) or owner.parent is not op.parent or not value.has_one_use():
        return False
    return not is_handle(value) and not isinstance(owner, kernel.ReshapeOp | kernel.JoinOp)


def _parts(op: kernel.FusedOp) -> list[SSAValue] | None:
    """What a kernel puts together, in order, where it does nothing else."""
    stores = [inner for inner in op.block.ops if isinstance(inner, kernel.StoreOp)]
    loads = [inner for inner in op.block.ops if isinstance(inner, kernel.LoadOp)]
    only_copies = len(stores) == len(loads) == len(op.inputs) > 1 and len(op.block.ops) == 2 * len(stores)
    if len(op.results) != 1 or not only_copies or op.initial_ != (None,) or op.symbols_:
        return None
    if any(not isinstance(n, int) for n in op.sizes_) or any(not _is_row_major(v) for v in (*op.inputs, *op.results)):
        return None
    found: dict[int, SSAValue] = {}
    for store in stores:
        (value,) = ir.operands_of(store)
        load = value.owner
        start = _start(op, load, store) if isinstance(load, kernel.LoadOp) and store.kind is None else None
        if start is None:
            return None
        found[start] = op.inputs[cast(int, cast(kernel.LoadOp, load).operand.data)]
    return _in_order(op, found)


def _start(op: kernel.FusedOp, load: kernel.LoadOp, store: kernel.StoreOp) -> int | None:
    """The element from which on a kernel copies a whole operand; None where the points are not its elements."""
    if load.default is not None or load.index_values or len(ir.operands_of(store)) != 1:
        return None
    source = op.inputs[cast(int, load.operand.data)]
    (read,), (written,) = kernel.linear_map(op, load).data, kernel.linear_map(op, store).data
    start = written.constant
    point = kernel.Map.identity(len(op.sizes_)).linear(ir.contiguous_strides(op.sizes_))
    whole = math.prod(cast("tuple[int, ...]", op.sizes_)) == ir.numel(source) and read == point
    return start if whole and isinstance(start, int) and written == read + start else None


def _in_order(op: kernel.FusedOp, found: dict[int, SSAValue]) -> list[SSAValue] | None:
    """The operands by where they begin, where they fill the result without gaps."""
    end, parts = 0, list[SSAValue]()
    for start in sorted(found):
        value = found[start]
        if start != end or value in parts or ir.shape_of(value)[1:] != ir.shape_of(op.results[0])[1:]:
            return None
        parts.append(value)
        end += cast(int, ir.numel(value))
    return parts if len(parts) == len(op.inputs) and end == ir.numel(op.results[0]) else None


def _is_row_major(value: SSAValue) -> bool:
    shape = ir.shape_of(value)
    return bool(shape) and kernel.strides_of(value) == ir.contiguous_strides(shape)
