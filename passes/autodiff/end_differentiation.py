"""Erase what only differentiation reads, once nobody differentiates any more.

Before:
    %s = prim.stop_gradient %x : tensor<4xf32>
    %y = prim.sin %s : tensor<4xf32>
After:
    %y = prim.sin %x : tensor<4xf32>
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects.autodiff import CustomOp, YieldOp
from isthmus.dialects.prim import StopGradientOp


@dataclass(frozen=True)
class EndDifferentiationPass(ModulePass):
    """Needs: differentiated functions. Leaves: no stop_gradient, no custom rule: derivatives would be wrong now."""

    name = "end-differentiation"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in ir.functions(op).values():
            for block in func.body.blocks:
                end_differentiation(block)


def end_differentiation(block: Block) -> None:
    """Replace each stop_gradient by its operand and each custom call by what its forward computed, regions included."""
    for op in list(block.ops):
        if isinstance(op, StopGradientOp):
            _replace(op, [op.x])
        elif isinstance(op, CustomOp):
            _replace(op, _forward(op))
        else:
            for region in op.regions:
                for inner in region.blocks:
                    end_differentiation(inner)


def _forward(op: CustomOp) -> list[SSAValue]:
    """Move forward's ops before the call (none after `differentiate`); gives the results."""
    block = op.forward.block
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, ir.operands_of(op), strict=True))
    parent = op.parent
    assert parent is not None
    for argument, operand in zip(block.args, ir.operands_of(op), strict=True):
        argument.replace_all_uses_with(operand)
    last: Operation | None = None
    for inner in list(block.ops):
        if isinstance(inner, YieldOp):
            last = inner
            continue
        inner.detach()
        parent.insert_op_before(inner, op)
    assert last is not None
    return [values.get(v, v) for v in ir.operands_of(last)[: len(op.results)]]


def _replace(op: Operation, values: list[SSAValue]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.detach()
    op.erase()
