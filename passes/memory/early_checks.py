"""Index checks of arguments first: nobody then waits for long kernels to learn that an index was out of range.

Before:
    %lse = kernel.fused %z {sizes = [8192, 50304], ...} ...         // long
    %loss = kernel.fused %t, %z, %lse {sizes = [8192], ...} ({
      %i = kernel.load {operand = 0, map = [d0]} : i64
      %c = kernel.check %i {bound = 50304, dim = 1} : i64
      ...
After, in front of all else:
    %first = kernel.fused %t {sizes = [8192], classes = ["parallel"]} ({
      %i = kernel.load {operand = 0, map = [d0]} : i64
      %c = kernel.check %i {bound = 50304, dim = 1} : i64
      kernel.store %c {result = 0, map = [d0]}
    }) : tensor<8192xi64>
The check of the second kernel stays; it fails only where this one has failed. Several kernels that each check a part
of the tensor are as good as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.dialects.kernel.checked import Checked, checked, checked_part
from isthmus.ir import Literal
from isthmus.passes.analysis.prices import Prices


@dataclass(frozen=True)
class EarlyChecksPass(ModulePass):
    """Needs: kernels in execution order. Leaves: what can be wrong about arguments is looked at before long kernels."""

    name = "early-checks"

    least: int | None = None
    """Bytes that kernels move before it counts; none: by the program's prices."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Add kernels to every function of the module."""
        for func in ir.functions(op).values():
            check_first(func, Prices.of(func, "gpu").late_bytes if self.least is None else self.least)


def check_first(func: FuncOp, least: int) -> None:
    """Check what is read of arguments and would be checked after kernels that move at least so many bytes."""
    block, moved, known = func.body.block, 0, set[Checked]()
    together = _in_parts(block)
    first = block.first_op
    assert first is not None
    for op in list(block.ops):
        if not isinstance(op, kernel.LaunchOp):
            continue
        moved += sum(size for v in (*ir.operands_of(op), *op.results) if isinstance(size := ir.nbytes(v), int))
        if not isinstance(op, kernel.LoopNest):
            continue
        for check in kernel.checks(op):
            found = checked(op, check)
            if found is None or found[0] in known:
                continue
            source = found[0][0]
            everywhere = (found[1] or found[0] in together) and _has_points(op)
            late = moved >= least and isinstance(source, BlockArgument) and isinstance(check.bound.data, int)
            if everywhere and late:
                block.insert_op_before(_alone(op, check), first)
            if everywhere and (late or found[1]):
                known.add(found[0])


def _in_parts(block: Block) -> set[Checked]:
    """What is compared for each element of a tensor, part by part in its order."""
    ends: dict[Checked, int] = {}
    for op in block.ops:
        if not isinstance(op, kernel.LoopNest) or not _has_points(op):
            continue
        for check in kernel.checks(op):
            found = checked_part(op, check)
            if found is not None and found[1] is not None and found[1][0] == ends.get(found[0], 0):
                ends[found[0]] = found[1][1]
    return {what for what, end in ends.items() if end == ir.numel(cast(SSAValue, what[0]))}


def _has_points(op: kernel.LoopNest) -> bool:
    return all(isinstance(size, int) and size > 0 for size in op.sizes_)


def _alone(op: kernel.LoopNest, check: kernel.CheckOp) -> Operation:
    """A kernel that does the check for each element of the tensor that its index is read from."""
    wanted = kernel.leading_to(op, [check])
    (load,) = (inner for inner in wanted if isinstance(inner, kernel.LoadOp))
    source = op.inputs[cast(int, load.operand.data)]
    shape = ir.shape_of(source)
    here = kernel.Map.identity(len(shape))
    block = Block()
    values: dict[SSAValue, SSAValue] = {}
    for inner in wanted:
        kernel.copy_into(block, inner, values, {"operand": Literal.of(0), "map": here} if inner is load else {})
    store = {"result": Literal.of(0), "map": here}
    block.add_op(ir.create_op(kernel.StoreOp, [values[check.y]], [], store))
    properties = {"sizes": Literal.of(shape), "classes": Literal.of(("parallel",) * len(shape))}
    result = ir.tensor(shape, "i64")
    return ir.create_op(kernel.FusedOp, [source], [result], properties, regions=[Region([block])], location=op.location)
