"""Rebuilding a function through an emitter: equal ops are shared and folds applied as each op is made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter, PrimOp, YieldOp

MakeEmitter = Callable[[Block], Emitter]


def rebuild(func: FuncOp, make_emitter: MakeEmitter = Emitter) -> None:
    """Replace the body of a function by its copy, one linear walk; signature and attributes stay."""
    source = func.body.block
    func.body.detach_block(source)
    func.body.add_block(rebuilt_block(source, make_emitter))


def rebuilt_block(source: Block, make_emitter: MakeEmitter) -> Block:
    """Give the copy of an isolated block."""
    block = Block(arg_types=[ir.intern_type(a.type) for a in source.args])
    values: dict[SSAValue, SSAValue] = {}
    for old, new in zip(source.args, block.args, strict=True):
        new.name_hint = old.name_hint
        values[old] = new
    e = make_emitter(block)
    for op in source.ops:
        operands = [values[v] for v in ir.operands_of(op)]
        for old, new in zip(op.results, _copied(e, op, operands, make_emitter), strict=True):
            values[old] = new
    return block


def _copied(e: Emitter, op: Operation, operands: Sequence[SSAValue], make: MakeEmitter) -> Sequence[SSAValue]:
    if isinstance(op, PrimOp) and not op.regions and type(op) is not YieldOp:
        return _with_tags(e, op, operands) if op.attributes else e.copy(op, operands)
    made = ir.create_op(
        type(op),
        operands,
        [r.type for r in op.results],
        op.properties,
        location=op.location,
        regions=[Region([rebuilt_block(b, make) for b in region.blocks]) for region in op.regions],
        attributes=op.attributes,
    )
    e.block.add_op(made)
    return made.results


def _with_tags(e: Emitter, op: PrimOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """What stands for a tagged op carries its tags, be it one other op or several."""
    last = e.block.last_op
    results = e.copy(op, operands)
    made = e.block.first_op if last is None else last.next_op
    while made is not None:
        for key, value in op.attributes.items():
            made.attributes.setdefault(key, value)
        made = made.next_op
    return results
