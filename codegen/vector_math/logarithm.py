"""Logarithms: x = 2ᵉ·(1 + f) with 1 + f in [2/3, 4/3), so that nothing cancels near x = 1."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import (
    BIAS,
    INFINITY,
    MANTISSA,
    NAN,
    SMALLEST_NORMAL,
    Math,
    in_double,
)
from isthmus.codegen.vector_math.exponential import LN2_HIGH, LN2_LOW

# ln(1 + f) = f - f²/2 + f³·P(f) for f32, relative error 2^-30
LOG_F32 = (
    0.3333333432674408,
    -0.24999810755252838,
    0.1999976485967636,
    -0.166800856590271,
    0.14298953115940094,
    -0.121879443526268,
    0.1082199439406395,
    -0.12881188094615936,
    0.11730189621448517,
)
# 2·artanh(s)/s - 2 = s²·P(s²) for f64, s = f/(2 + f), error 2^-63; fitted by fit_polynomials.py
LOG_F64 = (
    0.666666666666666,
    0.4000000000005674,
    0.28571428555805645,
    0.2222222429949524,
    0.18181665676951042,
    0.15391118832043238,
    0.13173478615649406,
    0.1384388312399005,
)
TWO_THIRDS = {"float": 0x3F2AAAAB, "double": 0x3FE5555555555555}
"""The bits of 2/3."""
LOG2_E = {
    "float": (1.4426950216293335, 1.925963033500011e-08),
    "double": (1.4426950408889634, 2.0355273740931033e-17),
}
"""log₂ e as a sum of two numbers of the format."""
LOG10_E = {
    "float": (0.4342944920063019, -1.0103049952192578e-08),
    "double": (0.4342944819032518, 1.098319650216765e-17),
}
LOG10_2 = {
    "float": (0.301025390625, 4.605039066518657e-06),
    "double": (3.01029995663611771306e-01, 3.69423907715893078616e-13),
}
"""log₁₀ 2 in two parts whose first has few enough bits for exact multiples."""
HUGE = {"float": 2.0**60, "double": 2.0**100}


def log(m: Math, x: Value) -> Value:
    """Give ln x."""
    e, _, f = decompose(m, x)
    return _specials(m, x, _assemble(m, e, f))


def log1p(m: Math, x: Value) -> Value:
    """Give ln(1 + x): the rounding error of 1 + x, scaled like the mantissa, joins f."""
    scalar = x.type.scalar
    u, c = m.two_sum(m.const(1.0, x), x)
    e, exponent, f = decompose(m, u, normal=True)
    one = BIAS[scalar] << MANTISSA[scalar]
    factor = m.from_bits(m.f.const(one, exponent.type) - exponent, x)
    factor = m.f.select(m.f.compare("ogt", x, HUGE[scalar]), 0.0, factor)
    result = _specials(m, u, _assemble(m, e, m.mla(c, factor, f)))
    return m.f.select(m.f.compare("oeq", x, 0.0), x, result)


def log2(m: Math, x: Value) -> Value:
    """Give log₂ x = e + log₂(1 + f)."""
    e, _, f = decompose(m, x)
    high, low = _scaled_log(m, f, LOG2_E[x.type.scalar])
    total, error = m.fast_two_sum(e, high)
    return _specials(m, x, total + (error + low))


def log10(m: Math, x: Value) -> Value:
    """Give log₁₀ x = e·log₁₀ 2 + log₁₀(1 + f)."""
    e, _, f = decompose(m, x)
    high, low = _scaled_log(m, f, LOG10_E[x.type.scalar])
    two_high, two_low = LOG10_2[x.type.scalar]
    total, error = m.fast_two_sum(e * two_high, high)
    return _specials(m, x, total + (m.mla(e, two_low, low) + error))


def decompose(m: Math, x: Value, *, normal: bool = False) -> tuple[Value, Value, Value]:
    """Give e as a float, e in the place of the exponent bits, and f; `normal`: x is no denormal."""
    scalar = x.type.scalar
    f, mantissa = m.f, MANTISSA[scalar]
    correction: Value | None = None
    if not normal:
        tiny = f.compare("olt", x, SMALLEST_NORMAL[scalar])
        lifted = mantissa + 2
        x = f.select(tiny, x * 2.0**lifted, x)
        correction = f.select(tiny, m.const(-lifted, x), m.const(0.0, x))
    bits = m.bits(x)
    exponent = (bits - TWO_THIRDS[scalar]) & -(1 << mantissa)
    reduced = m.from_bits(bits - exponent, x) - 1.0
    e = _as_float(m, exponent, x)
    return (e if correction is None else e + correction), exponent, reduced


def _as_float(m: Math, exponent: Value, like: Value) -> Value:
    """Give the integer in the exponent field as a float, without a 64-bit conversion."""
    if like.type.scalar == "float":
        return m.f.cast("sitofp", exponent >> 23, like.type)
    # Biased by 2048 it has no sign, and or-ing it into 2^52 makes the double 2^52 + e + 2048.
    biased = m.lshr(exponent ^ -(1 << 63), 52)
    return m.from_bits(biased | 0x4330000000000000, like) - (2.0**52 + 2048.0)


def _assemble(m: Math, e: Value, f: Value) -> Value:
    """Give e·ln 2 + ln(1 + f)."""
    scalar = f.type.scalar
    low = m.mla(e, LN2_LOW[scalar], _tail(m, f))
    return m.mla(e, LN2_HIGH[scalar], f + low) if scalar == "float" else e * LN2_HIGH[scalar] + (f + low)


def _tail(m: Math, f: Value) -> Value:
    """Give ln(1 + f) - f."""
    square = f * f
    if f.type.scalar == "float":
        return square * m.mla(f, m.polynomial(f, LOG_F32), -0.5)
    # ln(1 + f) = 2 artanh(s) with s = f/(2 + f), written f - (h - s·(h + R)), h = f²/2 (fdlibm)
    half = square * 0.5
    s = f / (f + 2.0)
    z = s * s
    return m.mla(s, m.mla(z, m.polynomial(z, LOG_F64), half), -half)


def _scaled_log(m: Math, f: Value, factor: tuple[float, float]) -> tuple[Value, Value]:
    """Give factor·ln(1 + f) as a sum of two numbers."""
    high, low = factor
    product, error = m.two_product(f, m.const(high, f))
    return product, m.mla(_tail(m, f), high, m.mla(f, low, error))


def _specials(m: Math, x: Value, result: Value) -> Value:
    """Put in ln 0 = -∞, ln ∞ = ∞, and NaN below 0."""
    f = m.f
    result = f.select(f.compare("oeq", x, INFINITY), x, result)
    outside = f.select(f.compare("oeq", x, 0.0), m.const(-INFINITY, x), m.const(NAN, x))
    return f.select(f.compare("ogt", x, 0.0), result, outside)


@in_double
def asinh(m: Math, x: Value) -> Value:
    """Give ±ln(1 + a + a²/(1 + √(a² + 1))), a = |x|; ln a + ln 2 for huge a."""
    a = m.fabs(x)
    huge = m.f.compare("ogt", a, 2.0**60)
    square = a * a
    small = a + square / (m.sqrt(square + 1.0) + 1.0)
    value = log1p(m, m.f.select(huge, a, small))
    return m.copysign(value + _ln2_where(m, huge, x), x)


@in_double
def acosh(m: Math, x: Value) -> Value:
    """Give ln(1 + t + √(t·(t + 2))), t = x - 1; ln x + ln 2 for huge x."""
    huge = m.f.compare("ogt", x, 2.0**60)
    t = x - 1.0
    value = log1p(m, m.f.select(huge, x, t + m.sqrt(t * (t + 2.0))))
    value = value + _ln2_where(m, huge, x)
    return m.f.select(m.f.compare("olt", x, 1.0), NAN, value)


@in_double
def atanh(m: Math, x: Value) -> Value:
    """Give ±½·ln(1 + 2a + 2a²/(1 - a)), a = |x|."""
    a = m.fabs(x)
    twice = a + a
    inside = m.copysign(log1p(m, twice + twice * a / (1.0 - a)) * 0.5, x)
    return m.f.select(m.f.compare("ogt", a, 1.0), NAN, inside)


def _ln2_where(m: Math, condition: Value, like: Value) -> Value:
    return m.f.select(condition, m.const(0.6931471805599453, like), m.const(0.0, like))
