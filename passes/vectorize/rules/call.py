"""Library calls: as torch batches them, else one call an example."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import prim
from isthmus.passes.autodiff.expand import copy, inline
from isthmus.passes.vectorize.table import Batch, batching, looped


@batching(prim.OpaqueOp)
def _opaque(batch: Batch, op: prim.OpaqueOp) -> Sequence[SSAValue]:
    if batch.fallbacks.draws(op):
        return _draw(batch, op)
    operands = ir.operands_of(op)
    func = batch.fallbacks.batched_of(op, [batch.is_mapped(v) for v in operands], batch.size)
    if func is None:
        return looped(batch, op, "torch has no batched form of this library call")
    for inner in func.walk():
        inner.location = op.location
    return inline(batch.e, func.body.block, [batch.now(v) for v in operands], batch.fallbacks)


def _draw(batch: Batch, op: prim.OpaqueOp) -> Sequence[SSAValue]:
    """Random numbers from torch's own stream: drawn once, or by each example in turn."""
    if batch.randomness == "different":
        return looped(batch, op, "it draws from torch's own stream of random numbers")
    operands = ir.operands_of(op)
    if batch.randomness == "error" or any(map(batch.is_mapped, operands)):
        what = "draws random numbers" + (" from what differs by example" if batch.randomness == "same" else "")
        raise UnsupportedError(
            f"a function under vmap {what}",
            location=ir.source_location(op),
            op=str(op.callee.data),
            cure="say vmap(f, randomness='different'), or draw outside",
        )
    made = copy(batch.e, op, [batch.shared(v) for v in operands], batch.fallbacks)
    for old, new in zip(op.results, made, strict=True):
        batch.define(old, new, mapped=False)
    return ()
