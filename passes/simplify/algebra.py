"""Identities of arithmetic that hold for every float: for NaN, infinities, -0.0 and denormals too.

x·0 is not 0 (NaN, -0.0), x + 0.0 is not x (-0.0), -(a - b) is not b - a (0), and nothing is reassociated.
"""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import LiteralValue
from isthmus.passes.simplify.match import made_by

Literals = dict[str, LiteralValue]
Operands = tuple[SSAValue, ...]


def _is_constant(e: Emitter, x: SSAValue, value: int | float) -> bool:
    """Whether x is everywhere this number, the sign of zero included."""
    found = e.constant_of(x)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or found != value:
        return False
    return isinstance(found, int) or math.copysign(1, found) == math.copysign(1, value)


def _negated(x: SSAValue) -> SSAValue | None:
    op = made_by(x, prim.NegOp)
    return None if op is None else op.x


def add(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """x + (-0.0) = x; integers: x + 0 = x; a + (-b) = a - b; (-a) + b = b - a."""
    a, b = operands
    zero = 0 if ir.is_integer(ir.dtype_of(a)) else -0.0
    if _is_constant(e, b, zero):
        return a
    if _is_constant(e, a, zero):
        return b
    if (inner := _negated(b)) is not None:
        return e.sub(a, inner)
    return None if (inner := _negated(a)) is None else e.sub(b, inner)


def sub(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """x - 0 = x; a - (-b) = a + b."""
    a, b = operands
    if _is_constant(e, b, 0.0):
        return a
    return None if (inner := _negated(b)) is None else e.add(a, inner)


def mul(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """1·x = x; (-a)·(-b) = a·b; (-a)·c = a·(-c) for a constant c."""
    a, b = operands
    for x, factor in ((a, b), (b, a)):
        if _is_constant(e, factor, 1):
            return x
    first, second = _negated(a), _negated(b)
    if first is not None and second is not None:
        return e.mul(first, second)
    for inner, factor in ((first, b), (second, a)):
        value = e.constant_of(factor)
        if inner is not None and isinstance(value, float):
            return e.mul(inner, e.const_like(-value, factor))
    return None


def div(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """x/1 = x; x/2ᵏ = x·2⁻ᵏ, which is exact."""
    a, b = operands
    if _is_constant(e, b, 1):
        return a
    value = e.constant_of(b)
    if isinstance(value, float) and abs(math.frexp(value)[0]) == 0.5 and 2**-14 <= abs(value) <= 2**14:
        return e.mul(a, e.const_like(1 / value, b))
    return None


def abs_(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """|-x| = ||x|| = |x|, for reals."""
    (x,) = operands
    if made_by(x, prim.AbsOp):
        return x
    return None if (inner := _negated(x)) is None else e.abs(inner)


def relu(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """relu relu x = relu x."""
    return operands[0] if made_by(operands[0], prim.ReluOp) else None


def whole(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """A whole number stays when it is rounded."""
    return operands[0] if any(made_by(operands[0], kind) for kind in _ROUNDINGS) else None


_ROUNDINGS = (prim.FloorOp, prim.CeilOp, prim.RoundOp, prim.TruncOp)


def same(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """max(x, x) = min(x, x) = x & x = x | x = x."""
    return operands[0] if operands[0] is operands[1] else None


def and_(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """x & true = x; x & false = false."""
    for x, other in (operands, operands[::-1]):
        value = e.constant_of(other)
        if isinstance(value, bool):
            return x if value else other
    return None


def or_(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """x | false = x; x | true = true."""
    for x, other in (operands, operands[::-1]):
        value = e.constant_of(other)
        if isinstance(value, bool):
            return other if value else x
    return None


_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def not_(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """Not not x = x; not (a = b) is a ≠ b; the other comparisons have opposites where there is no NaN."""
    if (twice := made_by(operands[0], prim.NotOp)) is not None:
        return twice.x
    inner = made_by(operands[0], prim.CmpOp)
    if inner is not None:
        predicate = str(inner.predicate.data)
        if predicate in ("eq", "ne") or not ir.is_differentiable(ir.dtype_of(inner.a)):
            return e.cmp(_OPPOSITE[predicate], inner.a, inner.b)
    return None


def select(e: Emitter, operands: Operands, literals: Literals) -> SSAValue | None:
    """(not p) ? a : b = p ? b : a; p ? (p ? a : x) : b = p ? a : b, and likewise on the other side."""
    p, a, b = operands
    if (condition := made_by(p, prim.NotOp)) is not None:
        return e.select(condition.x, b, a)
    if (inner := made_by(a, prim.SelectOp)) is not None and inner.p is p:
        return e.select(p, inner.a, b)
    if (inner := made_by(b, prim.SelectOp)) is not None and inner.p is p:
        return e.select(p, a, inner.b)
    return None


_EXACT_IN = {
    "i1": ("u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"),
    "u8": ("i16", "i32", "i64", "f16", "bf16", "f32", "f64"),
    "i8": ("i16", "i32", "i64", "f16", "bf16", "f32", "f64"),
    "i16": ("i32", "i64", "f32", "f64"),
    "i32": ("i64", "f64"),
    "f16": ("f32", "f64"),
    "bf16": ("f32", "f64"),
    "f32": ("f64",),
}
"""dtype -> those that hold each of its numbers."""


def unwidened(x: SSAValue, dtype: str) -> SSAValue:
    """Give what x was before it was brought to a wider dtype without loss: its conversion to `dtype` is the same.

    Floats to integers keep their way, since NaN and overflow differ by width; so do half formats into one another.
    """
    owner = made_by(x, prim.ConvertOp)
    if owner is None:
        return x
    source, middle = ir.dtype_of(owner.x), ir.dtype_of(x)
    if middle not in _EXACT_IN.get(source, ()) or {source, dtype} == {"f16", "bf16"}:
        return x
    holds = dtype == source or dtype in _EXACT_IN[source]
    if ir.is_integer(dtype) and ir.is_float(middle) and not holds:
        return x
    return unwidened(owner.x, dtype)


REWRITES = (
    (prim.AddOp, add),
    (prim.SubOp, sub),
    (prim.MulOp, mul),
    (prim.DivOp, div),
    (prim.AbsOp, abs_),
    (prim.ReluOp, relu),
    (prim.FloorOp, whole),
    (prim.CeilOp, whole),
    (prim.RoundOp, whole),
    (prim.TruncOp, whole),
    (prim.MaxOp, same),
    (prim.MinOp, same),
    (prim.AndOp, same),
    (prim.OrOp, same),
    (prim.AndOp, and_),
    (prim.OrOp, or_),
    (prim.NotOp, not_),
    (prim.SelectOp, select),
)
