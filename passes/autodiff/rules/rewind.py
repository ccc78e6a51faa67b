"""Loops whose end only data tells: the derivative counts the steps and walks back between carries kept at a stride.

Before:
    %y = prim.while %x, %w {carried = 1} ({condition(y, w)}, {yield f(y, w)})
After, for the cotangent ȳ:
    n = the number of steps, counted by running the loop again
    tape = the carry before step 0, s, 2s, ... with s = ceil(n / SLOTS), by one more run
    for each slot from the last, for each of its steps from the last:
        y = the carry before this step, from the slot's carry on
        ȳ, w̄ = ȳ·∂f/∂y, w̄ + ȳ·∂f/∂w
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from isthmus.passes.autodiff.rules.scan import make_scan

Advance = Callable[[Emitter, Sequence[SSAValue]], Sequence[SSAValue]]
"""`advance(e, arguments)` emits one step of a loop on (carries, rest) and gives the next carries."""

Pull = Callable[[Emitter, Sequence[SSAValue], Sequence[SSAValue]], Sequence[SSAValue]]
"""`pull(e, arguments, state)` emits the backward of a step that began with the arguments, and gives the next state."""

SLOTS = 64
"""Kept carries. A loop of n steps runs 3n steps for n <= SLOTS, and about n * (2 + n / (2 * SLOTS)) beyond."""


def rewind(
    e: Emitter, op: prim.WhileOp, carried: int, state: Sequence[SSAValue], advance: Advance, pull: Pull
) -> list[SSAValue]:
    """Give the state after all steps went backwards; it holds cotangents of carries and sums over steps.

    Equal strides are the simplest of the schedules in Griewank and Walther, Evaluating Derivatives (2008), chapter 12;
    memory is SLOTS carries whatever the number of steps.
    """
    operands = ir.operands_of(op)
    carries, rest = operands[:carried], operands[carried:]
    count = _count(e, op, carried, advance)
    most = e.const(SLOTS, (), "i64")
    stride = e.div(e.add(count, e.const(SLOTS - 1, (), "i64")), most)
    numbers = e.iota((SLOTS,), 0)

    def keep(inner: Emitter, now: list[SSAValue], slot: list[SSAValue], given: list[SSAValue]):
        length = _length(inner, slot[0], *given[:2])
        return _run(inner, now, given[2:], length, advance), now

    _, tape = make_scan(e, carries, [numbers], [count, stride, *rest], keep, False)

    def back(inner: Emitter, now: list[SSAValue], slot: list[SSAValue], given: list[SSAValue]):
        length = _length(inner, slot[0], *given[:2])
        nothing: list[SSAValue] = []
        return _walk_back(inner, now, slot[1:], given[2:], length, advance, pull), nothing

    last, _ = make_scan(e, state, [numbers, *tape], [count, stride, *rest], back, True)
    return last


def _count(e: Emitter, op: prim.WhileOp, carried: int, advance: Advance) -> SSAValue:
    """How often the loop runs: the loop itself with a counter behind its carries."""
    operands = ir.operands_of(op)

    def own(values: Sequence[SSAValue]) -> list[SSAValue]:
        return [*values[:carried], *values[carried + 1 :]]

    def holds(inner: Emitter, values: Sequence[SSAValue]) -> SSAValue:
        copied: dict[SSAValue, SSAValue] = dict(zip(op.condition.block.args, own(values), strict=True))
        for each in op.condition.block.ops:
            if isinstance(each, prim.YieldOp):
                return copied[ir.operands_of(each)[0]]
            inner.block.add_op(each.clone(copied))
        raise AssertionError("a region ends with a yield")

    def step(inner: Emitter, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
        one = inner.const(1, (), "i64")
        return [*advance(inner, own(values)), inner.add(values[carried], one)]

    start = e.const(0, (), "i64")
    return _loop(e, [*operands[:carried], start], operands[carried:], holds, step)[carried]


def _length(e: Emitter, slot: SSAValue, count: SSAValue, stride: SSAValue) -> SSAValue:
    """Steps of one slot: min(max(n - slot * s, 0), s)."""
    left = e.sub(count, e.mul(slot, stride))
    return e.min(e.max(left, e.const(0, (), "i64")), stride)


def _run(
    e: Emitter, carries: Sequence[SSAValue], rest: Sequence[SSAValue], length: SSAValue, advance: Advance
) -> list[SSAValue]:
    """Give the carries `length` steps later."""
    many = len(carries)

    def step(inner: Emitter, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
        one = inner.const(1, (), "i64")
        following = advance(inner, [*values[:many], *values[many + 2 :]])
        return [*following, inner.add(values[many], one)]

    def holds(inner: Emitter, values: Sequence[SSAValue]) -> SSAValue:
        return inner.cmp("lt", values[many], values[many + 1])

    return _loop(e, [*carries, e.const(0, (), "i64")], [length, *rest], holds, step)[:many]


def _walk_back(
    e: Emitter,
    state: Sequence[SSAValue],
    carries: Sequence[SSAValue],
    rest: Sequence[SSAValue],
    length: SSAValue,
    advance: Advance,
    pull: Pull,
) -> list[SSAValue]:
    """while k > 0: k = k - 1; state = pull(the carries k steps on, state)"""
    many, end = len(state), len(state) + 1 + len(carries)

    def step(inner: Emitter, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
        before = inner.sub(values[many], inner.const(1, (), "i64"))
        now = _run(inner, values[many + 1 : end], values[end:], before, advance)
        return [*pull(inner, [*now, *values[end:]], values[:many]), before]

    def holds(inner: Emitter, values: Sequence[SSAValue]) -> SSAValue:
        return inner.cmp("gt", values[many], inner.const(0, (), "i64"))

    return _loop(e, [*state, length], [*carries, *rest], holds, step)[:many]


def _loop(
    e: Emitter,
    carries: Sequence[SSAValue],
    rest: Sequence[SSAValue],
    holds: Callable[[Emitter, Sequence[SSAValue]], SSAValue],
    step: Callable[[Emitter, Sequence[SSAValue]], Sequence[SSAValue]],
) -> list[SSAValue]:
    """carry = carries; while holds(carry, rest): carry = step(carry, rest)"""
    operands = [*carries, *rest]
    types = [v.type for v in operands]
    ask, asking, seen = e.region(types)
    turn, turning, current = e.region(types)
    asking.location = turning.location = e.location
    asking.yield_([holds(asking, seen)])
    turning.yield_(step(turning, current))
    made = ir.create_op(
        prim.WhileOp,
        operands,
        types[: len(carries)],
        {"carried": Literal.of(len(carries))},
        location=e.location,
        regions=[ask, turn],
    )
    e.block.add_op(made)
    return list(made.results)
