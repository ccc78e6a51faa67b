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


def _wide(m: Math, x: Complex) -> Complex:
    return Complex(m.widen(x.real), m.widen(x.imaginary)) if x.type.scalar == "float" else x


def _narrow(m: Math, y: Operand, like: Complex) -> Operand:
    if like.type.scalar != "float":
        return y
    if isinstance(y, Complex):
        return Complex(m.narrow(y.real), m.narrow(y.imaginary))
    return m.narrow(y)


def _in_double(rule: Callable[..., Operand]) -> ComplexRule:
    """Evaluate complex64 in complex128: these lose digits where parts cancel."""

    def widened(m: Math, op: Operation, x: tuple[Operand, ...]) -> Operand:
        numbers = [cast(Complex, v) for v in x]
        return _narrow(m, rule(m, *(_wide(m, v) for v in numbers)), numbers[0])

    return widened


def _add(m: Math, a: Complex, b: Complex) -> Complex:
    return Complex(a.real + b.real, a.imaginary + b.imaginary)


def _sub(m: Math, a: Complex, b: Complex) -> Complex:
    return Complex(a.real - b.real, a.imaginary - b.imaginary)


def multiply(m: Math, a: Complex, b: Complex) -> Complex:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i"""
    real = a.real * b.real - a.imaginary * b.imaginary
    return Complex(real, a.real * b.imaginary + a.imaginary * b.real)


def divide(m: Math, a: Complex, b: Complex) -> Complex:
    """Smith's quotient: divide by the larger part of b; by zero, each part on its own, as eager."""
    f = m.f
    first = f.compare("oge", m.fabs(b.real), m.fabs(b.imaginary))
    p, q = f.select(first, b.real, b.imaginary), f.select(first, b.imaginary, b.real)
    ratio = q / p
    scale = 1.0 / (p + q * ratio)
    x, y = f.select(first, a.real, a.imaginary), f.select(first, a.imaginary, a.real)
    real, imaginary = (x + y * ratio) * scale, (y - x * ratio) * scale
    zero = f.compare("oeq", b.real, 0.0) & f.compare("oeq", b.imaginary, 0.0)
    by_zero = Complex(a.real / m.fabs(b.real), a.imaginary / m.fabs(b.imaginary))
    imaginary = f.select(first, imaginary, -imaginary)
    return Complex(f.select(zero, by_zero.real, real), f.select(zero, by_zero.imaginary, imaginary))


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
    """ln |x| + i·arg x; near the unit circle ½·ln(1 + (a - 1)(a + 1) + b²), a the larger part"""
    f = m.f
    a, b = m.fabs(x.real), m.fabs(x.imaginary)
    swap = f.compare("olt", a, b)
    a, b = f.select(swap, b, a), f.select(swap, a, b)
    near = f.compare("ogt", a, 0.5) & f.compare("olt", a, 2.0)
    inner = f.select(near, (a - 1.0) * (a + 1.0) + b * b, 0.0)
    size = f.select(near, UNARY["log1p"](m, inner) * 0.5, UNARY["log"](m, absolute(m, x)))
    return Complex(size, angle(m, x))


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
    """±¼·ln(1 + 4a/((1 - a)² + b²)) + ½i·atan2(2b, (1 - a)(1 + a) - b²), a = |real part|"""
    f, b = m.f, x.imaginary
    a = m.fabs(x.real)
    rest, square = 1.0 - a, b * b
    real = UNARY["log1p"](m, a * 4.0 / (rest * rest + square)) * 0.25
    turn = BINARY["atan2"](m, b + b, rest * (a + 1.0) - square) * 0.5
    # On the cut beyond 1 the imaginary part has the sign that 1 - x takes there.
    cut = f.compare("oeq", b, 0.0) & f.compare("ogt", x.real, 1.0)
    return Complex(m.copysign(real, x.real), f.select(cut, m.copysign(turn, b), turn))


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

    def rule(m: Math, x: Complex) -> Operand:
        return _times_minus_i(cast(Complex, function(m, _times_i(x))))

    return _in_double(rule)


COMPLEX_RULES: dict[type[Operation], ComplexRule] = {
    prim.AddOp: _pair(_add),
    prim.SubOp: _pair(_sub),
    prim.MulOp: _pair(multiply),
    prim.DivOp: _pair(divide),
    prim.PowOp: _in_double(power),
    prim.NegOp: _one(lambda m, x: Complex(-x.real, -x.imaginary)),
    prim.ConjOp: _one(lambda m, x: Complex(x.real, -x.imaginary)),
    prim.RealOp: _one(lambda m, x: x.real),
    prim.ImagOp: _one(lambda m, x: x.imaginary),
    prim.ComplexOp: lambda m, op, x: Complex(cast(Value, x[0]), cast(Value, x[1])),
    prim.AbsOp: _in_double(absolute),
    prim.SqrtOp: _in_double(sqrt),
    prim.RsqrtOp: _in_double(lambda m, x: _reciprocal(m, sqrt(m, x))),
    prim.ExpOp: _in_double(exp),
    prim.LogOp: _in_double(log),
    prim.LogisticOp: _in_double(_logistic),
    prim.SinhOp: _in_double(sinh),
    prim.CoshOp: _in_double(cosh),
    prim.TanhOp: _in_double(tanh),
    prim.AsinhOp: _in_double(asinh),
    prim.AcoshOp: _in_double(acosh),
    prim.AtanhOp: _in_double(atanh),
    prim.SinOp: _turned(sinh),
    prim.CosOp: _in_double(lambda m, x: cosh(m, _times_i(x))),
    prim.TanOp: _turned(tanh),
    prim.AsinOp: _turned(asinh),
    prim.AcosOp: _in_double(acos),
    prim.AtanOp: _turned(atanh),
    prim.StopGradientOp: _one(lambda m, x: x),
    prim.CmpOp: _cmp,
    prim.SelectOp: _select,
}
"""Rules of ops with a complex operand or result."""
