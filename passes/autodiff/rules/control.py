"""Pullbacks of control flow: a region's forward is recomputed where its backward runs, loops keep their carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.expand import inline
from isthmus.passes.autodiff.pull import activity, made_since, pull
from isthmus.passes.autodiff.rules.rewind import rewind
from isthmus.passes.autodiff.rules.scan import make_scan
from isthmus.passes.autodiff.rules.while_loop import as_scan, steps_of
from isthmus.passes.autodiff.table import Cotangents, Fallbacks, Needs, nested_pullback


def pull_block(
    e: Emitter,
    block: Block,
    arguments: Sequence[SSAValue],
    needs: Needs,
    cts: Cotangents,
    fallbacks: Fallbacks,
) -> Cotangents:
    """Recompute a region's block on arguments inside e's block and pull cotangents of its results through it."""
    last = e.block.last_op
    apart = Emitter(e.block)  # shares nothing, so that exactly the block's ops lie between arguments and results
    apart.location = e.location
    results = inline(apart, block, arguments, fallbacks)
    ops = made_since(e, last)
    active = activity(ops, [a for a, need in zip(arguments, needs, strict=True) if need])
    seeds: dict[SSAValue, SSAValue] = {}
    for value, ct in zip(results, cts, strict=True):
        if ct is not None and value in active:
            seeds[value] = e.add(seeds[value], ct) if value in seeds else ct
    found = pull(e, ops, active, seeds, fallbacks)
    return [found.get(a) if need else None for a, need in zip(arguments, needs, strict=True)]


@nested_pullback(prim.CondOp)
def cond(e: Emitter, op: prim.CondOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    """x̄s = p ? (then's pullback) : (otherwise's pullback), of xs and ȳs; a branch that does not reach an x gives 0."""
    p, *xs = ir.operands_of(op)
    given = [ct for ct in cts if ct is not None]
    branches = [_Branch(e, region, xs, needs[1:], cts, fallbacks) for region in (op.then, op.otherwise)]
    reached = [any(b.gradients[i] is not None for b in branches) for i in range(len(xs))]
    made = ir.create_op(
        prim.CondOp,
        [p, *xs, *given],
        [x.type for x, r in zip(xs, reached, strict=True) if r],
        location=e.location,
        regions=[b.close(reached) for b in branches],
    )
    e.block.add_op(made)
    results = iter(made.results)
    return (None, *(next(results) if r else None for r in reached))


class _Branch:
    """The pullback of one branch, as a region on (xs, ȳs) under construction."""

    def __init__(
        self, e: Emitter, region: Region, xs: Sequence[SSAValue], needs: Needs, cts: Cotangents, fallbacks: Fallbacks
    ) -> None:
        types: list[Attribute] = [*(x.type for x in xs), *(ct.type for ct in cts if ct is not None)]
        self._region, self._inner, arguments = e.region(types)
        self._inner.location = e.location
        self._xs = arguments[: len(xs)]
        seeds = iter(arguments[len(xs) :])
        inner_cts = [None if ct is None else next(seeds) for ct in cts]
        self.gradients = pull_block(self._inner, region.block, self._xs, needs, inner_cts, fallbacks)

    def close(self, reached: Sequence[bool]) -> Region:
        """End the region with a gradient for each x that either branch reaches."""
        pairs = zip(self._xs, self.gradients, reached, strict=True)
        self._inner.yield_([self._inner.zeros_like(x) if g is None else g for x, g, r in pairs if r])
        return self._region


@nested_pullback(prim.ScanOp)
def scan(e: Emitter, op: prim.ScanOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    """The loop the other way round over the tape of carries: each step recomputes its forward and pulls through it."""
    return _Scan(op, needs).pull(e, cts, fallbacks)


def closed_over_steps(block: Block, carried: int, needs: list[bool]) -> list[bool]:
    """A carry takes part in differentiation as soon as what a step puts into it does."""
    last = block.last_op
    assert last is not None
    following = ir.operands_of(last)[:carried]
    ops = list(block.ops)
    while True:
        active = activity(ops, [a for a, need in zip(block.args, needs, strict=True) if need])
        grown = [need or (k < carried and following[k] in active) for k, need in enumerate(needs)]
        if grown == needs:
            return needs
        needs = grown


class _Scan:
    """What of a scan takes part in differentiation."""

    def __init__(self, op: prim.ScanOp, needs: Needs) -> None:
        self.op, self.block = op, op.body.block
        self.carried, self.scanned = cast(int, op.carried.data), cast(int, op.scanned.data)
        operands = ir.operands_of(op)
        bounds = self.carried + self.scanned
        self.carries, self.slices = operands[: self.carried], operands[self.carried : bounds]
        self.rest = operands[bounds:]
        self.needs = closed_over_steps(self.block, self.carried, list(needs))

    def pull(self, e: Emitter, cts: Cotangents, fallbacks: Fallbacks) -> Cotangents:
        """Emit the backward loop; gives the operands' cotangents."""
        first, second = self.carried, self.carried + self.scanned
        moving = [k for k in range(first) if self.needs[k]]
        still = [k for k in range(len(self.rest)) if self.needs[second + k]]
        sliced = [k for k in range(self.scanned) if self.needs[first + k]]
        finals = [e.zeros_like(self.carries[k]) if (ct := cts[k]) is None else ct for k in moving]
        given = [ct for ct in cts[first:] if ct is not None]
        tape = keep_carries(self.op)

        def step(inner: Emitter, carry: list[SSAValue], now: list[SSAValue], rest: list[SSAValue]):
            arguments = [*now[:second], *rest]
            seeds = iter(now[second:])
            carry_cts = dict(zip(moving, carry, strict=False))
            stacked = [None if ct is None else next(seeds) for ct in cts[first:]]
            inner_cts = [*(carry_cts.get(k) for k in range(first)), *stacked]
            inner_cts.extend([None] * (len(self.op.results) - len(cts)))  # the tape has none
            found = pull_block(inner, self.block, arguments, self.needs, inner_cts, fallbacks)

            def gradient(k: int) -> SSAValue:
                return found[k] or inner.zeros_like(arguments[k])

            sums = zip(carry[len(moving) :], still, strict=True)
            following = [*map(gradient, moving), *(inner.add(total, gradient(second + k)) for total, k in sums)]
            return following, [gradient(first + k) for k in sliced]

        totals = [e.zeros_like(self.rest[k]) for k in still]
        reverse = self.op.reverse.data is not True
        last, stacked = make_scan(e, [*finals, *totals], [*tape, *self.slices, *given], self.rest, step, reverse)
        found: list[SSAValue | None] = [None] * len(self.needs)
        places = [*moving, *(second + k for k in still), *(first + k for k in sliced)]
        for place, value in zip(places, [*last, *stacked], strict=True):
            found[place] = value
        return found


