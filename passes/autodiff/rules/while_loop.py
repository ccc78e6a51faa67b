"""Loops whose number of steps is bounded before they run: their derivative is that of a loop over a known length.

Before:
    %i, %y = prim.while %0, %x {carried = 2} ({i < 4}, {yield i + 1, f(y)})
After:
    %i, %y = prim.scan %0, %x, iota(4) {carried = 2, scanned = 1} ({yield i + 1, f(y)})
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Dim, Literal
from isthmus.sizes import Size

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}


@dataclass(frozen=True)
class Steps:
    """How often a loop runs: at most `bound` times; exactly so often where nothing else ends it."""

    bound: Dim
    exact: bool


def steps_of(op: prim.WhileOp, operands: Sequence[SSAValue]) -> Steps | None:
    """Give what the condition's comparison of a counter with a known number says; None where there is none.

    A counter is a 0-d integer carry that starts at a constant and to which each step adds a constant.
    """
    parts = list(_conjuncts(ir.operands_of(_last(op.condition))[0]))
    found = [bound for part in parts if (bound := _bound(op, operands, part)) is not None]
    if not found:
        return None
    numbers = [b for b in found if isinstance(b, int)]
    return Steps(min(numbers) if numbers else found[0], len(parts) == 1)


def as_scan(e: Emitter, op: prim.WhileOp, operands: Sequence[SSAValue], steps: Steps) -> prim.ScanOp:
    """Emit the loop as a scan over `bound` steps; one that may end earlier keeps its carries from there on."""
    carried = cast(int, op.carried.data)
    if steps.exact:
        body = op.body.clone()
        body.block.insert_arg(ir.tensor((), "i64"), carried)
    else:
        body = _until_ended(e, op, carried)
    number = e.iota((steps.bound,), 0)
    made = ir.create_op(
        prim.ScanOp,
        [*operands[:carried], number, *operands[carried:]],
        [r.type for r in op.results],
        {"carried": Literal.of(carried), "scanned": Literal.of(1), "reverse": Literal.of(False)},
        location=op.location,
        regions=[body],
    )
    e.block.add_op(made)
    return made


def _until_ended(e: Emitter, op: prim.WhileOp, carried: int) -> Region:
    """carry = condition(carry, rest) ? body(carry, rest) : carry"""
    types = [a.type for a in op.body.block.args]
    region, inner, arguments = e.region([*types[:carried], ir.tensor((), "i64"), *types[carried:]])
    inner.location = op.location
    xs = [*arguments[:carried], *arguments[carried + 1 :]]
    values: dict[SSAValue, SSAValue] = dict(zip(op.condition.block.args, xs, strict=True))
    for each in list(op.condition.block.ops)[:-1]:
        copied = each.clone(values)
        inner.block.add_op(copied)
    holds = ir.operands_of(_last(op.condition))[0]
    otherwise, stay, same = e.region(types)
    stay.location = op.location
    stay.yield_(same[:carried])
    regions = [op.body.clone(), otherwise]
    results = [r.type for r in op.results]
    choice = ir.create_op(prim.CondOp, [values.get(holds, holds), *xs], results, location=op.location, regions=regions)
    inner.block.add_op(choice)
    inner.yield_(list(choice.results))
    return region


def _last(region: Region) -> Operation:
    last = region.block.last_op
    assert last is not None
    return last


def _conjuncts(value: SSAValue) -> Iterator[SSAValue]:
    owner = value.owner
    if isinstance(owner, prim.AndOp):
        for operand in ir.operands_of(owner):
            yield from _conjuncts(operand)
    else:
        yield value


def _bound(op: prim.WhileOp, operands: Sequence[SSAValue], part: SSAValue) -> Dim | None:
    compare = part.owner
    if not isinstance(compare, prim.CmpOp):
        return None
    predicate = cast(str, compare.predicate.data)
    left, right = ir.operands_of(compare)
    if not isinstance(left, BlockArgument) or left.index >= cast(int, op.carried.data):
        left, right, predicate = right, left, _FLIPPED.get(predicate, "eq")
    if not isinstance(left, BlockArgument) or left.index >= cast(int, op.carried.data) or predicate not in _FLIPPED:
        return None
    if isinstance(right, BlockArgument):
        if right.index < cast(int, op.carried.data):
            return None  # it moves with the loop
        right = operands[right.index]
    start, end = _known(operands[left.index]), _known(right)
    step = _increment(op, left.index)
    if start is None or end is None or step is None:
        return None
    return _count(start, end, step, predicate)


def _known(value: SSAValue) -> Dim | None:
    """An integer scalar that is known before the loop runs."""
    owner = value.owner
    if ir.shape_of(value) or ir.dtype_of(value) not in ("i64", "i32", "i16", "i8"):
        return None
    if isinstance(owner, prim.ConstOp):
        number = owner.value.data
        return number if isinstance(number, int) else None
    if isinstance(owner, prim.SizeOp):
        size = owner.expr.data
        return size if isinstance(size, int | Size) else None
    return None


def _increment(op: prim.WhileOp, index: int) -> int | None:
    """What each step adds to a carry, None where it does something else."""
    argument = op.body.block.args[index]
    added = ir.operands_of(_last(op.body))[index].owner
    if not isinstance(added, prim.AddOp | prim.SubOp):
        return None
    left, right = ir.operands_of(added)
    if right is argument and isinstance(added, prim.AddOp):
        left, right = right, left
    number = _known(right)
    if left is not argument or not isinstance(number, int):
        return None
    return number if isinstance(added, prim.AddOp) else -number


def _count(start: Dim, end: Dim, step: int, predicate: str) -> Dim | None:
    """How many terms of start, start + step, ... come before the first for which the predicate fails."""
    if not isinstance(start, int) or not isinstance(end, int):
        return end if predicate == "lt" and start == 0 and step == 1 else None
    if predicate in ("gt", "ge"):
        start, end, step = -start, -end, -step
    distance = end - start
    if predicate == "ne":
        return distance // step if step and distance % step == 0 and distance // step >= 0 else None
    distance += predicate in ("le", "ge")
    if distance <= 0:
        return 0
    return -(-distance // step) if step > 0 else None
