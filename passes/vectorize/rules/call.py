"""Library calls: as torch batches them, else one call an example."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.passes.autodiff.expand import inline
from isthmus.passes.vectorize.table import Batch, batching, looped


@batching(prim.OpaqueOp)
def _opaque(batch: Batch, op: prim.OpaqueOp) -> Sequence[SSAValue]:
    operands = ir.operands_of(op)
    func = batch.fallbacks.batched_of(op, [batch.is_mapped(v) for v in operands], batch.size)
    if func is None:
        return looped(batch, op, "torch has no batched form of this library call")
    for inner in func.walk():
        inner.location = op.location
    return inline(batch.e, func.body.block, [batch.now(v) for v in operands], batch.fallbacks)
