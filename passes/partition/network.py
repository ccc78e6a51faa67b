"""Which values cross from the forward to the backward half: prices on a flow network, and its minimum cut.

Each value that backward can reach becomes an edge whose capacity is the price of keeping it. Its start is where the
value gets computed, its end where backward reads it; a use of it joins its end to the start of what it helps compute.
The source is joined to what runs once, the values that tangents meet to the sink.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import literals_of
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.min_cut import Capacity, FlowNetwork
from isthmus.passes.partition.recompute import NEVER, POINTWISE, Cone, cones, tag_of, why_once

BYTE = 256
"""Price of keeping one byte; the fractions of it decide between equals."""

WRITE = BYTE // 8
"""Price of a byte that forward has to write for backward's sake alone: a pass over memory that must be worth it."""

MOVE = 1
"""Price of a byte that forward has to compute besides: backward's own work moves only where that saves bytes."""

AVOID = 1 << 20
"""How many times dearer a value is that the policy would rather have recomputed."""


def written_in_forward(joint: Joint) -> frozenset[SSAValue]:
    """Give the values that forward writes to memory whatever backward wants.

    An approximation of what fusion does. Kernels form levels: one that reads what a contraction, a library call or a
    reduction over rows gives comes after it. A pointwise value stays inside its kernel when all its readers are
    pointwise (or reductions within a row) on the same level. A view is never written: its readers read its source.
    """
    level, results = _kernel_levels(joint), frozenset(joint.kept)
    written: set[SSAValue] = set(results)
    for op in reversed(joint.ops):
        if op not in joint.forward_ops:
            continue
        if isinstance(op, prim.ViewOp):
            from_memory = op.y in written
            if op.y not in results:
                written.discard(op.y)
        else:
            from_memory = not (isinstance(op, POINTWISE) or _stays_in_row(op))
            written.update(op.results if not isinstance(op, POINTWISE) else ())
        written.update(v for v in ir.operands_of(op) if from_memory or level[v] < level[op.results[0]])
    return frozenset(written)


def _kernel_levels(joint: Joint) -> dict[SSAValue, int]:
    level: dict[SSAValue, int] = dict.fromkeys(joint.block.args, 0)
    for op in joint.ops:
        own = max((level[v] for v in ir.operands_of(op)), default=0)
        own += not (isinstance(op, POINTWISE) or _stays_in_row(op))
        level.update(dict.fromkeys(op.results, own))
    return level


def _stays_in_row(op: Operation) -> bool:
    """Tell whether an op reduces trailing dimensions only, so that a kernel goes on with the result at once."""
    if not isinstance(op, (prim.ReduceOp, prim.MomentsOp)):
        return isinstance(op, (prim.SoftmaxOp, prim.LogSoftmaxOp, prim.CrossEntropyOp))
    dims, rank = literals_of(op)["dims"], len(ir.shape_of(op.x))
    return isinstance(dims, tuple) and len(dims) < rank and dims == tuple(range(rank - len(dims), rank))


@dataclass(frozen=True)
class Price:
    """What keeping a value costs (None: it must not be kept), and why it may not be recomputed, if so."""

    keep: Capacity
    nbytes: int
    why_once: str | None


@dataclass(frozen=True)
class Plan:
    """What crosses the cut, and the numbers behind it."""

    joint: Joint
    kept: tuple[SSAValue, ...]
    """Candidates to be saved; those that backward does not read are dropped when it is built."""
    prices: dict[SSAValue, Price] = field(repr=False)
    cones: dict[SSAValue, Cone] = field(repr=False)


def price_values(joint: Joint, *, inputs_are_free: bool = True) -> Plan:
    """Price each value that depends on no tangent, without deciding anything."""
    all_cones = cones(joint)
    written, outputs, overwritten = written_in_forward(joint), joint.outputs, joint.overwritten
    prices: dict[SSAValue, Price] = {}
    for value, cone in all_cones.items():
        size = joint.nbytes(value)
        if isinstance(value, BlockArgument):
            role = joint.signature.arguments[value.index]
            free = value not in overwritten and (inputs_are_free or role.static or role.key)
            prices[value] = Price(0 if free else size * (BYTE + WRITE), size, "it is an argument")
            continue
        op = value.owner
        assert isinstance(op, Operation)
        once = why_once(op, cone) if op in joint.forward_ops else None
        tag = None if once else tag_of(op)
        if value in outputs:
            keep = 0
        elif tag == "must_recompute":
            keep = None
        else:
            keep = size * (BYTE + (value not in written) * WRITE + (op not in joint.forward_ops) * MOVE)
            keep *= AVOID if tag == "prefer_recompute" else 1
        prices[value] = Price(keep, size, once)
    return Plan(joint, (), prices, all_cones)


def plan_min_cut(joint: Joint, *, inputs_are_free: bool = True) -> Plan:
    """Keep the cheapest values from which backward can compute the rest."""
    priced = price_values(joint, inputs_are_free=inputs_are_free)
    flow = FlowNetwork()
    source, sink = flow.node(), flow.node()
    wanted = joint.wanted_by_tangents()
    ends: dict[SSAValue, tuple[int, int]] = {}
    for value in _leading_to(wanted, joint):
        price = priced.prices[value]
        start, end = ends[value] = flow.node(), flow.node()
        flow.edge(start, end, price.keep)
        if price.why_once is not None:
            flow.edge(source, start, None)
        for operand in _operands(value):
            flow.edge(ends[operand][1], start, None)
    for value in wanted:
        flow.edge(ends[value][1], sink, None)
    before = flow.minimum_cut(source, sink).before
    crossing = [v for v, (start, end) in ends.items() if before[start] and not before[end]]
    return Plan(joint, _keepable(crossing), priced.prices, priced.cones)


def plan_default(joint: Joint, *, inputs_are_free: bool = True) -> Plan:
    """Keep what backward reads of the forward half; a view is read through its source."""
    priced = price_values(joint, inputs_are_free=inputs_are_free)
    wanted = set(joint.wanted_by_tangents())
    kept: list[SSAValue] = []
    for value in reversed(_leading_to(wanted, joint)):
        if value in wanted:
            if _is_read_through(joint, value):
                wanted.update(_operands(value))
            else:
                kept.append(value)
    return Plan(joint, _keepable(reversed(kept)), priced.prices, priced.cones)


def _is_read_through(joint: Joint, value: SSAValue) -> bool:
    """Tell whether backward computes the value itself: no op of forward, a view, or one that the policy names."""
    op = value.owner
    if not isinstance(op, Operation):
        return False
    runs_again = isinstance(op, (prim.ViewOp, prim.SourceOp)) or tag_of(op) in ("must_recompute", "prefer_recompute")
    return op not in joint.forward_ops or (runs_again and not isinstance(op, NEVER))


def _leading_to(wanted: Iterable[SSAValue], joint: Joint) -> list[SSAValue]:
    """Give the wanted values and all that they come from: arguments, then results in the order of their ops."""
    found = set(wanted)
    for op in reversed(joint.ops):
        if any(r in found for r in op.results):
            found.update(ir.operands_of(op))
    every = (*joint.block.args, *(r for op in joint.ops for r in op.results))
    return [v for v in every if v in found]


def _operands(value: SSAValue) -> tuple[SSAValue, ...]:
    return ir.operands_of(value.owner) if isinstance(value.owner, Operation) else ()


def _keepable(values: Iterable[SSAValue]) -> tuple[SSAValue, ...]:
    """Leave out sizes and what is made from literals alone."""
    return tuple(v for v in values if not isinstance(v.type, IndexType) and not isinstance(v.owner, prim.SourceOp))
