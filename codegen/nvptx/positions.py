"""Comparisons of where lanes are with one number: 32 bits a lane, however large the positions."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.codegen.cpu.state import State
from isthmus.codegen.llvm_text import I32, Value
from isthmus.dialects import kernel as k
from isthmus.dialects import prim


def is_position(state: State, op: prim.CmpOp) -> Value | None:
    """Give `op` where it asks whether neighbouring lanes are at a place that all have in common; None elsewhere.

    With lanes at p, p + 1, ... lane n is there iff n = place - p.
    """
    predicate = str(op.predicate.data)
    if predicate not in ("eq", "ne") or state.lanes == 1 or ir.dtype_of(op.a) != "i64":
        return None
    for index, place in ((op.a, op.b), (op.b, op.a)):
        found = _first_position(state, index)
        given = state.get(place)
        if found is not None and isinstance(given, Value) and given.type.lanes == 1:
            f = state.f
            away = given - found
            near = f.select(f.compare("ult", away, state.lanes), away, -1)
            lane = f.splat(f.cast("trunc", near, I32), state.lanes)
            return f.compare(predicate, lane, f.lanes(range(state.lanes), "i32"))
    return None


def _first_position(state: State, value: SSAValue) -> Value | None:
    """The first lane's number where those of the others follow it one by one."""
    op, vector = value.owner, state.plan.vector
    if not isinstance(op, k.IndexOp) or vector is None or ir.operands_of(op):
        return None
    (expr,) = op.map.data
    if not expr.is_affine() or expr.coefficient(vector) != 1:
        return None
    with state.vector(1):
        return state.evaluate(expr)
