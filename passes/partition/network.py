"""Which values cross from the forward to the backward half: prices on a flow network, and its minimum cut.

Each value that backward can reach becomes an edge whose capacity is the price of keeping it. Its start is where the
value gets computed, its end where backward reads it; a use of it joins its end to the start of what it helps compute.
The source is joined to what runs once, the values that tangents meet to the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.memory import written
from isthmus.passes.partition.min_cut import Capacity, FlowNetwork
from isthmus.passes.partition.recompute import NEVER, Cone, cones, tag_of, why_once
from isthmus.passes.partition.work import operations


@dataclass(frozen=True)
class Weights:
    """Prices of a byte; the small ones decide between equals.

    `keep`: it is held from forward to backward. `write`, `read`: it passes through memory because of the cut. `move`:
    forward computes it besides, since backward's own work moves only where something is gained. `ahead`: how many
    additions may move from backward to forward for a unit of price kept less: no forward needs them by itself.
    """

    keep: int
    write: int
    read: int
    move: int = 1
    ahead: int = 32


MEMORY = Weights(keep=256, write=16, read=4)
"""The fewest bytes kept. A pass over memory is worth a sixteenth of what it saves."""

TRAFFIC = Weights(keep=2, write=16, read=16)
"""The fewest bytes moved: what forward writes in any case is kept rather than written by backward again."""

MEMORY_ONLY = replace(MEMORY, ahead=1 << 16)
"""The fewest bytes kept, whatever moves."""

AVOID = 1 << 20
"""How many times dearer a value is that the policy would rather have recomputed."""


@dataclass(frozen=True)
class Price:
    """What keeping a value costs (None: it must not be kept), and why it may not be recomputed, if so.

    `cross` is the price of keeping it and of reading it, `again` that of writing and reading it where backward computes
    it for a library call, which reads its operands from memory.
    """

    keep: Capacity
    nbytes: int
    why_once: str | None
    cross: Capacity
    again: int = 0


@dataclass(frozen=True)
class Plan:
    """What crosses the cut, and the numbers behind it."""

    joint: Joint
    kept: tuple[SSAValue, ...]
    """Candidates to be saved; those that backward does not read are dropped when it is built."""
    prices: dict[SSAValue, Price] = field(repr=False)
    cones: dict[SSAValue, Cone] = field(repr=False)


def price_values(joint: Joint, weights: Weights = MEMORY, *, inputs_are_free: bool = True) -> Plan:
    """Price each value that depends on no tangent, without deciding anything."""
    all_cones = cones(joint)
    stored = written([op for op in joint.ops if op in joint.forward_ops], joint.kept)
    outputs, overwritten, from_memory = joint.outputs, joint.overwritten, joint.read_from_memory()
    prices: dict[SSAValue, Price] = {}
    tags: dict[SSAValue, str] = {}
    for value, cone in all_cones.items():
        size = joint.nbytes(value)
        if isinstance(value, BlockArgument):
            role = joint.signature.arguments[value.index]
            free = value not in overwritten and (inputs_are_free or role.static or role.key)
            keep = 0 if free else size * (weights.keep + weights.write)
            prices[value] = Price(keep, size, "it is an argument", keep + size * weights.read)
            continue
        op = value.owner
        assert isinstance(op, Operation)
        ours = op in joint.forward_ops
        once = why_once(op, cone) if ours or tag_of(op) == "must_save" else None
        tag = None if once else (tag_of(op) if ours else _inherited_tag(op, tags))
        if tag in ("must_recompute", "prefer_recompute"):
            tags[value] = tag
        unwritten, foreign = value not in stored, not ours
        keep: Capacity = size * (weights.keep + unwritten * weights.write + foreign * weights.move)
        if value in outputs:
            keep = 0
        elif tag == "must_recompute":
            keep = None
        elif tag == "prefer_recompute":
            keep *= AVOID
        cross = None if keep is None else keep + size * weights.read
        again = size * (weights.write + weights.read) if value in from_memory else 0
        prices[value] = Price(keep, size, once, cross, again)
    return Plan(joint, (), prices, all_cones)


def _inherited_tag(op: Operation, tags: Mapping[SSAValue, str]) -> str | None:
    """What backward computes from values that a policy wants recomputed must not be kept in their stead."""
    found = {tags.get(v) for v in ir.operands_of(op)}
    return next((tag for tag in ("must_recompute", "prefer_recompute") if tag in found), None)


def plan_min_cut(joint: Joint, weights: Weights = MEMORY, *, inputs_are_free: bool = True) -> Plan:
    """Keep the cheapest values from which backward can compute the rest."""
    return _plan(price_values(joint, weights, inputs_are_free=inputs_are_free), weights.ahead)[0]


def plan_ahead(joint: Joint, weights: Weights = MEMORY) -> tuple[Plan, frozenset[Operation]]:
    """Plan the minimum cut; and give the ops of backward's own that forward runs then."""
    return _plan(price_values(joint, weights), weights.ahead)


