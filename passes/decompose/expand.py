"""Structured primitives written out where they stand: what is elementary already is not made again."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.rebuild import check_results
from isthmus.passes.decompose.table import ELEMENTARY, Elementary


def expand(block: Block) -> None:
    """Replace each structured primitive by its elementary form, in regions too. IRError for one of other types."""
    e = Emitter(Block())
    for op in block.ops:
        rule = ELEMENTARY.get(type(op))  # pyright: ignore[reportArgumentType] (of ops that are no primitives there is none)
        if rule is not None:
            _expand_op(e, op, rule)
        for region in op.regions:
            for inner in region.blocks:
                expand(inner)


def _expand_op(e: Emitter, op: Operation, rule: Elementary) -> None:
    e.location = op.location
    values = rule(e, op, *ir.operands_of(op))
    values = (values,) if isinstance(values, SSAValue) else tuple(values)
    check_results(op, f"the elementary form of '{op.name}'", values, [r.type for r in op.results])
    for made in e.put_before(op):
        if RECOMPUTE in op.attributes:
            made.attributes[RECOMPUTE] = op.attributes[RECOMPUTE]
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()