def keep_carries(op: prim.ScanOp) -> list[SSAValue]:
    """Give each step's incoming carries as stacked results of the loop, added to it where it lacks them."""
    block, carried = op.body.block, cast(int, op.carried.data)
    last = block.last_op
    assert isinstance(last, Operation)
    length = ir.shape_of(ir.operands_of(op)[carried])[0]
    tape: list[SSAValue] = []
    yielded = list(ir.operands_of(last))
    missing: list[SSAValue] = []
    for argument in block.args[:carried]:
        if argument in yielded[carried:]:
            tape.append(op.results[yielded.index(argument, carried)])
            continue
        type_ = ir.tensor((length, *ir.shape_of(argument)), ir.dtype_of(argument))
        missing.append(argument)
        tape.append(ir.append_result(op, type_))
    if missing:
        ir.replace_terminator(block, ir.create_op(prim.YieldOp, [*yielded, *missing], (), location=last.location))
    return tape


@nested_pullback(prim.WhileOp)
def while_(e: Emitter, op: prim.WhileOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    """As a scan over as many steps as it can have, run again for its tape; `rewind` where no number bounds them."""
    operands, carried = ir.operands_of(op), cast(int, op.carried.data)
    steps = steps_of(op, operands)
    if steps is None:
        return _pull_counted(e, op, cts, needs, fallbacks)
    if steps.bound == 0:
        return (*cts, *(None for _ in operands[carried:]))
    found = _Scan(as_scan(e, op, operands, steps), [*needs[:carried], False, *needs[carried:]]).pull(e, cts, fallbacks)
    return (*found[:carried], *found[carried + 1 :])


def _pull_counted(e: Emitter, op: prim.WhileOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    operands, carried, block = ir.operands_of(op), cast(int, op.carried.data), op.body.block
    needs = closed_over_steps(block, carried, list(needs))
    moving = [k for k in range(carried) if needs[k]]
    still = [k for k in range(carried, len(operands)) if needs[k]]

    def advance(inner: Emitter, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return inline(inner, block, arguments, fallbacks)

    def pull_step(inner: Emitter, arguments: Sequence[SSAValue], state: Sequence[SSAValue]) -> Sequence[SSAValue]:
        carry_cts = dict(zip(moving, state, strict=False))
        found = pull_block(inner, block, arguments, needs, [carry_cts.get(k) for k in range(carried)], fallbacks)
        gradients = {k: found[k] or inner.zeros_like(arguments[k]) for k in (*moving, *still)}
        sums = zip(state[len(moving) :], still, strict=True)
        return [*(gradients[k] for k in moving), *(inner.add(total, gradients[k]) for total, k in sums)]

    seeds = [e.zeros_like(operands[k]) if (ct := cts[k]) is None else ct for k in moving]
    state = rewind(e, op, carried, [*seeds, *(e.zeros_like(operands[k]) for k in still)], advance, pull_step)
    found: list[SSAValue | None] = [None] * len(operands)
    for place, value in zip([*moving, *still], state, strict=True):
        found[place] = value
    return found
