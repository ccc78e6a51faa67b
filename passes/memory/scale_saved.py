"""Gradients that wait for a factor: what forward has saved is scaled where it lies, and not touched where that is 1.

Before (backward of a loss whose gradient forward has computed for the tangent 1, `isthmus.own_saved = [0]`):
    %y = kernel.fused %d, %t {sizes = [8192, 50304], classes = ["parallel", "parallel"]} ({
      %v = kernel.load {operand = 0, map = [d0, d1]} : f32
      %s = kernel.load {operand = 1, map = []} : f32
      %m = prim.mul %v, %s : f32
      kernel.store %m {result = 0, map = [d0, d1]}
    }) : tensor<8192x50304xf32>
    func.return %y
After: `unless_one = 1` on the kernel: its results have the places of what they are multiples of.

Whoever calls such a backward hands the saved values over, or copies of them where they are needed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.signature import Signature, own_saved
from isthmus.ir import Literal

MOST_ELSE = 16
"""A gradient in the saved arena keeps the arena alive: at most one part in so many of it may be anything else."""


@dataclass(frozen=True)
class ScaleSavedPass(ModulePass):
    """Needs: kernels in execution order. Leaves: `unless_one` on those that scale saved values where they lie."""

    name = "scale-saved"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Mark kernels in every function of the module."""
        for func in ir.functions(op).values():
            scale_saved(func)


def scale_saved(func: FuncOp) -> None:
    """Mark the kernels whose results are multiples of saved values that nobody else has or reads."""
    signature, own = Signature.of(func), own_saved(func)
    saved = {func.body.block.args[k]: role.saved for k, role in enumerate(signature.arguments) if role.saved in own}
    returned = list(ir.operands_of(cast(Operation, func.body.block.last_op)))
    found: list[tuple[kernel.FusedOp, int, list[SSAValue]]] = []
    for op in kernel.launches(func):
        scaled = _scaled(op) if isinstance(op, kernel.FusedOp) else None
        if scaled is None:
            continue
        factor, sources = scaled
        alone = all(v in saved and v.has_one_use() for v in sources) and all(returned.count(r) == 1 for r in op.results)
        if alone and all(_alike(v, r) for v, r in zip(sources, op.results, strict=True)):
            found.append((cast(kernel.FusedOp, op), factor, sources))
    taken = sum(_size(v) for _, _, sources in found for v in sources)
    if taken and (sum(_size(v) for v in saved) - taken) * MOST_ELSE <= taken:
        for op, factor, _ in found:
            op.properties["unless_one"] = Literal.of(factor)


def scaled_from(value: SSAValue) -> BlockArgument | None:
    """Give the saved value in whose place a kernel that is marked makes this multiple of it."""
    op = value.owner
    if not isinstance(op, kernel.FusedOp) or op.unless_one is None:
        return None
    found = _scaled(op)
    assert found is not None
    return cast(BlockArgument, found[1][op.results.index(value)])  # pyright: ignore[reportArgumentType]


def _size(value: SSAValue) -> int:
    size = ir.nbytes(value)
    return size if isinstance(size, int) else 1 << 62


def _alike(value: SSAValue, result: SSAValue) -> bool:
    same = value.type == result.type and kernel.strides_of(value) == kernel.strides_of(result)
    return same and isinstance(value, BlockArgument) and ir.dtype_of(value) in ("f32", "f64", "bf16")


def _scaled(op: kernel.FusedOp) -> tuple[int, list[SSAValue]] | None:
    """The operand that is one number, and per result the operand that it is a multiple of."""
    stores = [inner for inner in op.block.ops if isinstance(inner, kernel.SinkOp)]
    if op.rows or len(stores) != len(op.results) or any(i is not None for i in op.initial_):
        return None
    sources: dict[int, SSAValue] = {}
    factors: set[int] = set()
    for store in stores:
        product = _bare(ir.operands_of(store)[0])
        if not isinstance(store, kernel.StoreOp) or store.kind is not None or not isinstance(product, prim.MulOp):
            return None
        loads = [_bare(v) for v in ir.operands_of(product)]
        if not all(isinstance(load, kernel.LoadOp) and load.default is None for load in loads):
            return None
        numbers, others = [], []
        for load in cast("list[kernel.LoadOp]", loads):
            (others if load.map.dims() else numbers).append(load)
        if len(numbers) != 1 or others[0].map is not store.map or others[0].index_values:
            return None
        factors.add(cast(int, numbers[0].operand.data))
        sources[cast(int, store.result.data)] = op.inputs[cast(int, others[0].operand.data)]
    (factor, *more) = factors
    if more or ir.shape_of(op.inputs[factor]) != () or len(set(sources.values())) != len(sources):
        return None
    return factor, [sources[n] for n in range(len(op.results))]


def _bare(value: SSAValue) -> Operation:
    """What makes a value, conversions apart."""
    maker = cast(Operation, value.owner)
    while isinstance(maker, prim.ConvertOp):
        maker = cast(Operation, maker.x.owner)
    return maker
