"""Elementwise arithmetic of two and three values."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import computation_dtype, inside, like, operand, pointwise, spread
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition


def _times(e: Emitter, x: SSAValue, factor: Scalar) -> SSAValue:
    """x · factor for a schema's Scalar."""
    return e.mul(x, like(e, factor, x))


@pointwise("add.Tensor", "add.Scalar", operands=2)
def add(e: Emitter, a: SSAValue, b: SSAValue, alpha: Scalar = 1) -> SSAValue:
    """a + alpha·b"""
    if ir.dtype_of(a) == "i1":
        return e.or_(a, e.and_(b, like(e, alpha, b)))
    return e.add(a, _times(e, b, alpha))


@pointwise("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar", operands=2)
def sub(e: Emitter, a: SSAValue, b: SSAValue, alpha: Scalar = 1) -> SSAValue:
    """a - alpha·b"""
    return e.sub(a, _times(e, b, alpha))


@pointwise("rsub.Tensor", "rsub.Scalar", operands=2)
def rsub(e: Emitter, a: SSAValue, b: SSAValue, alpha: Scalar = 1) -> SSAValue:
    """b - alpha·a"""
    return e.sub(b, _times(e, a, alpha))


@pointwise("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar", operands=2, exact_numbers=True)
def mul(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.and_(a, b) if ir.dtype_of(a) == "i1" else e.mul(a, b)


_DIVISIONS = ("div", "divide", "true_divide")


@pointwise(*(f"{n}.{o}" for n in _DIVISIONS for o in ("Tensor", "Scalar")), operands=2, exact_numbers=True)
def div(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.div(a, b)


_ROUNDED_DIVISIONS = tuple(f"{n}.{o}" for n in ("div", "divide") for o in ("Tensor_mode", "Scalar_mode"))


@decomposition(*_ROUNDED_DIVISIONS)
def div_mode(e: Emitter, call: Call, a: Scalar, b: Scalar, mode: str | None) -> SSAValue:
    """a / b, rounded toward zero ("trunc") or down ("floor")

    Narrow floats divided by a tensor are rounded after every operation, by a number once, as torch does.
    """
    dtype = computation_dtype(call, (a, b))
    if not (isinstance(b, SSAValue) and ir.shape_of(b)) or mode is None:
        dtype = inside(dtype)
    x, y = (spread(e, call, v, dtype) for v in (a, b))
    if mode == "floor":
        quotient = floor_quotient(e, x, y)
    else:
        quotient = e.div(x, y)
        quotient = e.trunc(quotient) if mode == "trunc" and ir.is_float(dtype) else quotient
    return e.convert(quotient, call.dtype())


@decomposition("floor_divide.default", "floor_divide.Tensor", "floor_divide.Scalar")
def floor_divide(e: Emitter, call: Call, a: Scalar, b: Scalar) -> SSAValue:
    return div_mode(e, call, a, b, "floor")


def floor_quotient(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """⌊a / b⌋ of the exact quotient, found from the remainder as C++ and Python do."""
    zero = e.zeros_like(a)
    if not ir.is_float(ir.dtype_of(a)):
        quotient = e.div(a, b)
        return e.select(_rounds_down(e, e.rem(a, b), b), e.shifted(quotient, -1), quotient) if _signed(a) else quotient
    by_zero = e.cmp("eq", b, zero)
    remainder = e.rem(a, b)
    quotient = e.div(e.sub(a, remainder), b)
    quotient = e.select(_rounds_down(e, remainder, b), e.shifted(quotient, -1), quotient)
    whole = e.floor(quotient)
    whole = e.select(e.cmp("gt", e.sub(quotient, whole), like(e, 0.5, a)), e.shifted(whole, 1), whole)
    infinite = e.stop_gradient(e.div(a, b))
    signed_zero = e.binary(prim.CopysignOp, zero, infinite)
    return e.select(by_zero, infinite, e.select(e.cmp("ne", quotient, zero), whole, signed_zero))


def _rounds_down(e: Emitter, remainder: SSAValue, b: SSAValue) -> SSAValue:
    """Whether truncation and floor of the quotient differ: the remainder is not 0 and of the other sign than b."""
    zero = e.zeros_like(b)
    return e.and_(e.cmp("ne", remainder, zero), e.xor(e.cmp("lt", b, zero), e.cmp("lt", remainder, zero)))


def _signed(x: SSAValue) -> bool:
    return ir.dtype_of(x) != "u8"


@pointwise("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", operands=2)
def remainder(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """a - b·⌊a / b⌋: the sign of b"""
    rest = e.rem(a, b)
    return e.select(_rounds_down(e, rest, b), e.add(rest, b), rest) if _signed(a) else rest


@pointwise("fmod.Tensor", "fmod.Scalar", operands=2)
def fmod(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.rem(a, b)


@decomposition("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar", "pow.Tensor")
def power_call(e: Emitter, call: Call, a: Scalar, b: Scalar) -> SSAValue:
    """aᵇ; for float16 torch takes no roots: ½ and -½ make of -0 and -inf what they make of 0 and inf."""
    dtype = computation_dtype(call, (a, b))
    base, exponent = (operand(e, call, v, dtype) for v in (a, b))
    if dtype == "f16" and e.constant_of(exponent) in (0.5, -0.5):
        infinite = e.cmp("eq", base, like(e, -math.inf, base))
        base = e.select(infinite, like(e, math.inf, base), e.add(base, e.zeros_like(base)))
    return e.convert(power(e, base, exponent), call.dtype())


def power(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """aᵇ; the exponents that torch treats apart (0, 1, 2, 3, ½, -½, -1, -2) become products and roots."""
    exponent = e.constant_of(b)
    if ir.dtype_of(a) == "i1":
        return e.or_(a, e.not_(b))
    if isinstance(exponent, (int, float)):
        special = _special_power(e, a, float(exponent))
        if special is not None:
            return special
    return e.pow(a, b)


def _special_power(e: Emitter, a: SSAValue, exponent: float) -> SSAValue | None:
    if exponent == 0:
        return like(e, 1, a)
    if exponent == 1:
        return a
    if exponent == 2:
        return e.square(a)
    if exponent == 3:
        return e.mul(e.square(a), a)
    if not ir.is_float(ir.dtype_of(a)):
        return None
    if exponent == 0.5:
        return e.sqrt(a)
    if exponent == -0.5:
        return e.rsqrt(a)
    if exponent == -1:
        return e.reciprocal(a)
    return e.reciprocal(e.square(a)) if exponent == -2 else None


@decomposition("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar", "float_power.Tensor")
def float_power(e: Emitter, call: Call, a: Scalar, b: Scalar) -> SSAValue:
    """aᵇ in double precision."""
    return power(e, *(spread(e, call, v, call.dtype()) for v in (a, b)))


@pointwise("maximum.default", "max.other", operands=2)
def maximum(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.max(a, b)


@pointwise("minimum.default", "min.other", operands=2)
def minimum(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.min(a, b)


@pointwise("fmax.default", operands=2)
def fmax(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """The larger one, the number where the other is NaN."""
    return e.select(e.or_(e.cmp("ge", a, b), e.is_nan(b)), a, b)


@pointwise("fmin.default", operands=2)
def fmin(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """The smaller one, the number where the other is NaN."""
    return e.select(e.or_(e.cmp("le", a, b), e.is_nan(b)), a, b)


_CLAMPS = ("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")


@pointwise(*_CLAMPS, operands=3)
def clamp(e: Emitter, x: SSAValue, low: SSAValue | None, high: SSAValue | None) -> SSAValue:
    """min(max(x, low), high): at a bound the derivative is x's."""
    if low is not None:
        x = e.select(_passes(e, "lt", x, low), low, x)
    return x if high is None else e.select(_passes(e, "gt", x, high), high, x)


def _passes(e: Emitter, predicate: str, x: SSAValue, bound: SSAValue) -> SSAValue:
    """Whether x is outside of a bound; a bound that is NaN wins."""
    outside = e.cmp(predicate, x, bound)
    value = e.constant_of(bound)
    certain = not ir.is_float(ir.dtype_of(bound)) or (isinstance(value, float) and not math.isnan(value))
    return outside if certain else e.or_(outside, e.is_nan(bound))


@pointwise("clamp_min.default", "clamp_min.Tensor", operands=2)
def clamp_min(e: Emitter, x: SSAValue, low: SSAValue) -> SSAValue:
    return clamp(e, x, low, None)


@pointwise("clamp_max.default", "clamp_max.Tensor", operands=2)
def clamp_max(e: Emitter, x: SSAValue, high: SSAValue) -> SSAValue:
    return clamp(e, x, None, high)


@pointwise("lerp.Scalar", "lerp.Tensor", operands=3, exact_numbers=True)
def lerp(e: Emitter, a: SSAValue, b: SSAValue, weight: SSAValue) -> SSAValue:
    """a + w·(b - a), counted from the nearer end."""
    difference = e.sub(b, a)
    size = e.abs(weight)
    near = e.cmp("lt", size, like(e, 0.5, size))
    from_b = e.sub(b, e.mul(difference, e.sub(like(e, 1, weight), weight)))
    return e.select(near, e.add(a, e.mul(weight, difference)), from_b)


@pointwise("addcmul.default", operands=3)
def addcmul(e: Emitter, x: SSAValue, a: SSAValue, b: SSAValue, value: Scalar) -> SSAValue:
    """x + value·a·b"""
    return e.add(x, e.mul(_times(e, a, value), b))


@pointwise("addcdiv.default", operands=3)
def addcdiv(e: Emitter, x: SSAValue, a: SSAValue, b: SSAValue, value: Scalar) -> SSAValue:
    """x + value·a/b"""
    return e.add(x, e.div(_times(e, a, value), b))


@pointwise("atan2.default", "arctan2.default", operands=2)
def atan2(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.binary(prim.Atan2Op, a, b)


@pointwise("copysign.Tensor", "copysign.Scalar", operands=2)
def copysign(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.binary(prim.CopysignOp, a, b)


@pointwise("hypot.default", operands=2)
def hypot(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """√(a² + b²), scaled so that no square overflows; infinite beside a NaN too."""
    sizes = e.stop_gradient(e.abs(a)), e.stop_gradient(e.abs(b))
    size = e.max(*sizes)
    plain = e.or_(e.cmp("eq", size, e.zeros_like(a)), e.cmp("eq", size, like(e, math.inf, a)))
    scale = e.select(e.or_(plain, e.is_nan(size)), like(e, 1, a), size)
    length = e.mul(scale, e.sqrt(e.add(e.square(e.div(a, scale)), e.square(e.div(b, scale)))))
    infinite = e.or_(*(e.cmp("eq", s, like(e, math.inf, s)) for s in sizes))
    return e.select(e.and_(infinite, e.is_nan(size)), like(e, math.inf, a), length)


@pointwise("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlogy.default", operands=2)
def xlogy(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """x ln y; 0 where x is 0, NaN where y is NaN."""
    return _times_log(e, x, y, prim.LogOp, 0)


_XLOG1PY = ("special_xlog1py.default", "special_xlog1py.other_scalar", "special_xlog1py.self_scalar")


@pointwise(*_XLOG1PY, operands=2)
def xlog1py(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """x ln(1 + y); 0 where x is 0, NaN where y is NaN."""
    return _times_log(e, x, y, prim.Log1pOp, -1)


def _times_log(e: Emitter, x: SSAValue, y: SSAValue, log: type[prim.UnaryOp], zero_at: int) -> SSAValue:
    # x = 0 is a plain product where ln y is finite, so that the derivative in x is ln y there
    infinite = e.or_(e.cmp("le", y, like(e, zero_at, y)), e.cmp("eq", y, like(e, math.inf, y)))
    zero = e.cmp("eq", x, e.zeros_like(x))
    vanishes = e.and_(zero, infinite)
    product = e.mul(x, e.unary(log, e.select(vanishes, like(e, zero_at + 1, y), y)))
    return e.add(product, e.select(zero, e.zeros_like(x), like(e, -0.0, x)))  # no -0 where x is 0


@pointwise("logaddexp.default", operands=2)
def logaddexp(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """ln(eᵃ + eᵇ) = max + ln(1 + e^-|a-b|)"""
    top, distance = _apart(e, a, b)
    return e.add(top, e.log1p(e.exp(distance)))


@pointwise("logaddexp2.default", operands=2)
def logaddexp2(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """log₂(2ᵃ + 2ᵇ)"""
    top, distance = _apart(e, a, b)
    return e.add(top, e.scaled(e.log1p(e.unary(prim.Exp2Op, distance)), 1 / math.log(2)))


def _apart(e: Emitter, a: SSAValue, b: SSAValue) -> tuple[SSAValue, SSAValue]:
    """max(a, b) and -|a - b|, 0 for equal infinities."""
    if ir.is_complex(ir.dtype_of(a)):
        raise Refusal("is left to the library for complex numbers")
    same = e.cmp("eq", a, b)
    return e.max(a, b), e.neg(e.abs(e.select(same, e.zeros_like(a), e.sub(a, b))))


@pointwise("heaviside.default", operands=2)
def heaviside(e: Emitter, x: SSAValue, at_zero: SSAValue) -> SSAValue:
    zero = e.zeros_like(x)
    step = e.convert(e.cmp("gt", x, zero), ir.dtype_of(x))
    return e.select(e.cmp("eq", x, zero), at_zero, step)


@pointwise("ldexp.Tensor", "ldexp.default", operands=2)
def ldexp(e: Emitter, x: SSAValue, exponent: SSAValue) -> SSAValue:
    """x·2ⁿ"""
    return e.mul(x, e.pow(like(e, 2, x), exponent))


@decomposition("nextafter.default")
def nextafter(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    """The next number of the dtype itself: no wider one inside."""
    return e.binary(prim.NextafterOp, *(spread(e, call, v, call.dtype()) for v in (a, b)))
