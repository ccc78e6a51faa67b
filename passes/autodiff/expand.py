"""Copying ops into a block while autodiff ops among them expand: inner gradients, checkpoints, user's rules.

Before:
    %g = autodiff.vjp %y, %x {outs = 1, ins = 1, seeds = [none], create_graph = true, present = [0]} : tensor<f32>
After: the reverse walk from %y to %x, in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import autodiff, prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.ir import Literal
from isthmus.passes.autodiff.pull import activity, made_since, pull
from isthmus.passes.autodiff.rules.while_loop import as_scan, steps_of
from isthmus.passes.autodiff.table import Fallbacks

TERMINATORS = (prim.YieldOp, autodiff.YieldOp, ReturnOp)


def inline(e: Emitter, block: Block, arguments: Sequence[SSAValue], fallbacks: Fallbacks) -> list[SSAValue]:
    """Copy the ops of an isolated block on other arguments; gives what its terminator holds. IRError on foreign ops."""
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, arguments, strict=True))
    before = e.location
    for op in block.ops:
        operands = [values[v] for v in ir.operands_of(op)]
        if isinstance(op, TERMINATORS):
            e.location = before
            return operands
        values.update(zip(op.results, copy(e, op, operands, fallbacks), strict=True))
    raise IRError("a block has no terminator")


def copy(e: Emitter, op: Operation, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> Sequence[SSAValue]:
    """Copy one op onto other operands, expanded if it speaks of differentiation; gives its results."""
    if isinstance(op, PrimOp):
        return _with_regions(e, op, operands, fallbacks) if op.regions else e.copy(op, operands)
    expand = _EXPANSIONS.get(type(op))
    if expand is None:
        raise IRError(
            "differentiation knows primitives only",
            op=op.name,
            location=ir.source_location(op),
            cure="run functionalize and decompose first",
        )
    e.location = op.location
    return expand(e, op, operands, fallbacks)


def expands(cls: type[Operation]) -> Callable[[_Expand], _Expand]:
    """Enter what an op becomes when it is copied."""

    def enter(expand: _Expand) -> _Expand:
        _EXPANSIONS[cls] = expand
        return expand

    return enter


def _with_regions(e: Emitter, op: PrimOp, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> Sequence[SSAValue]:
    made = ir.create_op(
        type(op),
        operands,
        [r.type for r in op.results],
        op.properties,
        location=op.location,
        regions=[_region(e, region, fallbacks) for region in op.regions],
        attributes=op.attributes,
    )
    e.block.add_op(made)
    if isinstance(made, prim.WhileOp):
        steps = steps_of(made, operands)
        if steps is not None and steps.exact and steps.bound != 0:
            results = as_scan(e, made, operands, steps).results
            made.detach()
            made.erase()
            return results
    return made.results


def _region(e: Emitter, region: Region, fallbacks: Fallbacks) -> Region:
    block = region.block
    copied, inner, arguments = e.region([a.type for a in block.args])
    last = block.last_op
    values = inline(inner, block, arguments, fallbacks)
    inner.location = e.location if last is None else last.location
    inner.yield_(values)
    return copied


def _stop_gradient(e: Emitter, op: Operation, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> list[SSAValue]:
    return [e.stop_gradient(operands[0])]


def _checkpoint(e: Emitter, op: Operation, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> list[SSAValue]:
    """The body, each op tagged with what its policy says; what the region hands out is kept, all else recomputed."""
    assert isinstance(op, autodiff.CheckpointOp)
    last = e.block.last_op
    results = inline(e, op.body.block, operands, fallbacks)
    handed_out = {r.owner for r in results}
    for made in made_since(e, last):
        tag = "must_save" if made in handed_out else "must_recompute"
        made.attributes.setdefault(autodiff.RECOMPUTE, Literal.of(tag))
    return results


def _vjp(e: Emitter, op: Operation, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> list[SSAValue]:
    """The gradients by `ins` of what the block computed so far; constants to the outside without create_graph."""
    assert isinstance(op, autodiff.VjpOp)
    given = dict(zip(ir.operands_of(op), operands, strict=True))
    ins = [given[v] for v in op.ins]
    seeds: dict[SSAValue, SSAValue] = {}
    for out, seed in zip(op.outs, op.seeds, strict=True):
        value = given[out]
        ct = e.const_like(1, value) if seed is None else given[seed]
        seeds[value] = e.add(seeds[value], ct) if value in seeds else ct
    ops = list(_visible(e, ins))
    found = pull(e, ops, activity(ops, ins), seeds, fallbacks)
    results: list[SSAValue] = []
    for at in op.present:
        gradient = found.get(ins[at]) or e.zeros_like(ins[at])
        results.append(gradient if op.create_graph else e.stop_gradient(gradient))
    return results


def _visible(e: Emitter, ins: Sequence[SSAValue]) -> Iterator[Operation]:
    """Give the ops that may read `ins`: those of the block, and of blocks around it as far out as `ins` are made."""
    block = e.block
    if e.outer is not None and any(_block_of(v) is not block for v in ins):
        yield from _visible(e.outer, ins)
    yield from list(block.ops)


def _block_of(value: SSAValue) -> Block | None:
    return value.owner.parent if isinstance(value.owner, Operation) else value.owner


def _custom(e: Emitter, op: Operation, operands: Sequence[SSAValue], fallbacks: Fallbacks) -> Sequence[SSAValue]:
    """Forward's ops stand outside; the op stays as the rule on what they computed, for further differentiation.

    custom(xs){f, b} becomes custom(xs, ys, saved){hand on ys and saved, b} with ys, saved = f(xs).
    """
    assert isinstance(op, autodiff.CustomOp)
    source = op.forward.block
    if isinstance(source.first_op, TERMINATORS):
        return _add_custom(e, op, operands, op.forward.clone(), op.gradients)
    count = len(op.results)
    computed = inline(e, source, operands, fallbacks)
    last = source.last_op
    assert last is not None
    yielded = ir.operands_of(last)
    handed: dict[SSAValue, int] = {}  # forward's value -> position among the new op's operands
    for position, value in enumerate((*source.args, *yielded[:count])):
        handed.setdefault(value, position)
    extended = [*operands, *computed[:count]]
    for value, result in zip(yielded[count:], computed[count:], strict=True):
        if value not in handed:
            handed[value] = len(extended)
            extended.append(e.stop_gradient(result))  # eager runs forward without gradients
    block = Block(arg_types=[v.type for v in extended])
    first = len(operands)
    results = [block.args[first + k] for k in range(count)]
    saved = [block.args[handed[v]] for v in yielded[count:]]
    block.add_op(ir.create_op(autodiff.YieldOp, [*results, *saved], (), location=op.location))
    gradients = (*op.gradients, *(-1 for _ in extended[first:]))
    return _add_custom(e, op, extended, Region(block), gradients)


def _add_custom(
    e: Emitter, op: autodiff.CustomOp, operands: Sequence[SSAValue], forward: Region, gradients: tuple[int, ...]
) -> Sequence[SSAValue]:
    kept = {k: v for k, v in op.properties.items() if k in ("saved", "non_differentiable")}
    made = ir.create_op(
        autodiff.CustomOp,
        operands,
        [r.type for r in op.results],
        {**kept, "gradients": Literal.of(gradients)},
        location=op.location,
        regions=[forward, op.backward.clone()],
    )
    e.block.add_op(made)
    return made.results


_Expand = Callable[[Emitter, Operation, Sequence[SSAValue], Fallbacks], Sequence[SSAValue]]

_EXPANSIONS: dict[type[Operation], _Expand] = {
    autodiff.StopGradientOp: _stop_gradient,
    autodiff.CheckpointOp: _checkpoint,
    autodiff.VjpOp: _vjp,
    autodiff.CustomOp: _custom,
}
