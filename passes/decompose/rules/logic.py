"""Comparisons, logical and bitwise operations, choices by mask."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import common_dtype, like, pointwise, spread
from isthmus.passes.decompose.table import Call, Scalar, decomposition

COMPARISONS: dict[str, tuple[str, ...]] = {
    "eq": ("eq",),
    "ne": ("ne", "not_equal"),
    "lt": ("lt", "less"),
    "le": ("le", "less_equal"),
    "gt": ("gt", "greater"),
    "ge": ("ge", "greater_equal"),
}


def _enter_comparison(predicate: str, names: tuple[str, ...]) -> None:
    def formula(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
        return e.cmp(predicate, a, b)

    pointwise(*(f"{n}.{o}" for n in names for o in ("Tensor", "Scalar")), operands=2)(formula)


for _predicate, _names in COMPARISONS.items():
    _enter_comparison(_predicate, _names)


def truth(e: Emitter, x: SSAValue) -> SSAValue:
    """x ≠ 0"""
    return x if ir.dtype_of(x) == "i1" else e.cmp("ne", x, e.zeros_like(x))


def _truths(e: Emitter, call: Call, *values: Scalar) -> list[SSAValue]:
    return [spread(e, call, truth(e, v) if isinstance(v, SSAValue) else bool(v), "i1") for v in values]


@decomposition("logical_not.default")
def logical_not(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.not_(truth(e, x))


@decomposition("logical_and.default")
def logical_and(e: Emitter, call: Call, a: Scalar, b: Scalar) -> SSAValue:
    return e.and_(*_truths(e, call, a, b))


@decomposition("logical_or.default")
def logical_or(e: Emitter, call: Call, a: Scalar, b: Scalar) -> SSAValue:
    return e.or_(*_truths(e, call, a, b))


@decomposition("logical_xor.default")
def logical_xor(e: Emitter, call: Call, a: Scalar, b: Scalar) -> SSAValue:
    return e.xor(*_truths(e, call, a, b))


@decomposition("bitwise_not.default")
def bitwise_not(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.not_(x)


def _enter_bitwise(cls: type[prim.BinaryOp], *overloads: str) -> None:
    def formula(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
        return e.binary(cls, a, b)

    pointwise(*overloads, operands=2)(formula)


for _cls, _name in ((prim.AndOp, "and"), (prim.OrOp, "or"), (prim.XorOp, "xor")):
    _enter_bitwise(_cls, *(f"bitwise_{_name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")))
    _enter_bitwise(_cls, f"__{_name}__.Tensor", f"__{_name}__.Scalar")
for _cls, _name, _short in ((prim.ShlOp, "left_shift", "lshift"), (prim.ShrOp, "right_shift", "rshift")):
    _enter_bitwise(_cls, *(f"bitwise_{_name}.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))
    _enter_bitwise(_cls, f"__{_short}__.Tensor", f"__{_short}__.Scalar")


# ---- kinds of numbers


def _false(e: Emitter, x: SSAValue) -> SSAValue:
    return e.const(False, ir.shape_of(x), "i1")


def infinite(e: Emitter, x: SSAValue) -> SSAValue:
    """Whether x is inf or -inf."""
    size = e.abs(x)
    return e.cmp("eq", size, like(e, math.inf, size))


@decomposition("isnan.default")
def isnan(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.is_nan(x) if ir.is_differentiable(ir.dtype_of(x)) else _false(e, x)


@decomposition("isinf.default")
def isinf(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    if ir.is_complex(ir.dtype_of(x)):
        return e.or_(infinite(e, e.real(x)), infinite(e, e.unary(prim.ImagOp, x)))
    return infinite(e, x) if ir.is_float(ir.dtype_of(x)) else _false(e, x)


@decomposition("isfinite.default")
def isfinite(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    """Neither infinite nor NaN: |x| < inf, false for NaN."""
    if not ir.is_differentiable(ir.dtype_of(x)):
        return e.not_(_false(e, x))
    parts = (e.real(x), e.unary(prim.ImagOp, x)) if ir.is_complex(ir.dtype_of(x)) else (x,)
    finite = [e.cmp("lt", e.abs(p), like(e, math.inf, p)) for p in parts]
    return finite[0] if len(finite) == 1 else e.and_(*finite)


@decomposition("isposinf.default")
def isposinf(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.cmp("eq", x, like(e, math.inf, x)) if ir.is_float(ir.dtype_of(x)) else _false(e, x)


@decomposition("isneginf.default")
def isneginf(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.cmp("eq", x, like(e, -math.inf, x)) if ir.is_float(ir.dtype_of(x)) else _false(e, x)


@decomposition("isreal.default")
def isreal(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    if not ir.is_complex(ir.dtype_of(x)):
        return e.not_(_false(e, x))
    imaginary = e.unary(prim.ImagOp, x)
    return e.cmp("eq", imaginary, e.zeros_like(imaginary))


@decomposition("signbit.default")
def signbit(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    """The sign bit: of -0.0 and negative NaN too."""
    if ir.dtype_of(x) == "i1":
        return _false(e, x)
    if ir.is_float(ir.dtype_of(x)):
        x = e.binary(prim.CopysignOp, like(e, 1, x), x)
    return e.cmp("lt", x, e.zeros_like(x))


@decomposition("isclose.default")
def isclose(e: Emitter, call: Call, a: SSAValue, b: SSAValue, rtol: Scalar, atol: Scalar, equal_nan: bool) -> SSAValue:
    """a = b or |a - b| ≤ atol + rtol·|b| with a finite difference, as torch."""
    dtype = common_dtype((a, b))
    x, y = (spread(e, call, v, dtype) for v in (a, b))
    close = e.cmp("eq", x, y)
    floating = ir.is_differentiable(dtype)
    if equal_nan and floating:
        close = e.or_(close, e.and_(e.is_nan(x), e.is_nan(y)))
    if rtol == 0 and atol == 0:
        return close
    if not floating:
        x, y = e.convert(x, "f32"), e.convert(y, "f32")
    scaled = e.abs(e.mul(like(e, rtol, y), y))
    allowed = e.add(like(e, atol, scaled), scaled)
    actual = e.abs(e.sub(x, y))
    finite = e.cmp("lt", actual, like(e, math.inf, actual))
    return e.or_(close, e.and_(finite, e.cmp("le", actual, allowed)))


@decomposition("isin.Tensor_Tensor")
def isin(e: Emitter, call: Call, elements: SSAValue, test: SSAValue, assume_unique: bool, invert: bool) -> SSAValue:
    """Whether each element equals any of the test elements."""
    dtype = common_dtype((elements, test))
    shape, n = ir.shape_of(elements), ir.numel(test)
    table = (*shape, n)
    left = e.broadcast(e.convert(elements, dtype), table, range(len(shape)))
    right = e.broadcast(e.reshape(e.convert(test, dtype), (n,)), table, (len(shape),))
    found = e.reduce("or", e.cmp("eq", left, right), (len(shape),))
    return e.not_(found) if invert else found


@decomposition("isin.Tensor_Scalar")
def isin_scalar(
    e: Emitter, call: Call, elements: SSAValue, test: Scalar, assume_unique: bool, invert: bool
) -> SSAValue:
    dtype = common_dtype((elements, test))
    return e.cmp("ne" if invert else "eq", *(spread(e, call, v, dtype) for v in (elements, test)))


@decomposition("isin.Scalar_Tensor")
def isin_number(e: Emitter, call: Call, element: Scalar, test: SSAValue, assume_unique: bool, invert: bool) -> SSAValue:
    dtype = common_dtype((element, test))
    elements = e.full(element, (), dtype)
    return isin(e, call, elements, test, assume_unique, invert)


# ---- choices


@decomposition("where.self", "where.Scalar", "where.ScalarOther", "where.ScalarSelf")
def where(e: Emitter, call: Call, condition: SSAValue, a: Scalar, b: Scalar) -> SSAValue:
    return e.select(
        spread(e, call, truth(e, condition), "i1"), spread(e, call, a, call.dtype()), spread(e, call, b, call.dtype())
    )


@decomposition("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(e: Emitter, call: Call, x: SSAValue, mask: SSAValue, value: Scalar) -> SSAValue:
    return where(e, call, mask, value, x)
