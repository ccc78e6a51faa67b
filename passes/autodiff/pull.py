"""Reverse mode over a list of ops: the one function that every use of differentiation calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError, IRError
from isthmus.dialects.autodiff import CustomOp
from isthmus.dialects.prim import Emitter, OpaqueOp
from isthmus.passes.autodiff.accumulate import accumulate
from isthmus.passes.autodiff.table import (
    CALL_PULLBACKS,
    CONSTANT,
    NESTED_PULLBACKS,
    PULLBACKS,
    Cotangents,
    Elementary,
    Fallbacks,
    Needs,
    is_differentiable,
    load_rules,
)


def activity(ops: Iterable[Operation], wanted: Iterable[SSAValue]) -> set[SSAValue]:
    """Give the values that depend differentiably on `wanted`, those included (what torch says requires a gradient)."""
    active = set(wanted)
    if active:
        extend_activity(active, ops)
    return active


def extend_activity(active: set[SSAValue], ops: Iterable[Operation]) -> None:
    """Add the results of further ops, in program order, that depend differentiably on active values."""
    load_rules()  # which ops are constant is part of the table
    for op in ops:
        if type(op) in CONSTANT or active.isdisjoint(ir.operands_of(op)):
            continue
        active.update(r for r in op.results if is_differentiable(r))
        if isinstance(op, CustomOp):
            active.difference_update(op.results[k] for k in op.non_differentiable)


def pull(
    e: Emitter,
    ops: Sequence[Operation],
    active: set[SSAValue],
    seeds: Mapping[SSAValue, SSAValue],
    fallbacks: Fallbacks,
) -> dict[SSAValue, SSAValue]:
    """Emit the cotangents of active values given those of some results; absent is zero.

    `ops` in program order; `active` from `activity`. Cotangents add up in reverse program order, so the sum's
    bits are fixed. Every emitted op carries the location of the op that it derives from.
    """
    load_rules()
    pending: dict[SSAValue, list[SSAValue]] = {value: [seed] for value, seed in seeds.items()}
    total: dict[SSAValue, SSAValue] = {}
    before = e.location
    for op in reversed(ops):
        operands = ir.operands_of(op)
        if pending.keys().isdisjoint(op.results) or active.isdisjoint(operands):
            continue  # not reached; or a root, whose cotangent is wanted itself or by nobody
        e.location = op.location
        cts: list[SSAValue | None] = []
        for result in op.results:
            contributions = pending.pop(result, None)
            ct = None if contributions is None else accumulate(e, contributions)
            if ct is not None:
                total[result] = ct
            cts.append(ct)
        needs = [v in active for v in operands]
        for value, need, ct in zip(operands, needs, _pull_op(e, op, cts, needs, fallbacks), strict=True):
            if ct is not None and need:
                if ct.type is not value.type and ct.type != value.type:
                    raise IRError(f"its pullback gave {ct.type} for {value.type}", op=op.name)
                pending.setdefault(value, []).append(ct)
    for value, contributions in pending.items():
        e.location = contributions[0].owner.location if isinstance(contributions[0].owner, Operation) else ir.UNKNOWN
        total[value] = accumulate(e, contributions)
    e.location = before
    return total


def _pull_op(e: Emitter, op: Operation, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    rule = PULLBACKS.get(type(op))
    if type(op) is OpaqueOp:
        rule = CALL_PULLBACKS.get(str(ir.literal(op, "callee")), rule)
    if rule is not None:
        return rule(e, op, cts, needs)
    nested = NESTED_PULLBACKS.get(type(op))
    if nested is not None:
        return nested(e, op, cts, needs, fallbacks)
    form = fallbacks.elementary(type(op))
    if form is None:
        raise CompileError(
            "has no derivative",
            location=ir.source_location(op),
            op=op.name,
            cure="detach its operands, or enter a rule with isthmus.register_derivative",
        )
    return pull_through(e, form, op, cts, needs, fallbacks)


def pull_through(
    e: Emitter, form: Elementary, op: Operation, cts: Cotangents, needs: Needs, fallbacks: Fallbacks
) -> Cotangents:
    """Differentiate the op's elementary form instead: emit it again, and pull through what that made."""
    operands = ir.operands_of(op)
    last = e.block.last_op
    apart = Emitter(e.block)  # shares nothing, so that exactly the form's ops lie between operands and results
    apart.location = e.location
    values = form(apart, op, *operands)
    made = made_since(e, last)
    results = [values] if isinstance(values, SSAValue) else list(values)
    active = activity(made, {v for v, need in zip(operands, needs, strict=True) if need})
    seeds: dict[SSAValue, SSAValue] = {}
    for value, ct in zip(results, cts, strict=True):
        if ct is not None:
            seeds[value] = e.add(seeds[value], ct) if value in seeds else ct
    found = pull(e, made, active, seeds, fallbacks)
    return tuple(found.pop(v, None) if need else None for v, need in zip(operands, needs, strict=True))


def made_since(e: Emitter, last: Operation | None) -> list[Operation]:
    """Give the ops that the emitter's block got after `last` (None: all)."""
    made: list[Operation] = []
    op = e.block.first_op if last is None else last.next_op
    while op is not None:
        made.append(op)
        op = op.next_op
    return made
