"""Derivatives y' of functions of one variable, phrased in y where that is cheaper; x̄ = ȳ·(y')*."""

from __future__ import annotations

import math
from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.table import Cotangents, Needs, derivative, one, pullback


@derivative(prim.ExpOp)
def exp(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = y."""
    return y


@derivative(prim.Exp2Op)
def exp2(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = y·ln 2."""
    return e.scaled(y, math.log(2))


@derivative(prim.Expm1Op)
def expm1(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = y + 1."""
    return e.shifted(y, 1)


@pullback(prim.LogOp)
def log(e: Emitter, op: prim.LogOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = ln x: x̄ = ȳ/x*."""
    return (e.div(one(cts), e.conj(op.x)),)


@pullback(prim.Log2Op)
def log2(e: Emitter, op: prim.Log2Op, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = log₂ x: x̄ = ȳ/(x·ln 2)."""
    return (e.div(one(cts), e.scaled(op.x, math.log(2))),)


@pullback(prim.Log10Op)
def log10(e: Emitter, op: prim.Log10Op, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = log₁₀ x: x̄ = ȳ/(x·ln 10)."""
    return (e.div(one(cts), e.scaled(op.x, math.log(10))),)


@pullback(prim.Log1pOp)
def log1p(e: Emitter, op: prim.Log1pOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = ln(1 + x): x̄ = ȳ/(x + 1)."""
    return (e.div(one(cts), e.shifted(op.x, 1)),)


@pullback(prim.SqrtOp)
def sqrt(e: Emitter, op: prim.SqrtOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = √x: x̄ = ȳ/(2y*), infinite at 0."""
    return (e.div(one(cts), e.scaled(e.conj(op.y), 2)),)


@derivative(prim.RsqrtOp)
def rsqrt(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = -y³/2."""
    return e.scaled(e.mul(e.square(y), y), -0.5)


@derivative(prim.SinOp)
def sin(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = cos x."""
    return e.cos(x)


@derivative(prim.CosOp)
def cos(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = -sin x."""
    return e.neg(e.sin(x))


@derivative(prim.TanOp)
def tan(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = 1 + y²."""
    return e.shifted(e.square(y), 1)


@derivative(prim.AsinOp)
def asin(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = 1/√(1 - x²)."""
    return e.rsqrt(_one_minus_square(e, x))


@derivative(prim.AcosOp)
def acos(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = -1/√(1 - x²)."""
    return e.neg(e.rsqrt(_one_minus_square(e, x)))


@pullback(prim.AtanOp)
def atan(e: Emitter, op: prim.AtanOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = arctan x: x̄ = ȳ/(x² + 1)*."""
    return (e.div(one(cts), e.conj(e.shifted(e.square(op.x), 1))),)


@derivative(prim.SinhOp)
def sinh(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = cosh x."""
    return e.unary(prim.CoshOp, x)


@derivative(prim.CoshOp)
def cosh(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = sinh x."""
    return e.unary(prim.SinhOp, x)


@derivative(prim.TanhOp)
def tanh(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = 1 - y²."""
    return _one_minus_square(e, y)


@derivative(prim.AsinhOp)
def asinh(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = 1/√(x² + 1)."""
    return e.rsqrt(e.shifted(e.square(x), 1))


@derivative(prim.AcoshOp)
def acosh(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = 1/√(x² - 1); for complex x the branch cuts want 1/√(x + 1) · 1/√(x - 1)."""
    if ir.is_complex(ir.dtype_of(x)):
        return e.mul(e.rsqrt(e.shifted(x, 1)), e.rsqrt(e.shifted(x, -1)))
    return e.rsqrt(e.shifted(e.square(x), -1))


@pullback(prim.AtanhOp)
def atanh(e: Emitter, op: prim.AtanhOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = artanh x: x̄ = ȳ/(1 - x²)*."""
    return (e.div(one(cts), e.conj(_one_minus_square(e, op.x))),)


@derivative(prim.LogisticOp)
def logistic(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = (1 - y)·y."""
    return e.mul(e.sub(e.const_like(1, y), y), y)


@derivative(prim.ErfOp)
def erf(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = 2/√π · exp(-x²)."""
    return e.scaled(e.exp(e.neg(e.square(x))), 2 / math.sqrt(math.pi))


@derivative(prim.ErfcOp)
def erfc(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = -2/√π · exp(-x²)."""
    return e.scaled(e.exp(e.neg(e.square(x))), -2 / math.sqrt(math.pi))


@derivative(prim.ErfinvOp)
def erfinv(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = √π/2 · exp(y²)."""
    return e.scaled(e.exp(e.square(y)), math.sqrt(math.pi) / 2)


@derivative(prim.LgammaOp)
def lgamma(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = ψ(x), the digamma function."""
    return e.unary(prim.DigammaOp, x)


@derivative(prim.DigammaOp)
def digamma(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = ψ₁(x), the trigamma function."""
    return e.op(prim.PolygammaOp, (x,), {"order": 1}).y


@pullback(prim.PolygammaOp)
def polygamma(e: Emitter, op: prim.PolygammaOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = ψₙ(x): x̄ = ȳ·ψₙ₊₁(x), beyond the last order by a library call."""
    order = cast(int, op.order.data) + 1
    if order <= op.LARGEST:
        return (e.mul(one(cts), e.op(prim.PolygammaOp, (op.x,), {"order": order}).y),)
    return (e.mul(one(cts), e.opaque("polygamma", (op.x,), (order, ir.Operand(0)), (op.x.type,))[0]),)


@derivative(prim.NormalDensityOp)
def normal_density(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = -x·y."""
    return e.neg(e.mul(x, y))


@derivative(prim.NdtrOp)
def ndtr(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = φ(x)."""
    return e.unary(prim.NormalDensityOp, x)


@derivative(prim.GeluOp)
def gelu(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = Φ(x) + x·φ(x)."""
    return e.add(e.unary(prim.NdtrOp, x), e.mul(x, e.unary(prim.NormalDensityOp, x)))


@derivative(prim.SiluOp)
def silu(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = s + x·(1 - s)·s, s = 1/(1 + e⁻ˣ)."""
    s = e.logistic(x)
    return e.add(s, e.mul(x, _times_rest(e, s)))


@derivative(prim.TanhGateOp)
def tanh_gate(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = (1 - y)·y·2u', 2u' = 2√(2/π)·(1 + 0.134145·x²)."""
    return e.mul(_times_rest(e, y), _cubic_slope(e, x))


@derivative(prim.GeluTanhOp)
def gelu_tanh(e: Emitter, x: SSAValue, y: SSAValue) -> SSAValue:
    """y' = s + x·s', s = 1/(1 + e⁻²ᵘ)."""
    s = e.unary(prim.TanhGateOp, x)
    return e.add(s, e.mul(e.mul(x, _times_rest(e, s)), _cubic_slope(e, x)))


def _cubic_slope(e: Emitter, x: SSAValue) -> SSAValue:
    scale = 2 * math.sqrt(2 / math.pi)
    return e.shifted(e.scaled(e.square(x), 3 * 0.044715 * scale), scale)


def _times_rest(e: Emitter, y: SSAValue) -> SSAValue:
    """(1 - y)·y"""
    return e.mul(e.sub(e.const_like(1, y), y), y)


def _one_minus_square(e: Emitter, x: SSAValue) -> SSAValue:
    return e.sub(e.const_like(1, x), e.square(x))
