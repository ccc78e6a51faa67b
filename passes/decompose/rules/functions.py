"""Elementwise functions of one value."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import inside, like, pointwise, refuse_complex
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition

PRIMITIVES: dict[type[prim.UnaryOp], tuple[str, ...]] = {
    prim.SqrtOp: ("sqrt",),
    prim.RsqrtOp: ("rsqrt",),
    prim.ExpOp: ("exp",),
    prim.Exp2Op: ("exp2", "special_exp2"),
    prim.Expm1Op: ("expm1", "special_expm1"),
    prim.LogOp: ("log",),
    prim.Log2Op: ("log2",),
    prim.Log10Op: ("log10",),
    prim.Log1pOp: ("log1p", "special_log1p"),
    prim.SinOp: ("sin",),
    prim.CosOp: ("cos",),
    prim.TanOp: ("tan",),
    prim.AsinOp: ("asin", "arcsin"),
    prim.AcosOp: ("acos", "arccos"),
    prim.AtanOp: ("atan", "arctan"),
    prim.SinhOp: ("sinh",),
    prim.CoshOp: ("cosh",),
    prim.TanhOp: ("tanh",),
    prim.AsinhOp: ("asinh", "arcsinh"),
    prim.AcoshOp: ("acosh", "arccosh"),
    prim.AtanhOp: ("atanh", "arctanh"),
    prim.LogisticOp: ("sigmoid", "special_expit"),
    prim.ErfOp: ("erf", "special_erf"),
    prim.ErfcOp: ("erfc", "special_erfc"),
    prim.ErfinvOp: ("erfinv", "special_erfinv"),
    prim.LgammaOp: ("lgamma", "special_gammaln"),
    prim.DigammaOp: ("digamma", "special_digamma", "special_psi"),
}
"""Functions that are one primitive; integers become the default float."""


def _enter(cls: type[prim.UnaryOp], names: tuple[str, ...]) -> None:
    def formula(e: Emitter, x: SSAValue) -> SSAValue:
        if ir.dtype_of(x) not in cls.DOMAIN:
            raise Refusal(f"{cls.name} is not defined for {ir.dtype_of(x)}")
        return e.unary(cls, x)

    pointwise(*(f"{name}.default" for name in names), operands=1)(formula)


for _cls, _names in PRIMITIVES.items():
    _enter(_cls, _names)


@pointwise("neg.default", "negative.default", operands=1)
def neg(e: Emitter, x: SSAValue) -> SSAValue:
    return e.neg(x)


@decomposition("abs.default", "absolute.default")
def absolute(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return x if ir.dtype_of(x) == "i1" else e.abs(x)


@pointwise("square.default", operands=1)
def square(e: Emitter, x: SSAValue) -> SSAValue:
    return e.square(x) if ir.dtype_of(x) != "i1" else x


@pointwise("reciprocal.default", operands=1)
def reciprocal(e: Emitter, x: SSAValue) -> SSAValue:
    return e.reciprocal(x)


@decomposition("sign.default", "sgn.default")
def sign(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    """x/|x|, 0 at 0."""
    if ir.is_complex(ir.dtype_of(x)):
        size = e.abs(x)
        zero = e.cmp("eq", size, e.zeros_like(size))
        unit = e.div(x, e.convert(e.select(zero, like(e, 1, size), size), ir.dtype_of(x)))
        return e.select(zero, e.zeros_like(x), unit)
    return x if ir.dtype_of(x) == "i1" else e.unary(prim.SignOp, x)


def _rounding(cls: type[prim.UnaryOp], name: str) -> None:
    @decomposition(f"{name}.default")
    def rule(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
        return e.unary(cls, x) if ir.is_float(ir.dtype_of(x)) else x

    del rule


_rounding(prim.FloorOp, "floor")
_rounding(prim.CeilOp, "ceil")
_rounding(prim.RoundOp, "round")
_rounding(prim.TruncOp, "trunc")
_rounding(prim.TruncOp, "fix")


@pointwise("round.decimals", operands=1)
def round_decimals(e: Emitter, x: SSAValue, decimals: int) -> SSAValue:
    """round(x·10ᵈ)/10ᵈ; x·10ᵈ as x/10⁻ᵈ for negative d, as torch."""
    if not ir.is_float(ir.dtype_of(x)) or decimals == 0:
        return e.round(x) if ir.is_float(ir.dtype_of(x)) else x
    ten = like(e, 10.0 ** abs(decimals), x)
    return e.mul(e.round(e.div(x, ten)), ten) if decimals < 0 else e.div(e.round(e.mul(x, ten)), ten)


@pointwise("frac.default", operands=1)
def frac(e: Emitter, x: SSAValue) -> SSAValue:
    return e.sub(x, e.trunc(x))


@pointwise("deg2rad.default", operands=1)
def deg2rad(e: Emitter, x: SSAValue) -> SSAValue:
    return e.scaled(x, math.pi / 180)


@pointwise("rad2deg.default", operands=1)
def rad2deg(e: Emitter, x: SSAValue) -> SSAValue:
    return e.scaled(x, 180 / math.pi)


@pointwise("sinc.default", "special_sinc.default", operands=1)
def sinc(e: Emitter, x: SSAValue) -> SSAValue:
    """sin(πx)/(πx), 1 at 0 with derivative 0."""
    zero = e.cmp("eq", x, e.zeros_like(x))
    product = e.scaled(e.select(zero, like(e, 1, x), x), math.pi)
    return e.select(zero, like(e, 1, x), e.div(e.sin(product), product))


@pointwise("logit.default", "special_logit.default", operands=1)
def logit(e: Emitter, x: SSAValue, eps: Scalar | None) -> SSAValue:
    """ln(z/(1 - z)), z = x or x held in [eps, 1 - eps]."""
    if eps is not None:
        low, high = like(e, eps, x), e.sub(like(e, 1, x), like(e, eps, x))
        x = e.select(e.cmp("lt", x, low), low, e.select(e.cmp("gt", x, high), high, x))
    return e.log(e.div(x, e.sub(like(e, 1, x), x)))


@pointwise("special_entr.default", operands=1)
def entropy(e: Emitter, x: SSAValue) -> SSAValue:
    """-x ln x; 0 at 0, -inf below."""
    positive = e.cmp("gt", x, e.zeros_like(x))
    inner = e.select(positive, x, like(e, 1, x))
    low = e.select(e.cmp("eq", x, e.zeros_like(x)), e.zeros_like(x), like(e, -math.inf, x))
    low = e.select(e.is_nan(x), x, low)
    return e.select(positive, e.mul(e.neg(x), e.log(inner)), low)


@pointwise("special_ndtr.default", operands=1)
def ndtr(e: Emitter, x: SSAValue) -> SSAValue:
    """Φ(x)"""
    return e.unary(prim.NdtrOp, x)


@decomposition("real.default")
def real(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.real(x)


@decomposition("imag.default")
def imag(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.unary(prim.ImagOp, x)


@decomposition("conj_physical.default", "conj.default", "_conj.default", "_conj_physical.default")
def conj(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.conj(x)


@decomposition("view_as_real.default", "view_as_real_copy.default")
def view_as_real(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    rank = len(ir.shape_of(x))
    return e.concat([e.expand_dims(part, (rank,)) for part in (e.real(x), e.unary(prim.ImagOp, x))], rank)


@decomposition("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    last = len(ir.shape_of(x)) - 1
    parts = [e.reshape(e.slice(x, last, k, k + 1), call.shape()) for k in range(2)]
    return e.binary(prim.ComplexOp, *parts)


@pointwise("complex.default", operands=2)
def complex_(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    if ir.dtype_of(a) not in prim.ComplexOp.DOMAIN:
        raise Refusal(f"complex numbers of {ir.dtype_of(a)} are left to the library")
    return e.binary(prim.ComplexOp, a, b)


@pointwise("polar.default", operands=2)
def polar(e: Emitter, size: SSAValue, angle: SSAValue) -> SSAValue:
    return e.binary(prim.ComplexOp, e.mul(size, e.cos(angle)), e.mul(size, e.sin(angle)))


@pointwise("angle.default", operands=1)
def angle(e: Emitter, x: SSAValue) -> SSAValue:
    """atan2(im, re); 0 or π (NaN where NaN) for real numbers."""
    if ir.is_complex(ir.dtype_of(x)):
        return e.binary(prim.Atan2Op, e.unary(prim.ImagOp, x), e.real(x))
    negative = e.select(e.cmp("lt", x, e.zeros_like(x)), like(e, math.pi, x), e.zeros_like(x))
    return e.select(e.is_nan(x), x, negative)


_LARGEST = {
    "f64": 1.7976931348623157e308,
    "f32": 3.4028234663852886e38,
    "bf16": 3.3895313892515355e38,
    "f16": 65504.0,
}
EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}
"""The distance from 1 to the next number."""


@decomposition("nan_to_num.default")
def nan_to_num(
    e: Emitter, call: Call, x: SSAValue, nan: Scalar | None, posinf: Scalar | None, neginf: Scalar | None
) -> SSAValue:
    """Replace NaN and ±inf; the dtype's largest numbers where no replacement is given."""
    refuse_complex(x)
    dtype = ir.dtype_of(x)
    if not ir.is_float(dtype):
        return x
    largest = _LARGEST[dtype]
    y = e.select(e.is_nan(x), like(e, 0.0 if nan is None else nan, x), x)
    y = e.select(e.cmp("eq", x, like(e, math.inf, x)), like(e, largest if posinf is None else posinf, x), y)
    return e.select(e.cmp("eq", x, like(e, -math.inf, x)), like(e, -largest if neginf is None else neginf, x), y)