def _plan(priced: Plan, additions: int) -> tuple[Plan, frozenset[Operation]]:
    sides = _sides(priced, additions)
    crossing = [v for v, side in sides.items() if side.computed and not side.unread]
    ahead = frozenset(v.owner for v, side in sides.items() if side.ahead)
    return replace(priced, kept=_keepable(crossing)), ahead  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class _Side:
    """Where the cut leaves a value.

    `computed`: backward need not compute it; `unread`: backward does not read it; `ahead`: it is backward's own and
    forward computes it.
    """

    computed: bool
    unread: bool
    ahead: bool


def _sides(priced: Plan, additions: int) -> dict[SSAValue, _Side]:
    """Make the minimum cut.

    An op of backward's own has a third node, which tells whether forward runs it: with a value that forward is to have
    go the ops that lead to it, and what is dear does not run in both. Nodes that edges without bound join both ways, or
    to the source, or the sink to them, are one.
    """
    joint, flow = priced.joint, FlowNetwork()
    source, sink = flow.node(), flow.node()
    found = joint.wanted_by_tangents()
    values, wanted = leading_to(found, joint), frozenset(found)
    ends: dict[SSAValue, tuple[int, int]] = {}
    ahead: dict[Operation, int] = {}
    for value in values:
        price, op = priced.prices[value], value.owner
        own = op if isinstance(op, Operation) and op not in joint.forward_ops else None
        if own is not None and own not in ahead:
            ahead[own] = flow.node()
            flow.edge(ahead[own], sink, operations(joint, own) // additions)
            for operand in ir.operands_of(own):
                if operand.owner in ahead:
                    flow.edge(ahead[own], ahead[operand.owner], None)  # pyright: ignore[reportArgumentType]
        if price.why_once is not None:
            start = source
        elif own is not None and why_once(own, priced.cones[value]) is not None:
            start = ahead[own]
        else:
            start = flow.node()
        end = sink if value in wanted else flow.node()
        ends[value] = start, end
        flow.edge(start, end, price.cross)
        if own is not None and start != ahead[own]:
            flow.edge(start, ahead[own], None)
        if start == source:
            continue
        if price.again:
            flow.edge(source, start, price.again)
        for operand in _operands(value):
            if ends[operand][1] != sink:
                flow.edge(ends[operand][1], start, None)
    before = flow.minimum_cut(source, sink).before
    return {v: _Side(before[s], before[e], v.owner in ahead and before[ahead[v.owner]]) for v, (s, e) in ends.items()}  # pyright: ignore


def plan_min_traffic(joint: Joint) -> Plan:
    """Keep the values with which forward and backward move the fewest bytes."""
    return plan_min_cut(joint, TRAFFIC)


def plan_default(joint: Joint, *, inputs_are_free: bool = True) -> Plan:
    """Keep what backward reads of the forward half; a view is read through its source."""
    priced = price_values(joint, inputs_are_free=inputs_are_free)
    wanted = set(joint.wanted_by_tangents())
    kept: list[SSAValue] = []
    for value in reversed(leading_to(wanted, joint)):
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


def leading_to(wanted: Iterable[SSAValue], joint: Joint) -> list[SSAValue]:
    """Give the wanted values and all that they come from: arguments, then results in the order of their ops."""
    found = set(wanted)
    for op in reversed(joint.ops):
        if not found.isdisjoint(op.results):
            found.update(ir.operands_of(op))
    every = (*joint.block.args, *(r for op in joint.ops for r in op.results))
    return [v for v in every if v in found]


def _operands(value: SSAValue) -> tuple[SSAValue, ...]:
    return ir.operands_of(value.owner) if isinstance(value.owner, Operation) else ()


def _keepable(values: Iterable[SSAValue]) -> tuple[SSAValue, ...]:
    """Leave out sizes and what is made from literals alone."""
    return tuple(v for v in values if not isinstance(v.type, IndexType) and not isinstance(v.owner, prim.SourceOp))
