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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import autodiff
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.expand import TERMINATORS, inline
from isthmus.passes.autodiff.table import Fallbacks, TakesDerivatives
from isthmus.passes.vectorize import rules
from isthmus.passes.vectorize.table import Batch, batched


@dataclass(frozen=True)
class VectorizePass(TakesDerivatives, ModulePass):
    """Needs: functions in primitives, not differentiated yet. Leaves: no autodiff.batch; gradients in it expanded."""

    name = "vectorize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in ir.functions(op).values():
            for inner in list(_innermost_first(func)):
                _replace(inner, self.fallbacks)


def _innermost_first(op: Operation) -> Iterator[autodiff.BatchOp]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield from _innermost_first(inner)
    if isinstance(op, autodiff.BatchOp):
        yield op


def _replace(op: autodiff.BatchOp, fallbacks: Fallbacks) -> None:
    """Put the batched body in the place of the op."""
    operands = ir.operands_of(op)
    block = Block(arg_types=[v.type for v in operands])
    e = Emitter(block)
    e.location = op.location
    results = vectorized(e, op, block.args, fallbacks)
    for argument, operand in zip(block.args, operands, strict=True):
        argument.replace_all_uses_with(operand)
    given: dict[SSAValue, SSAValue] = dict(zip(block.args, operands, strict=True))
    results = [given.get(r, r) for r in results]
    parent = op.parent
    assert parent is not None
    for made in list(block.ops):
        made.detach()
        parent.insert_op_before(made, op)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


def vectorized(e: Emitter, op: autodiff.BatchOp, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> list[SSAValue]:
    """Give the results for all examples; a gradient asked for in the body is expanded there first."""
    example = Block(arg_types=[a.type for a in op.body.block.args])
    yielded = inline(Emitter(example), op.body.block, example.args, fallbacks)
    batch = Batch(e, op.size, fallbacks)
    for argument, operand, at in zip(example.args, operands, op.mapped, strict=True):
        batch.define(argument, operand if at is None else rules.moved_to_front(e, operand, at), at is not None)
    example.add_op(ir.create_op(autodiff.YieldOp, yielded, (), location=op.location))
    for inner in example.ops:
        if not isinstance(inner, TERMINATORS):
            e.location = inner.location
            batched(batch, inner)
    results = [batch.over_all(v) for v in yielded]
    example.erase(safe_erase=False)
    return results
