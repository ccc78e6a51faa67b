"""Control flow and the user's own rules: the same with regions over all examples.

A condition that examples answer differently takes both branches, and keeps a loop going until the last one is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import autodiff, prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from isthmus.passes.autodiff.expand import TERMINATORS, inline
from isthmus.passes.autodiff.rules.while_loop import steps_of
from isthmus.passes.vectorize.dims import moved_behind, moved_to_front
from isthmus.passes.vectorize.table import Batch, batching

Flags = Sequence[bool]
"""Per value whether it differs from example to example."""


def _yielded(block: Block) -> Sequence[SSAValue]:
    last = block.last_op
    assert last is not None
    return ir.operands_of(last)


def _differing(block: Block, arguments: Flags) -> list[bool]:
    """Tell which of the results of a block differ."""
    found: set[SSAValue] = {a for a, differs in zip(block.args, arguments, strict=True) if differs}
    for op in block.ops:
        if not isinstance(op, TERMINATORS) and not found.isdisjoint(ir.operands_of(op)):
            found.update(op.results)
    return [v in found for v in _yielded(block)]


def _type(batch: Batch, type_: Attribute, differs: bool) -> Attribute:
    return ir.tensor((batch.size, *ir.shape_of(type_)), ir.dtype_of(type_)) if differs else type_


def _types(batch: Batch, values: Sequence[SSAValue], flags: Flags) -> list[Attribute]:
    return [_type(batch, v.type, f) for v, f in zip(values, flags, strict=True)]


def _given(batch: Batch, values: Sequence[SSAValue], flags: Flags) -> list[SSAValue]:
    return [batch.over_all(v) if f else batch.now(v) for v, f in zip(values, flags, strict=True)]


def _run(
    batch: Batch, e: Emitter, block: Block, arguments: Sequence[SSAValue], flags: Flags, wanted: Flags
) -> list[SSAValue]:
    """Write a block over all examples; gives its results, over all where `wanted`."""
    inner = Batch(e, batch.size, batch.fallbacks, batch.randomness)
    for argument, value, differs in zip(block.args, arguments, flags, strict=True):
        inner.define(argument, value, differs)
    inner.run(block)
    return _given(inner, _yielded(block), wanted)


def _region(batch: Batch, block: Block, flags: Flags, wanted: Flags) -> Region:
    region, e, arguments = batch.e.region(_types(batch, block.args, flags))
    e.location = batch.e.location
    e.yield_(_run(batch, e, block, arguments, flags, wanted))
    return region


def _define(batch: Batch, old: Sequence[SSAValue], new: Sequence[SSAValue], flags: Flags) -> tuple[()]:
    for o, n, differs in zip(old, new, flags, strict=True):
        batch.define(o, n, differs)
    return ()


def _emit(
    batch: Batch,
    op: Operation,
    operands: Sequence[SSAValue],
    types: Sequence[Attribute],
    regions: Sequence[Region],
    changes: Mapping[str, Literal] | None = None,
) -> Sequence[SSAValue]:
    properties = {**op.properties, **(changes or {})}
    made = ir.create_op(type(op), operands, types, properties, location=op.location, regions=regions)
    batch.e.block.add_op(made)
    return made.results


def _chosen(e: Emitter, p: SSAValue, yes: SSAValue, no: SSAValue) -> SSAValue:
    """p[b] ? yes[b, ..] : no[b, ..]"""
    return e.select(e.broadcast(p, ir.shape_of(yes), (0,)), yes, no)


# ---- conditions


@batching(prim.CondOp)
def _cond(batch: Batch, op: prim.CondOp) -> Sequence[SSAValue]:
    """y[b] = p[b] ? then(xs)[b] : otherwise(xs)[b]; with one p for all, as it was."""
    p, *xs = ir.operands_of(op)
    flags = [batch.is_mapped(x) for x in xs]
    blocks = [op.then.block, op.otherwise.block]
    if batch.is_mapped(p):
        every = [True] * len(op.results)
        yes, no = (_run(batch, batch.e, block, _given(batch, xs, flags), flags, every) for block in blocks)
        return [_chosen(batch.e, batch.over_all(p), a, b) for a, b in zip(yes, no, strict=True)]
    differs = [any(pair) for pair in zip(*(_differing(block, flags) for block in blocks), strict=True)]
    operands = [batch.shared(p), *_given(batch, xs, flags)]
    regions = [_region(batch, block, flags, differs) for block in blocks]
    return _define(batch, op.results, _emit(batch, op, operands, _types(batch, op.results, differs), regions), differs)


# ---- loops


def _closed(flags: list[bool], carried: int, step: Callable[[Flags], Sequence[bool]]) -> list[bool]:
    """A carry differs as soon as what a step puts into it does."""
    while True:
        grown = [a or b for a, b in zip(flags[:carried], step(flags), strict=False)]
        if grown == flags[:carried]:
            return flags
        flags = [*grown, *flags[carried:]]


@batching(prim.WhileOp)
def _while(batch: Batch, op: prim.WhileOp) -> Sequence[SSAValue]:
    """With one p for all as it was; else `_until_all_ended`."""
    xs, carried = ir.operands_of(op), cast(int, op.carried.data)
    flags = _closed([batch.is_mapped(x) for x in xs], carried, lambda f: _differing(op.body.block, f))
    if _differing(op.condition.block, flags)[0]:
        return _until_all_ended(batch, op, [True] * carried + flags[carried:])
    operands = _given(batch, xs, flags)
    regions = [
        _region(batch, op.condition.block, flags, [False]),
        _region(batch, op.body.block, flags, flags[:carried]),
    ]
    results = _emit(batch, op, operands, [v.type for v in operands[:carried]], regions)
    return _define(batch, op.results, results, flags[:carried])


def _until_all_ended(batch: Batch, op: prim.WhileOp, flags: Flags) -> Sequence[SSAValue]:
    """while any p(carry)[b]: carry[b] = p(carry)[b] ? body(carry)[b] : carry[b]

    What bounds the steps of each bounds those of all: a counter keeps it, so that the loop can be differentiated.
    """
    e, xs, carried = batch.e, ir.operands_of(op), cast(int, op.carried.data)
    steps, operands = steps_of(op, xs), _given(batch, xs, flags)
    counter = [] if steps is None else [e.const(0, (), "i64")]
    operands[carried:carried] = counter
    types = [v.type for v in operands]
    ask, asking, seen = e.region(types)
    step, stepping, current = e.region(types)

    def own(values: Sequence[SSAValue]) -> list[SSAValue]:
        return [*values[:carried], *values[carried + len(counter) :]]

    (going,) = _run(batch, asking, op.condition.block, own(seen), flags, [True])
    going = asking.reduce("or", going, (0,))
    if steps is not None:
        going = asking.binary(prim.AndOp, going, asking.cmp("lt", seen[carried], asking.size(steps.bound)))
    asking.yield_([going])
    (still,) = _run(batch, stepping, op.condition.block, own(current), flags, [True])
    following = _run(batch, stepping, op.body.block, own(current), flags, flags[:carried])
    pairs = zip(following, current[:carried], strict=True)
    counted = [stepping.add(n, stepping.const_like(1, n)) for n in current[carried : carried + len(counter)]]
    stepping.yield_([*(_chosen(stepping, still, new, old) for new, old in pairs), *counted])
    changes = {"carried": Literal.of(carried + len(counter))}
    return _emit(batch, op, operands, types[: carried + len(counter)], [ask, step], changes)[:carried]


@batching(prim.ScanOp)
def _scan(batch: Batch, op: prim.ScanOp) -> Sequence[SSAValue]:
    """Outside of a step dimension 0 is the steps, dimension 1 the examples; inside the examples are in front."""
    e, xs, block = batch.e, ir.operands_of(op), op.body.block
    carried, scanned = cast(int, op.carried.data), cast(int, op.scanned.data)
    flags = _closed([batch.is_mapped(x) for x in xs], carried, lambda f: _differing(block, f))
    differs = [*flags[:carried], *_differing(block, flags)[carried:]]
    operands = _given(batch, xs, flags)
    for k in range(carried, carried + scanned):
        operands[k] = moved_behind(e, operands[k], 1) if flags[k] else operands[k]
    types = _types(batch, op.results, differs)
    for k in range(carried, len(types)):
        if differs[k]:
            b, steps, *rest = ir.shape_of(types[k])
            types[k] = ir.tensor((steps, b, *rest), ir.dtype_of(types[k]))
    made: list[SSAValue] = list(_emit(batch, op, operands, types, [_region(batch, block, flags, differs)]))
    for k in range(carried, len(made)):
        made[k] = moved_to_front(e, made[k], 1) if differs[k] else made[k]
    return _define(batch, op.results, made, differs)


# ---- rules of the user's


@batching(autodiff.CustomOp)
def _custom(batch: Batch, op: autodiff.CustomOp) -> Sequence[SSAValue]:
    """The rule for all examples at once: each has gradients of its own, which add up where they shared the operand."""
    operands = [batch.over_all(v) for v in ir.operands_of(op)]
    regions = [_whole_region(batch, region.block) for region in op.regions]
    return _emit(batch, op, operands, _types(batch, op.results, [True] * len(op.results)), regions)


def _whole_region(batch: Batch, block: Block) -> Region:
    """A region of autodiff over all examples; gradients that it asks for expand first."""
    example = Block(arg_types=[a.type for a in block.args])
    yielded = inline(Emitter(example), block, example.args, batch.fallbacks)
    example.add_op(ir.create_op(autodiff.YieldOp, yielded, (), location=batch.e.location))
    every = [True] * len(block.args)
    region, e, arguments = batch.e.region(_types(batch, block.args, every))
    results = _run(batch, e, example, arguments, every, [True] * len(yielded))
    e.block.add_op(ir.create_op(autodiff.YieldOp, results, (), location=batch.e.location))
    example.erase(safe_erase=False)
    return region
