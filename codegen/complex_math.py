"""Elementwise primitives on complex numbers, as pairs of registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from xdsl.ir import Operation

from isthmus.codegen.dtypes import Complex, Operand
from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math import BINARY, UNARY, Math
from isthmus.dialects import prim
from isthmus.ir import Literal

ComplexRule = Callable[[Math, Operation, tuple[Operand, ...]], Operand]
Function = Callable[[Math, Complex], Operand]


def _pair(rule: Callable[[Math, Complex, Complex], Operand]) -> ComplexRule:
    return lambda m, op, x: rule(m, cast(Complex, x[0]), cast(Complex, x[1]))


def _one(rule: Function) -> ComplexRule:
    return lambda m, op, x: rule(m, cast(Complex, x[0]))


def _add(m: Math, a: Complex, b: Complex) -> Complex:
    return Complex(a.real + b.real, a.imaginary + b.imaginary)


def _sub(m: Math, a: Complex, b: Complex) -> Complex:
    return Complex(a.real - b.real, a.imaginary - b.imaginary)


def multiply(m: Math, a: Complex, b: Complex) -> Complex:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i"""
    real = a.real * b.real - a.imaginary * b.imaginary
    return Complex(real, a.real * b.imaginary + a.imaginary * b.real)


def divide(m: Math, a: Complex, b: Complex) -> Complex:
    """a·conj(b)/|b|², both scaled by the larger part of b so that nothing overflows early."""
    f = m.f
    size, other = m.fabs(b.real), m.fabs(b.imaginary)
    scale = f.select(f.compare("ogt", size, other), size, other)
    c, d = b.real / scale, b.imaginary / scale
    whole = (c * c + d * d) * scale
    real = a.real * c + a.imaginary * d
    imaginary = a.imaginary * c - a.real * d
    return Complex(real / whole, imaginary / whole)


def absolute(m: Math, x: Complex) -> Value:
    """√(a² + b²), scaled by a power of two near the larger part."""
    f = m.f
    a, b = m.fabs(x.real), m.fabs(x.imaginary)
    infinite = f.compare("oeq", a, float("inf")) | f.compare("oeq", b, float("inf"))
    larger = f.select(f.compare("ogt", a, b), a, b)
    high, low = (2.0**60, 2.0**-60) if a.type.scalar == "float" else (2.0**500, 2.0**-500)
    one = m.const(1.0, a)
    factor = f.select(f.compare("olt", larger, low), m.const(high, a), one)
    factor = f.select(f.compare("ogt", larger, high), m.const(low, a), factor)
    a, b = a * factor, b * factor
    size = m.sqrt(a * a + b * b) / factor
    return f.select(infinite, float("inf"), size)


def angle(m: Math, x: Complex) -> Value:
    """The argument of x."""
    return BINARY["atan2"](m, x.imaginary, x.real)


def exp(m: Math, x: Complex) -> Complex:
    """eᵃ·(cos b + i·sin b)"""
    size = UNARY["exp"](m, x.real)
    cosine, sine = UNARY["cos"](m, x.imaginary), UNARY["sin"](m, x.imaginary)
    zero = m.f.compare("oeq", x.imaginary, 0.0)
    return Complex(size * cosine, m.f.select(zero, x.imaginary, size * sine))


def log(m: Math, x: Complex) -> Complex:
    """ln |x| + i·arg x"""
    return Complex(UNARY["log"](m, absolute(m, x)), angle(m, x))


def sqrt(m: Math, x: Complex) -> Complex:
    """√x with the branch cut on the negative real axis."""
    f = m.f
    size = absolute(m, x)
    s = m.sqrt((size + m.fabs(x.real)) * 0.5)
    zero = f.compare("oeq", s, 0.0)
    t = f.select(zero, 0.0, m.fabs(x.imaginary) / (s + s))
    right = f.compare("oge", x.real, 0.0)
    return Complex(f.select(right, s, t), m.copysign(f.select(right, t, s), x.imaginary))


def _times_i(x: Complex) -> Complex:
    return Complex(-x.imaginary, x.real)


def _times_minus_i(x: Complex) -> Complex:
    return Complex(x.imaginary, -x.real)


def sinh(m: Math, x: Complex) -> Complex:
    """sinh a·cos b + i·cosh a·sin b"""
    return Complex(
        UNARY["sinh"](m, x.real) * UNARY["cos"](m, x.imaginary),
        UNARY["cosh"](m, x.real) * UNARY["sin"](m, x.imaginary),
    )


def cosh(m: Math, x: Complex) -> Complex:
    """cosh a·cos b + i·sinh a·sin b"""
    return Complex(
        UNARY["cosh"](m, x.real) * UNARY["cos"](m, x.imaginary),
        UNARY["sinh"](m, x.real) * UNARY["sin"](m, x.imaginary),
    )


def tanh(m: Math, x: Complex) -> Complex:
    """(sinh 2a + i·sin 2b)/(cosh 2a + cos 2b), a bounded where the quotient is ±1 already."""
    bound = 20.0 if x.type.scalar == "float" else 40.0
    twice = m.at_least(m.at_most(x.real + x.real, bound), -bound)
    double = x.imaginary + x.imaginary
    whole = UNARY["cosh"](m, twice) + UNARY["cos"](m, double)
    return Complex(UNARY["sinh"](m, twice) / whole, UNARY["sin"](m, double) / whole)


