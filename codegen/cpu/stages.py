"""A long body in stages: each stage walks a strip of points before the next one does, so that each loop is short.

A processor looks a few hundred instructions ahead. In a loop over a whole chain of functions that is less than one
point's, which wait for one another; in the loops of the stages it sees several points. What a stage leaves for later
ones lies in strips on the stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.body import Body
from isthmus.codegen.cpu.plan import Plan
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import REGISTER
from isthmus.codegen.llvm_text import Type, Value
from isthmus.dialects import kernel as k
from isthmus.ir import Literal

STRIP = 512
"""Points of a strip: 2 KiB of each value stay in the nearest cache."""


@dataclass(frozen=True)
class Stage:
    """What one stage emits, in order, what it takes from strips and what it leaves there."""

    ops: tuple[Operation, ...]
    restored: tuple[SSAValue, ...]
    kept: tuple[SSAValue, ...]


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Give the stages of the ops at a kernel's points; one alone where the schedule has not cut the body.

    What lies in memory is loaded again by each stage that reads it, but for what a store of an earlier one may be over.
    """
    ops = [op for op in plan.kernel.block.ops if plan.scope_of(op) == plan.point]
    numbers = {op: _number(op) for op in ops}
    needed: dict[int, dict[SSAValue, None]] = {n: {} for n in sorted(set(numbers.values()))}
    again: dict[int, set[Operation]] = {n: set() for n in needed}
    first_store = min((numbers[op] for op in ops if isinstance(op, k.StoreOp)), default=0)
    for op in ops:
        for value in ir.operands_of(op):
            maker = cast(Operation, value.owner)
            if maker in numbers and numbers[maker] != numbers[op]:
                if isinstance(maker, k.LoadOp) and not ir.operands_of(maker) and numbers[op] <= first_store:
                    again[numbers[op]].add(maker)
                else:
                    needed[numbers[op]][value] = None
    crossing = {value for values in needed.values() for value in values}
    return tuple(
        Stage(
            tuple(op for op in ops if numbers[op] == n or op in again[n]),
            tuple(needed[n]),
            tuple(r for op in ops if numbers[op] == n for r in op.results if r in crossing),
        )
        for n in needed
    )


def _number(op: Operation) -> int:
    literal = op.attributes.get("stage")
    return literal.data if isinstance(literal, Literal) and isinstance(literal.data, int) else 0


class Strips:
    """The values that cross stages, in memory of the kernel's own."""

    def __init__(self, state: State, body: Body, stages: Iterable[Stage]) -> None:
        self.state, self.body = state, body
        self._slots: dict[SSAValue, Value] = {}
        for stage in stages:
            for value in stage.kept:
                scalar = REGISTER[ir.dtype_of(value)]
                self._slots[value] = state.f.slot(Type.of(scalar), STRIP + state.plan.lanes)

    def emit(self, stage: Stage, position: Value) -> None:
        """Emit a stage for the points from here on; `position` is theirs in the strip."""
        state = self.state
        for value in stage.restored:
            state.set(value, state.f.load(self._address(value, position), self._type(value)))
        for op in stage.ops:
            self.body.emit(op)
        for value in stage.kept:
            operand = state.splat(state.get(value))
            assert isinstance(operand, Value)
            state.f.store(operand, self._address(value, position))

    def _type(self, value: SSAValue) -> Type:
        return Type.of(REGISTER[ir.dtype_of(value)], self.state.lanes)

    def _address(self, value: SSAValue, position: Value) -> Value:
        return self.state.f.address(self._slots[value], position, REGISTER[ir.dtype_of(value)])