@pointwise("mvlgamma.default", "special_multigammaln.default", operands=1)
def mvlgamma(e: Emitter, x: SSAValue, p: int) -> SSAValue:
    """ln Γₚ(x) = p(p - 1)/4·ln π + Σ ln Γ(x - i/2)"""
    total = e.unary(prim.LgammaOp, x)
    for i in range(1, p):
        total = e.add(total, e.unary(prim.LgammaOp, e.shifted(x, -i / 2)))
    return e.shifted(total, p * (p - 1) / 4 * math.log(math.pi))


@decomposition("polygamma.default", "special_polygamma.default")
def polygamma(e: Emitter, call: Call, first: int | SSAValue, second: int | SSAValue) -> SSAValue:
    """The derivative of ψ of an order n; torch's arguments are n, x and in place x, n"""
    n, x = (second, first) if isinstance(first, SSAValue) else (first, second)
    assert isinstance(n, int) and isinstance(x, SSAValue)
    if n > prim.PolygammaOp.LARGEST:
        raise Refusal("such high derivatives of the digamma function are left to the library")
    wide = e.convert(x, inside(call.dtype()))
    y = e.unary(prim.DigammaOp, wide) if n == 0 else e.op(prim.PolygammaOp, (wide,), {"order": n}).y
    return e.convert(y, call.dtype())


@decomposition("vander.default")
def vander(e: Emitter, call: Call, x: SSAValue, n: int | None, increasing: bool) -> SSAValue:
    """The powers of x, highest first unless increasing"""
    y = powers(e, call, x, n)
    return y if increasing else e.reverse(y, (1,))


@decomposition("linalg_vander.default")
def powers(e: Emitter, call: Call, x: SSAValue, n: int | None) -> SSAValue:
    """y[..., k] = xᵏ as running products"""
    shape = call.shape()
    last = len(shape) - 1
    if shape[last] == 0:
        return e.const(1, shape, call.dtype())
    ones = e.const(1, (*shape[:-1], 1), call.dtype())
    y = e.reshape(e.convert(x, call.dtype()), shape[:-1])
    repeated = e.broadcast(y, (*shape[:-1], shape[last] - 1), range(last))
    return e.concat([ones, e.cumulative("mul", repeated, last)], last)