def _plus(m: Math, x: Complex, real: float) -> Complex:
    return Complex(x.real + real, x.imaginary)


def asinh(m: Math, x: Complex) -> Complex:
    """ln(x + √(x² + 1)), of the half plane where nothing cancels."""
    f = m.f
    negative = m.negative_sign(x.real)
    y = Complex(f.select(negative, -x.real, x.real), f.select(negative, -x.imaginary, x.imaginary))
    z = log(m, _add(m, y, sqrt(m, _plus(m, multiply(m, y, y), 1.0))))
    return Complex(f.select(negative, -z.real, z.real), f.select(negative, -z.imaginary, z.imaginary))


def acosh(m: Math, x: Complex) -> Complex:
    """ln(x + √(x + 1)·√(x - 1))"""
    root = multiply(m, sqrt(m, _plus(m, x, 1.0)), sqrt(m, _plus(m, x, -1.0)))
    return log(m, _add(m, x, root))


def atanh(m: Math, x: Complex) -> Complex:
    """½·(ln(1 + x) - ln(1 - x))"""
    above = log(m, _plus(m, x, 1.0))
    below = log(m, Complex(1.0 - x.real, -x.imaginary))
    difference = _sub(m, above, below)
    return Complex(difference.real * 0.5, difference.imaginary * 0.5)


def acos(m: Math, x: Complex) -> Complex:
    """π/2 - asin x"""
    y = _times_minus_i(asinh(m, _times_i(x)))
    return Complex(1.5707963267948966 - y.real, -y.imaginary)


def power(m: Math, a: Complex, b: Complex) -> Complex:
    """exp(b·ln a); 1 for b = 0, and 0 for a = 0 otherwise"""
    f = m.f
    value = exp(m, multiply(m, b, log(m, a)))
    base_zero = f.compare("oeq", a.real, 0.0) & f.compare("oeq", a.imaginary, 0.0)
    zero = f.compare("oeq", b.real, 0.0) & f.compare("oeq", b.imaginary, 0.0)
    real = f.select(zero, 1.0, f.select(base_zero, 0.0, value.real))
    return Complex(real, f.select(zero | base_zero, 0.0, value.imaginary))


def _reciprocal(m: Math, x: Complex) -> Complex:
    return divide(m, Complex(m.const(1.0, x.real), m.const(0.0, x.real)), x)


def _logistic(m: Math, x: Complex) -> Complex:
    return _reciprocal(m, _plus(m, exp(m, Complex(-x.real, -x.imaginary)), 1.0))


def _cmp(m: Math, op: Operation, x: tuple[Operand, ...]) -> Value:
    a, b = cast(tuple[Complex, Complex], x)
    equal = m.f.compare("oeq", a.real, b.real) & m.f.compare("oeq", a.imaginary, b.imaginary)
    return equal if cast(Literal, op.properties["predicate"]).data == "eq" else ~equal


def _select(m: Math, op: Operation, x: tuple[Operand, ...]) -> Complex:
    p, a, b = cast(tuple[Value, Complex, Complex], x)
    return Complex(m.f.select(p, a.real, b.real), m.f.select(p, a.imaginary, b.imaginary))


def _turned(function: Function) -> ComplexRule:
    """f(x) = -i·g(i·x): sin from sinh, tan from tanh, asin from asinh, atan from atanh."""

    def rule(m: Math, op: Operation, x: tuple[Operand, ...]) -> Operand:
        return _times_minus_i(cast(Complex, function(m, _times_i(cast(Complex, x[0])))))

    return rule


COMPLEX_RULES: dict[type[Operation], ComplexRule] = {
    prim.AddOp: _pair(_add),
    prim.SubOp: _pair(_sub),
    prim.MulOp: _pair(multiply),
    prim.DivOp: _pair(divide),
    prim.PowOp: _pair(power),
    prim.NegOp: _one(lambda m, x: Complex(-x.real, -x.imaginary)),
    prim.ConjOp: _one(lambda m, x: Complex(x.real, -x.imaginary)),
    prim.RealOp: _one(lambda m, x: x.real),
    prim.ImagOp: _one(lambda m, x: x.imaginary),
    prim.ComplexOp: lambda m, op, x: Complex(cast(Value, x[0]), cast(Value, x[1])),
    prim.AbsOp: _one(absolute),
    prim.SqrtOp: _one(sqrt),
    prim.RsqrtOp: _one(lambda m, x: _reciprocal(m, sqrt(m, x))),
    prim.ExpOp: _one(exp),
    prim.LogOp: _one(log),
    prim.LogisticOp: _one(_logistic),
    prim.SinhOp: _one(sinh),
    prim.CoshOp: _one(cosh),
    prim.TanhOp: _one(tanh),
    prim.AsinhOp: _one(asinh),
    prim.AcoshOp: _one(acosh),
    prim.AtanhOp: _one(atanh),
    prim.SinOp: _turned(sinh),
    prim.CosOp: _one(lambda m, x: cosh(m, _times_i(x))),
    prim.TanOp: _turned(tanh),
    prim.AsinOp: _turned(asinh),
    prim.AcosOp: _one(acos),
    prim.AtanOp: _turned(atanh),
    prim.StopGradientOp: _one(lambda m, x: x),
    prim.CmpOp: _cmp,
    prim.SelectOp: _select,
}
"""Rules of ops with a complex operand or result."""
