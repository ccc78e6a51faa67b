"""Reference implementations of the elementwise primitives, on tensors that broadcast.

Kernel bodies use the same classes on scalars, so nothing here looks at shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.runtime.interpret_table import (
    TABLE,
    Frame,
    Value,
    evaluates,
    literal_int,
    literal_str,
    tensors,
    torch_dtype,
)

_Function: TypeAlias = Callable[..., Tensor]


def sign(x: Tensor) -> Tensor:
    """(x > 0) - (x < 0); 0 at NaN."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b; integers round toward zero, a zero divisor raises torch's RuntimeError."""
    if a.dtype.is_floating_point or a.dtype.is_complex:
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


def _bits(dtype: torch.dtype) -> int:
    return dtype.itemsize * 8


def shift_left(a: Tensor, b: Tensor) -> Tensor:
    """a·2ᵇ modulo the width; 0 where b is not less than the width (or negative)."""
    inside = (b >= 0) & (b < _bits(a.dtype))
    shifted = torch.bitwise_left_shift(a, torch.where(inside, b, torch.zeros_like(b)))
    return torch.where(inside, shifted, torch.zeros_like(shifted))


def shift_right(a: Tensor, b: Tensor) -> Tensor:
    """⌊a / 2ᵇ⌋; for b not less than the width (or negative) what remains is the sign: 0 or -1."""
    last = _bits(a.dtype) - 1
    inside = (b >= 0) & (b <= last)
    shifted = torch.bitwise_right_shift(a, torch.where(inside, b, torch.full_like(b, last)))
    if a.dtype is torch.uint8:
        return torch.where(inside, shifted, torch.zeros_like(shifted))
    return shifted


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c rounded once."""
    if a.dtype is torch.float64:
        return _fma_f64(a, b, c)
    # A product of two narrower floats is exact in float64; rounding the sum to odd keeps the last rounding right.
    product = a.double() * b.double()
    return _add_to_odd(product, c.double()).to(a.dtype)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """s + e = a + b exactly, s = round(a + b) (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """p + e = a·b exactly, p = round(a·b) (Dekker, Veltkamp's splitting)."""
    split = 134217729.0  # 2²⁷ + 1

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        t = x * split
        high = t - (t - x)
        return high, x - high

    p = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _add_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """a + b rounded to odd: an inexact sum gets a last bit of 1, so that a later rounding sees that it was inexact."""
    s, e = _two_sum(a, b)
    bits = s.contiguous().view(torch.int64)
    step = torch.where((e > 0) == (s > 0), 1, -1)
    inexact = torch.isfinite(s) & (e != 0) & (bits & 1 == 0)
    return torch.where(inexact, bits + step, bits).view(torch.float64)


def _fma_f64(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd"."""
    high, low = _two_product(a, b)
    t, t_low = _two_sum(c, low)
    v, v_low = _two_sum(high, t)
    exact = v + _add_to_odd(t_low, v_low)
    plain = a * b + c
    huge = torch.maximum(torch.maximum(a.abs(), b.abs()), c.abs()) > 2.0**500
    return torch.where(torch.isfinite(exact) & ~huge, exact, plain)


def silu(x: Tensor) -> Tensor:
    """x/(1 + e⁻ˣ)"""
    return (x.double() * torch.sigmoid(x.double())).to(x.dtype)


def _normal_integral(x: Tensor) -> Tensor:
    return torch.special.erfc(x * -math.sqrt(0.5)) / 2


def ndtr(x: Tensor) -> Tensor:
    """Φ(x)"""
    return _normal_integral(x.double()).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x)"""
    return (x.double() * _normal_integral(x.double())).to(x.dtype)


def _tanh_gate(x: Tensor) -> Tensor:
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def tanh_gate(x: Tensor) -> Tensor:
    """1/(1 + e⁻²ᵘ), u = √(2/π)·(x + 0.044715·x³)"""
    return _tanh_gate(x.double()).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """x/(1 + e⁻²ᵘ)"""
    return (x.double() * _tanh_gate(x.double())).to(x.dtype)


def normal_density(x: Tensor) -> Tensor:
    """e^(-x²/2)/√(2π)"""
    return (torch.exp(x.double().square() * -0.5) / math.sqrt(2 * math.pi)).to(x.dtype)


_UNARY: dict[type[prim.PrimOp], _Function] = {
    prim.NegOp: torch.neg,
    prim.AbsOp: torch.abs,
    prim.SignOp: sign,
    prim.FloorOp: torch.floor,
    prim.CeilOp: torch.ceil,
    prim.RoundOp: torch.round,
    prim.TruncOp: torch.trunc,
    prim.NotOp: torch.bitwise_not,
    prim.SqrtOp: torch.sqrt,
    prim.RsqrtOp: torch.rsqrt,
    prim.ReluOp: torch.relu,
    prim.ExpOp: torch.exp,
    prim.Exp2Op: torch.exp2,
    prim.Expm1Op: torch.expm1,
    prim.LogOp: torch.log,
    prim.Log2Op: torch.log2,
    prim.Log10Op: torch.log10,
    prim.Log1pOp: torch.log1p,
    prim.SinOp: torch.sin,
    prim.CosOp: torch.cos,
    prim.TanOp: torch.tan,
    prim.AsinOp: torch.asin,
    prim.AcosOp: torch.acos,
    prim.AtanOp: torch.atan,
    prim.SinhOp: torch.sinh,
    prim.CoshOp: torch.cosh,
    prim.TanhOp: torch.tanh,
    prim.AsinhOp: torch.asinh,
    prim.AcoshOp: torch.acosh,
    prim.AtanhOp: torch.atanh,
    prim.LogisticOp: torch.sigmoid,
    prim.ErfOp: torch.erf,
    prim.ErfcOp: torch.erfc,
    prim.ErfinvOp: torch.erfinv,
    prim.SiluOp: silu,
    prim.GeluOp: gelu,
    prim.GeluTanhOp: gelu_tanh,
    prim.TanhGateOp: tanh_gate,
    prim.NdtrOp: ndtr,
    prim.NormalDensityOp: normal_density,
    prim.LgammaOp: torch.lgamma,
    prim.DigammaOp: torch.digamma,
    prim.RealOp: lambda x: torch.real(x).clone(),
    prim.ImagOp: lambda x: torch.imag(x).clone(),
    prim.ConjOp: lambda x: torch.conj(x).resolve_conj(),
    prim.StopGradientOp: torch.detach,
}

_MORE: dict[type[prim.PrimOp], _Function] = {
    prim.AddOp: torch.add,
    prim.SubOp: torch.sub,
    prim.MulOp: torch.mul,
    prim.DivOp: divide,
    prim.RemOp: torch.fmod,
    prim.PowOp: torch.pow,
    prim.MaxOp: torch.maximum,
    prim.MinOp: torch.minimum,
    prim.Atan2Op: torch.atan2,
    prim.CopysignOp: torch.copysign,
    prim.NextafterOp: torch.nextafter,
    prim.AndOp: torch.bitwise_and,
    prim.OrOp: torch.bitwise_or,
    prim.XorOp: torch.bitwise_xor,
    prim.ShlOp: shift_left,
    prim.ShrOp: shift_right,
    prim.ComplexOp: torch.complex,
    prim.FmaOp: fma,
    prim.SelectOp: torch.where,
}

_COMPARE: dict[str, _Function] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


def _enter(cls: type[prim.PrimOp], function: _Function) -> None:
    def evaluate(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
        return (function(*operands),)

    TABLE[cls] = evaluate


for _cls, _function in {**_UNARY, **_MORE}.items():
    _enter(_cls, _function)


@evaluates(prim.CmpOp)
def compare(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """a ⋄ b"""
    return (_COMPARE[literal_str(op, "predicate")](*operands),)


@evaluates(prim.PolygammaOp)
def polygamma(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """ψ⁽ⁿ⁾"""
    (x,) = tensors(operands)
    return (torch.polygamma(literal_int(op, "order"), x.double()).to(x.dtype),)


@evaluates(prim.ConvertOp)
def convert(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Floats to integers truncate, to booleans x ≠ 0, to narrower floats round to even: torch's casts."""
    (x,) = tensors(operands)
    if ir.dtype_of(op.results[0]) == "i1":
        return (x != 0,)
    if x.is_complex() and not ir.is_complex(ir.dtype_of(op.results[0])):
        x = torch.real(x)
    return (x.to(torch_dtype(op.results[0].type)),)
