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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

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
from isthmus.passes.autodiff.rules.scan import make_scan
from isthmus.passes.autodiff.table import Fallbacks, TakesDerivatives
from isthmus.passes.vectorize.dims import folded, moved_to_front, unfolded
from isthmus.passes.vectorize.table import Batch

Values = Mapping[SSAValue, SSAValue]


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
    example = Block(arg_types=[a.type for a in op.body.block.args])
    arguments = [o if at is None else a for o, a, at in zip(operands, example.args, op.mapped, strict=True)]
    yielded = inline(Emitter(example, outer=e), op.body.block, arguments, fallbacks)
    example.add_op(ir.create_op(autodiff.YieldOp, yielded, (), location=op.location))
    ir.erase_unused(example, lambda inner: inner.has_trait(IsTerminator))
    mapped: dict[SSAValue, SSAValue] = {
        argument: moved_to_front(e, operand, at)
        for argument, operand, at in zip(example.args, operands, op.mapped, strict=True)
        if at is not None
    }
    run = _Examples(example, yielded, fallbacks, str(ir.literal(op, "randomness")))
    whole = op.chunk is None or (isinstance(op.size, int) and op.size <= op.chunk)
    results = run.over(e, op.size, mapped) if whole else run.in_chunks(e, op.size, cast(int, op.chunk), mapped)
    example.erase(safe_erase=False)
    return results


@dataclass(frozen=True)
class _Examples:
    """The program for one example."""

    block: Block
    yielded: Sequence[SSAValue]
    fallbacks: Fallbacks
    randomness: str

    def over(self, e: Emitter, size: ir.Dim, mapped: Values, around: Values | None = None) -> list[SSAValue]:
        """Write it for so many examples; `around` says what values of the surroundings are here."""
        batch = Batch(e, size, self.fallbacks, self.randomness)
        for value, over in (around or {}).items():
            batch.define(value, over, mapped=False)
        for argument, over in mapped.items():
            batch.define(argument, over, mapped=True)
        batch.run(self.block)
        return [batch.over_all(v) for v in self.yielded]

    def in_chunks(self, e: Emitter, size: ir.Dim, chunk: int, mapped: Values) -> list[SSAValue]:
        """A loop over chunks, then what is left of them: x[B, ..] is x[B // chunk, chunk, ..] and x[B % chunk, ..]."""
        steps, cut = size // chunk, size // chunk * chunk
        outer = list(self._outer_values())

        def step(inner: Emitter, carries: list[SSAValue], slices: list[SSAValue], rest: list[SSAValue]):
            given = dict(zip(mapped, slices, strict=True))
            return (), self.over(inner, chunk, given, dict(zip(outer, rest, strict=True)))

        parts = [unfolded(e, e.slice(v, 0, 0, cut), steps, chunk) for v in mapped.values()]
        _, stacked = make_scan(e, (), parts, outer, step, reverse=False)
        joined = [folded(e, v) for v in stacked]
        if cut == size:
            return joined
        left = {a: e.slice(v, 0, cut, size) for a, v in mapped.items()}
        return [e.concat(pair, 0) for pair in zip(joined, self.over(e, size - cut, left), strict=True)]

    def _outer_values(self) -> dict[SSAValue, None]:
        """The values of the surroundings that it reads."""
        own: set[SSAValue] = {*self.block.args, *(r for op in self.block.ops for r in op.results)}
        return {v: None for op in self.block.ops for v in ir.operands_of(op) if v not in own}
