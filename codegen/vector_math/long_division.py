"""The exact remainder of a division whose quotient may have thousands of digits, where there is no C library."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import INFINITY, NAN, SMALLEST_NORMAL, Math

STEP = 50
"""Binary digits of the quotient that one division finds: a quotient below 2^51 is right but for the last."""
REACH = 700
"""A power of two up to this is a number, and three of them span all exponents."""


def fmod(m: Math, a: Value, b: Value) -> Value:
    """Give a - b·trunc(a/b), with the sign of a, lane by lane: C's fmod. For f32, evaluated in f64, and f64."""
    if a.type.scalar == "float":
        return m.narrow(m.each_lane(lambda x, y: _fmod(m, x, y), m.widen(a), m.widen(b)))
    return m.each_lane(lambda x, y: _fmod(m, x, y), a, b)


def _fmod(m: Math, a: Value, b: Value) -> Value:
    f, x, y = m.f, m.fabs(a), m.fabs(b)
    invalid = ~f.compare("olt", x, INFINITY) | ~f.compare("ogt", y, 0.0)
    plain = f.compare("olt", x, y)  # a is the remainder
    divides = ~(invalid | plain)
    rest, y = f.slot(x.type), f.select(divides, y, 1.0)
    f.store(f.select(divides, x, 1.0), rest)
    exponent = _exponent(m, y)
    digits = _exponent(m, f.load(rest, x.type)) - exponent
    rounds = f.binary("udiv", digits, f.index(STEP)) + 1
    with f.loop(0, f.select(divides, rounds, 0)):
        left = f.load(rest, x.type)
        shift = f.intrinsic("smax", _exponent(m, left) - exponent - STEP, f.index(0))
        t = _scaled(m, y, shift)
        # Both are multiples of t's last place and the difference is below t: it is exact.
        after = f.fma(-f.intrinsic("trunc", left / t), t, left)
        f.store(f.select(f.compare("olt", after, 0.0), after + t, after), rest)
    result = f.select(divides, f.load(rest, x.type), x)
    return f.select(invalid, NAN, m.copysign(result, a))


def _exponent(m: Math, x: Value) -> Value:
    """Give e with 2^e <= x < 2^(e+1), of denormals too."""
    f = m.f
    tiny = f.compare("olt", x, SMALLEST_NORMAL["double"])
    field = m.lshr(m.bits(f.select(tiny, x * 2.0**54, x)), 52)
    return field - f.select(tiny, f.index(1023 + 54), f.index(1023))


def _scaled(m: Math, x: Value, shift: Value) -> Value:
    """Give x·2^shift, a number, for shift >= 0."""
    for _ in range(3):
        part = m.f.intrinsic("smin", shift, m.f.index(REACH))
        x = x * m.from_bits((part + 1023) << 52, x)
        shift = shift - part
    return x
