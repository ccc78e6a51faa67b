"""Which stage of a long pointwise body each of its ops belongs to."""

from __future__ import annotations

from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import CPU, Prices

MOST_CROSSING = 8
"""Values that are kept for later stages: strips of more do not stay in the nearest cache."""

FEWEST_POINTS = 1 << 12
"""Stages of fewer points gain less than compiling more loops takes."""


def cut_in_stages(op: kernel.FusedOp, prices: Prices = CPU) -> bool:
    """Mark the ops of a long chain over many points by the stage that computes them; say whether there are several."""
    ops = list(op.block.ops)
    if op.rows or op.initial is not None or kernel.can_fail(op) or cost.numeric(kernel.points(op)) < FEWEST_POINTS:
        return False
    if not all(isinstance(o, (prim.PrimOp, kernel.LoadOp, kernel.StoreOp)) for o in ops):
        return False
    stages = _stages(ops, prices)
    crossing = {
        value
        for o in ops
        for value in ir.operands_of(o)
        if stages[cast(Operation, value.owner)] != stages[o] and not _is_free(cast(Operation, value.owner))
    }
    if max(stages.values(), default=0) == 0 or len(crossing) > MOST_CROSSING:
        return False
    if not all(ir.is_float(ir.dtype_of(value)) for value in crossing):
        return False
    for o, stage in stages.items():
        if stage and not _is_free(o):
            o.attributes["stage"] = Literal.of(stage)
    return True


def _is_free(op: Operation) -> bool:
    """Whether an op reads memory or is a number: every stage has its own."""
    return isinstance(op, (kernel.LoadOp, prim.ConstOp, prim.SizeOp)) and not ir.operands_of(op)


def _stages(ops: list[Operation], prices: Prices) -> dict[Operation, int]:
    """As early as what an op needs, a stage later where its chain would be too long; then as late as what needs it.

    Stores are of the last stage."""
    stages: dict[Operation, int] = {}
    chain: dict[Operation, float] = {}
    for op in ops:
        makers = [cast(Operation, v.owner) for v in ir.operands_of(op)]
        stage = max((stages[m] for m in makers), default=0)
        before = max((chain[m] for m in makers if stages[m] == stage), default=0.0)
        own = 0.0 if _is_free(op) else prices.additions(op, 0.0)
        if before and before + own > prices.stage:
            stage, before = stage + 1, 0.0
        stages[op], chain[op] = stage, before + own
    for op in reversed(ops):
        users = [stages[use.operation] for r in op.results for use in r.uses]
        if users and isinstance(op, prim.PrimOp) and prices.additions(op) <= prices.first_used:
            stages[op] = min(users)
    # A result may lie over an operand, which no stage can load again once it is written.
    last = max(stages.values(), default=0)
    return stages | {op: last for op in ops if isinstance(op, kernel.StoreOp)}
