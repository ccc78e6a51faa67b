"""Expand what is left of autodiff and erase what only differentiation reads, once nobody differentiates any more.

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
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects.autodiff import AUTODIFF, CustomOp, YieldOp
from isthmus.dialects.prim import StopGradientOp
from isthmus.passes.autodiff.differentiate import Body, replace_function
from isthmus.passes.autodiff.table import TakesDerivatives

AUTODIFF_OPS = tuple(op for op in AUTODIFF.operations if op is not CustomOp)


@dataclass(frozen=True)
class EndDifferentiationPass(TakesDerivatives, ModulePass):
    """Needs: functions in primitives, differentiated or not. Leaves: no autodiff op and no stop_gradient.

    Nothing may be differentiated afterwards: it would go through what had a derivative of its own.
    """

    name = "end-differentiation"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for name, func in ir.functions(op).items():
            if any(isinstance(inner, AUTODIFF_OPS) for inner in func.walk()):
                body = Body(func, self.fallbacks, as_gradients=False)
                func = body.close(name, body.signature, [])
                replace_function(op, name, func)
            end_differentiation(func)


def end_differentiation(func: FuncOp) -> None:
    """Replace each stop_gradient by its operand and each custom call by what its forward computed, regions included."""
    _end_in(func.body.block)


def _end_in(block: Block) -> None:
    for op in list(block.ops):
        if isinstance(op, StopGradientOp):
            _replace(op, [op.x])
        elif isinstance(op, CustomOp):
            _end_in(op.forward.block)
            _replace(op, _forward(op))
        else:
            for region in op.regions:
                for inner in region.blocks:
                    _end_in(inner)


def _forward(op: CustomOp) -> list[SSAValue]:
    """Move forward's ops before the call (none after `differentiate`); gives the results."""
    block, parent = op.forward.block, op.parent
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
    return list(ir.operands_of(last)[: len(op.results)])


def _replace(op: Operation, values: list[SSAValue]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.detach()
    op.erase()
