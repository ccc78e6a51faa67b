"""Rounding to integers, remainders and neighbours."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import Math
from isthmus.codegen.vector_math.long_division import fmod


def floor(m: Math, x: Value) -> Value:
    """Give the largest integer <= x."""
    return m.f.intrinsic("floor", x)


def ceil(m: Math, x: Value) -> Value:
    """Give the smallest integer >= x."""
    return m.f.intrinsic("ceil", x)


def round_even(m: Math, x: Value) -> Value:
    """Give the nearest integer, ties to even."""
    return m.f.intrinsic("rint" if not m.has_rounding else "roundeven", x)


def trunc(m: Math, x: Value) -> Value:
    """Give the integer part."""
    return m.f.intrinsic("trunc", x)


def sqrt(m: Math, x: Value) -> Value:
    """Give √x."""
    return m.sqrt(x)


def rsqrt(m: Math, x: Value) -> Value:
    """Give 1/√x by a correctly rounded root and division."""
    return 1.0 / m.sqrt(x)


def remainder(m: Math, a: Value, b: Value) -> Value:
    """Give a - b·trunc(a/b), exact, with the sign of a (C's fmod)."""
    return m.f.binary("frem", a, b) if m.has_libm else fmod(m, a, b)


def copysign(m: Math, a: Value, b: Value) -> Value:
    """Give |a| with the sign bit of b."""
    return m.copysign(a, b)


def nextafter(m: Math, a: Value, b: Value, unit: int = 1) -> Value:
    """Give the number after a in the direction of b: a step of `unit` in the bits."""
    f = m.f
    bits = m.bits(a)
    away = f.compare("olt", a, b) ^ f.compare("slt", bits, 0)
    step = f.select(away, f.const(unit, bits.type), f.const(-unit, bits.type))
    stepped = m.from_bits(bits + step, a)
    smallest = m.from_bits(f.const(unit, bits.type), a)
    stepped = f.select(f.compare("oeq", a, 0.0), m.copysign(smallest, b), stepped)
    result = f.select(f.compare("oeq", a, b), b, stepped)
    return f.select(f.compare("uno", a, b), a + b, result)
