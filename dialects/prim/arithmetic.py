"""Elementwise primitives, one method each."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import complex as complex_
from isthmus.dialects.prim import elementwise, shape, transcendental
from isthmus.dialects.prim.maker import Maker, python_number
from isthmus.ir import LiteralValue


class Arithmetic(Maker):
    """One method per elementwise primitive; numbers that meet tensors become constants of their dtype."""

    # ---- elementwise

    def unary(self, cls: type[elementwise.UnaryOp], x: SSAValue) -> SSAValue:
        """y = f(x) for any unary elementwise class."""
        return self.one(cls, x)

    def binary(self, cls: type[elementwise.BinaryOp], a: SSAValue, b: SSAValue) -> SSAValue:
        """y = f(a, b) for any binary elementwise class."""
        return self.one(cls, a, b)

    def neg(self, x: SSAValue) -> SSAValue:
        """y = -x"""
        return self.one(elementwise.NegOp, x)

    def abs(self, x: SSAValue) -> SSAValue:
        """y = |x|"""
        return self.one(elementwise.AbsOp, x)

    def sign(self, x: SSAValue) -> SSAValue:
        """y = sign of x"""
        return self.one(elementwise.SignOp, x)

    def floor(self, x: SSAValue) -> SSAValue:
        """y = ⌊x⌋"""
        return self.one(elementwise.FloorOp, x)

    def ceil(self, x: SSAValue) -> SSAValue:
        """y = ⌈x⌉"""
        return self.one(elementwise.CeilOp, x)

    def round(self, x: SSAValue) -> SSAValue:
        """y = nearest integer, ties to even"""
        return self.one(elementwise.RoundOp, x)

    def trunc(self, x: SSAValue) -> SSAValue:
        """y = integer part of x"""
        return self.one(elementwise.TruncOp, x)

    def not_(self, x: SSAValue) -> SSAValue:
        """y = ~x"""
        return self.one(elementwise.NotOp, x)

    def sqrt(self, x: SSAValue) -> SSAValue:
        """y = √x"""
        return self.one(elementwise.SqrtOp, x)

    def rsqrt(self, x: SSAValue) -> SSAValue:
        """y = 1/√x"""
        return self.one(elementwise.RsqrtOp, x)

    def relu(self, x: SSAValue) -> SSAValue:
        """y = x < 0 ? 0 : x"""
        return self.one(elementwise.ReluOp, x)

    def exp(self, x: SSAValue) -> SSAValue:
        """y = eˣ"""
        return self.one(transcendental.ExpOp, x)

    def log(self, x: SSAValue) -> SSAValue:
        """y = ln x"""
        return self.one(transcendental.LogOp, x)

    def log1p(self, x: SSAValue) -> SSAValue:
        """y = ln(1 + x)"""
        return self.one(transcendental.Log1pOp, x)

    def expm1(self, x: SSAValue) -> SSAValue:
        """y = eˣ - 1"""
        return self.one(transcendental.Expm1Op, x)

    def sin(self, x: SSAValue) -> SSAValue:
        """y = sin x"""
        return self.one(transcendental.SinOp, x)

    def cos(self, x: SSAValue) -> SSAValue:
        """y = cos x"""
        return self.one(transcendental.CosOp, x)

    def tanh(self, x: SSAValue) -> SSAValue:
        """y = tanh x"""
        return self.one(transcendental.TanhOp, x)

    def erf(self, x: SSAValue) -> SSAValue:
        """y = erf x"""
        return self.one(transcendental.ErfOp, x)

    def logistic(self, x: SSAValue) -> SSAValue:
        """y = 1 / (1 + e⁻ˣ)"""
        return self.one(transcendental.LogisticOp, x)

    def conj(self, x: SSAValue) -> SSAValue:
        """Complex conjugate; x itself when real."""
        return self.one(complex_.ConjOp, x) if ir.is_complex(ir.dtype_of(x)) else x

    def real(self, x: SSAValue) -> SSAValue:
        """Real part; x itself when real."""
        return self.one(complex_.RealOp, x) if ir.is_complex(ir.dtype_of(x)) else x

    def stop_gradient(self, x: SSAValue) -> SSAValue:
        """y = x with derivative 0"""
        return self.one(elementwise.StopGradientOp, x)

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a + b"""
        return self.one(elementwise.AddOp, a, b)

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a - b"""
        return self.one(elementwise.SubOp, a, b)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a · b"""
        if self.constant_of(b) == 1 and ir.dtype_of(b) != "i1":
            return a
        if self.constant_of(a) == 1 and ir.dtype_of(a) != "i1":
            return b
        return self.one(elementwise.MulOp, a, b)

    def div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a / b (integers round toward zero)"""
        return a if self.constant_of(b) == 1 else self.one(elementwise.DivOp, a, b)

    def rem(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a - b·trunc(a / b)"""
        return self.one(elementwise.RemOp, a, b)

    def pow(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = aᵇ"""
        return self.one(elementwise.PowOp, a, b)

    def max(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = the larger, NaN where either is"""
        return self.one(elementwise.MaxOp, a, b)

    def min(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = the smaller, NaN where either is"""
        return self.one(elementwise.MinOp, a, b)

    def and_(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a & b"""
        return self.one(elementwise.AndOp, a, b)

    def or_(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a | b"""
        return self.one(elementwise.OrOp, a, b)

    def xor(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a ^ b"""
        return self.one(elementwise.XorOp, a, b)

    def cmp(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a ⋄ b with ⋄ one of eq ne lt le gt ge"""
        return self.one(elementwise.CmpOp, a, b, predicate=predicate)

    def select(self, p: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = p ? a : b"""
        return self.one(elementwise.SelectOp, p, a, b)

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """y = a·b + c, rounded once"""
        return self.one(elementwise.FmaOp, a, b, c)

    def convert(self, x: SSAValue, dtype: str) -> SSAValue:
        """y = x in the dtype; x itself when it has it"""
        if ir.dtype_of(x) == dtype:
            return x
        value = self.constant_of(x)
        if value is not None and not isinstance(value, complex) and _exact(value, dtype):
            return self.op(shape.ConstOp, (), {"value": python_number(value, dtype)}, (ir.like(x.type, dtype),)).y
        return self.op(elementwise.ConvertOp, (x,), None, (ir.like(x.type, dtype),)).y

    # ---- scalars met by tensors: the number becomes a constant of the tensor's dtype

    def scaled(self, x: SSAValue, factor: LiteralValue) -> SSAValue:
        """y = x · factor"""
        return self.mul(x, self.const_like(factor, x))

    def shifted(self, x: SSAValue, offset: LiteralValue) -> SSAValue:
        """y = x + offset"""
        return self.add(x, self.const_like(offset, x))

    def square(self, x: SSAValue) -> SSAValue:
        """y = x²"""
        return self.mul(x, x)

    def reciprocal(self, x: SSAValue) -> SSAValue:
        """y = 1 / x"""
        return self.div(self.const_like(1, x), x)

    def is_nan(self, x: SSAValue) -> SSAValue:
        """y = x is NaN"""
        return self.cmp("ne", x, x)


def _exact(value: LiteralValue, dtype: str) -> bool:
    """Tell whether a real constant survives the conversion unchanged, so that folding keeps every bit."""
    if isinstance(value, int):
        limit = {"f64": 2**53, "f32": 2**24, "bf16": 2**8, "f16": 2**11, "i1": 1, "u8": 255, "i8": 127, "i16": 32767}
        return abs(value) <= limit.get(dtype, 2**31 - 1) and (value >= 0 or dtype not in ("i1", "u8"))
    if isinstance(value, float):
        whole = math.isfinite(value) and value.is_integer() and abs(value) <= 2**8 and math.copysign(1, value) > 0
        return whole and (ir.is_float(dtype) or dtype in ("i64", "i32", "i16") or value in (0.0, 1.0))
    return False
