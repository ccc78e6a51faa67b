"""A cut by the user's own choice: which values forward hands to backward, checked before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import prim
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.network import Plan, leading_to, plan_default, plan_min_cut, price_values
from isthmus.passes.partition.recompute import NEVER

Choose: TypeAlias = Callable[[Joint], Iterable[SSAValue]]
"""From a joint function to the values that forward hands over; those that backward does not read are dropped."""


def everything(joint: Joint) -> tuple[SSAValue, ...]:
    """Choose every value that tangents meet or that leads to one: nothing is computed again."""
    return tuple(v for v in leading_to(joint.wanted_by_tangents(), joint) if _may_cross(v))


def inputs(joint: Joint) -> tuple[SSAValue, ...]:
    """Choose the arguments, and results of ops that must run once: backward computes all else again."""
    candidates = everything(joint)
    return tuple(v for v in candidates if isinstance(v, BlockArgument) or isinstance(v.owner, NEVER))


def min_cut(joint: Joint) -> tuple[SSAValue, ...]:
    """Choose as the strategy `min-cut` does: a start for one's own changes."""
    return plan_min_cut(joint).kept


def default(joint: Joint) -> tuple[SSAValue, ...]:
    """Choose as the strategy `default` does: what backward reads of forward."""
    return plan_default(joint).kept


def plan_chosen(joint: Joint, choose: Choose) -> Plan:
    """Keep what a function chooses; IRError where backward cannot be computed from it."""
    who = getattr(choose, "__qualname__", type(choose).__name__)
    chosen = cast("Iterable[SSAValue] | object", choose(joint))
    if not isinstance(chosen, Iterable):
        raise IRError(f"'{who}' gives {type(chosen).__name__}, not the values to keep", cure=_TAKE)
    kept = tuple(dict.fromkeys(cast("Iterable[SSAValue]", chosen)))
    for value in kept:
        _check_is_of(joint, value, who)
    _check_suffices(joint, frozenset(kept), who)
    priced = price_values(joint)
    order = [v for v in (*joint.block.args, *(r for op in joint.ops for r in op.results)) if v in frozenset(kept)]
    return Plan(joint, tuple(v for v in order if _may_cross(v)), priced.prices, priced.cones)


def _may_cross(value: SSAValue) -> bool:
    """Leave out sizes, and what is made from literals alone."""
    return not isinstance(value.type, IndexType) and not isinstance(value.owner, prim.SourceOp)


def _check_is_of(joint: Joint, value: SSAValue, who: str) -> None:
    owner = value.owner.parent if isinstance(value.owner, Operation) else value.owner
    if owner is not joint.block:
        raise IRError(f"'{who}' keeps a value that is not one of the joint function", cure=_TAKE)
    if value in joint.after_tangent:
        raise IRError(
            f"'{who}' keeps a value that depends on a tangent, which forward does not have",
            op=value.owner.name if isinstance(value.owner, Operation) else None,
            location=ir.source_location(value.owner) if isinstance(value.owner, Operation) else None,
            cure=_TAKE,
        )


_TAKE = "choose from isthmus.passes.partition.choose.everything(joint)"


def _check_suffices(joint: Joint, kept: frozenset[SSAValue], who: str) -> None:
    """Walk from what tangents meet up to what is kept: no argument and no op that must run once may come before."""
    pending = joint.wanted_by_tangents()
    seen = set(pending)
    while pending:
        value = pending.pop()
        if value in kept or not _may_cross(value):
            continue
        if isinstance(value, BlockArgument):
            name = joint.signature.arguments[value.index].source or f"argument {value.index}"
            raise IRError(f"'{who}' does not keep {name}, which backward reads", cure="keep it, or what it is read for")
        op = value.owner
        assert isinstance(op, Operation)
        if isinstance(op, NEVER) and op in joint.forward_ops:
            raise IRError(
                f"'{who}' does not keep a result that backward reads and that must be computed once",
                op=op.name,
                location=ir.source_location(op),
                cure="keep its results",
            )
        fresh = [v for v in ir.operands_of(op) if v not in seen]
        seen.update(fresh)
        pending += fresh
