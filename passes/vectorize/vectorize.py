"""Inline what runs per example as one program over all examples.

Before:
    %y = autodiff.batch %x, %w {mapped = [0, none], size = 8, randomness = "error"} ({
    ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
      %c = prim.mul %a, %b : tensor<4xf32>
      autodiff.yield %c : tensor<4xf32>
    }) : tensor<8x4xf32>
After:
    %v = prim.broadcast %w {dims = [1]} : tensor<8x4xf32>
    %y = prim.mul %x, %v : tensor<8x4xf32>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsTerminator

from isthmus import ir
from isthmus.dialects import autodiff
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.differentiate import Body, replace_function
from isthmus.passes.autodiff.expand import expands, inline
from isthmus.passes.autodiff.table import Fallbacks, TakesDerivatives
from isthmus.passes.vectorize.dims import moved_to_front
from isthmus.passes.vectorize.table import Batch


@dataclass(frozen=True)
class VectorizePass(TakesDerivatives, ModulePass):
    """Needs: functions in primitives, not differentiated yet. Leaves: no autodiff.batch outside of custom backwards.

    In functions that have one, gradients asked for are expanded too: what is mapped may depend on them.
    """

    name = "vectorize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for name, func in ir.functions(op).items():
            if any(isinstance(inner, autodiff.BatchOp) for inner in func.walk()):
                body = Body(func, self.fallbacks, as_gradients=False)
                replace_function(op, name, body.close(name, body.signature, []))


@expands(autodiff.BatchOp)
def vectorized(e: Emitter, op: Operation, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> Sequence[SSAValue]:
    """Give the results for all examples.

    First the program for one example: gradients expand there, and what all examples share are the outer values.
    """
    assert isinstance(op, autodiff.BatchOp)
    source = op.body.block
    example = Block(arg_types=[a.type for a in source.args])
    batch = Batch(e, op.size, fallbacks)
    arguments: list[SSAValue] = []
    for argument, operand, at in zip(example.args, operands, op.mapped, strict=True):
        arguments.append(operand if at is None else argument)
        if at is not None:
            batch.define(argument, moved_to_front(e, operand, at), mapped=True)
    yielded = inline(Emitter(example, outer=e), source, arguments, fallbacks)
    example.add_op(ir.create_op(autodiff.YieldOp, yielded, (), location=op.location))
    ir.erase_unused(example, lambda inner: inner.has_trait(IsTerminator))
    batch.run(example)
    results = [batch.over_all(v) for v in yielded]
    example.erase(safe_erase=False)
    return results
