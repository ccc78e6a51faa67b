"""Exponentials: x = j·ln 2 + f with |f| <= ln 2 / 2, a polynomial in f, and 2ʲ by bits."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I32, Type, Value
from isthmus.codegen.vector_math import special_unit
from isthmus.codegen.vector_math.core import (
    BIAS,
    MANTISSA,
    ROUNDING,
    Coefficients,
    Math,
    in_double,
)

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
# ln 2 in two parts: j·high is exact for every j that occurs (the split of fdlibm and Cephes).
LN2_HIGH = {"float": 0.693359375, "double": 6.93147180369123816490e-01}
LN2_LOW = {"float": -2.12194440e-4, "double": 1.90821492927058770002e-10}

# e^f = 1 + f + f²·P(f), relative error 2^-28 and 2^-63; fitted by benchmarks/fit_polynomials.py
EXP: Coefficients = {
    "float": (
        0.4999999403953552,
        0.16666516661643982,
        0.04166810214519501,
        0.008369207382202148,
        0.0013839384773746133,
    ),
    "double": (
        0.5,
        0.16666666666666688,
        0.041666666666666824,
        0.00833333333331389,
        0.001388888888877776,
        0.000198412699033879,
        2.480158755997095e-05,
        2.7557228653069833e-06,
        2.7557066876936713e-07,
        2.5113949320815852e-08,
        2.097812695892682e-09,
    ),
}
# The same with the error relative to e^f - 1: 2^-31 and 2^-55
EXPM1: Coefficients = {
    "float": (
        0.5,
        0.1666666567325592,
        0.04166646674275398,
        0.008333642967045307,
        0.0013935047900304198,
        0.00019664572027977556,
    ),
    "double": (
        0.5000000000000001,
        0.1666666666666667,
        0.041666666666648505,
        0.008333333333328375,
        0.0013888888897414645,
        0.00019841269866979766,
        2.4801571425391876e-05,
        2.7557262883711506e-06,
        2.756978504513914e-07,
        2.5102554072266386e-08,
        1.7421359059534094e-09,
    ),
}
# e^(-2f), by the coefficients of e^f
EXP_DOWN = tuple(c * (-2.0) ** k for k, c in enumerate((1.0, 1.0, *EXP["float"])))
# tanh x = x + x³·P(x²) for |x| < NEAR_TANH, relative error 2^-24.7
NEAR_TANH = 0.55
TANH = (-0.333329439163208, 0.1332065761089325, -0.05266725644469261, 0.01642856001853943)
# 2^f = 1 + f·P(f), relative error 2^-27 and 2^-59
EXP2: Coefficients = {
    "float": (
        0.6931471824645996,
        0.24022650718688965,
        0.05550377815961838,
        0.009618476033210754,
        0.0013383999466896057,
        0.0001527704589534551,
    ),
    "double": (
        0.6931471805599453,
        0.2402265069591007,
        0.05550410866482345,
        0.009618129107630305,
        0.0013333558146002883,
        0.00015403530388419234,
        1.5252734201756126e-05,
        1.321549188292024e-06,
        1.0177916496579208e-07,
        7.052732498799915e-09,
        4.4758241837493637e-10,
        2.8984942079766444e-11,
    ),
}
# Beyond these e^x is infinite or 0; 2^x by the exponents themselves.
HIGHEST = {"float": 89.0, "double": 710.0}
LOWEST = {"float": -104.0, "double": -746.0}
HIGHEST2 = {"float": 128.5, "double": 1024.5}
LOWEST2 = {"float": -151.0, "double": -1076.0}
# Below these e^x - 1 rounds to -1.
LOWEST_EXPM1 = {"float": -18.0, "double": -40.0}
LOWERED = {"float": 64, "double": 512}
"""2^(j + this) is a normal number for all j <= 0 that occur."""
# What `split` adds to j, so that its bits are an exponent's: that of 2^(j + LOWERED), and those of two factors of 2ʲ
DOWN = {scalar: BIAS[scalar] + LOWERED[scalar] for scalar in BIAS}
TWICE = {scalar: 2 * BIAS[scalar] for scalar in BIAS}
TINY = {"float": 2.0**-60, "double": 2.0**-500}


def exp(m: Math, x: Value) -> Value:
    """Give eˣ."""
    if special_unit.has_unit(m, x):
        return special_unit.exp(m, x)
    return scaled_exp(m, clamped(m, x), 0)


def half_exp(m: Math, x: Value) -> Value:
    """Give eˣ / 2 for x >= 0, finite wherever the result is."""
    return scaled_exp(m, m.at_most(x, HIGHEST[x.type.scalar] + 1.0), -1)


def clamped(m: Math, x: Value) -> Value:
    """Bound x to where eˣ is neither infinite nor 0 beyond doubt."""
    return m.at_least(m.at_most(x, HIGHEST[x.type.scalar]), LOWEST[x.type.scalar])


def scaled_exp(m: Math, x: Value, shift: int) -> Value:
    """Give eˣ·2^shift for a clamped x."""
    t, f = split(m, x, TWICE[x.type.scalar] + shift)
    return scale(m, reduced_exp(m, f), t)


def bounded_exp(m: Math, x: Value) -> Value:
    """Give eˣ where |x| < 80: one factor scales."""
    if special_unit.has_unit(m, x):
        return special_unit.bounded_exp(m, x)
    t, f = split(m, x, BIAS[x.type.scalar])
    return reduced_exp(m, f) * power_of_two(m, t)


def split(m: Math, x: Value, above: int) -> tuple[Value, Value]:
    """Give a number whose low bits are j + above, and f = x - j·ln 2."""
    scalar = x.type.scalar
    t = m.mla(x, LOG2_E, ROUNDING[scalar] + above)
    j = t - (ROUNDING[scalar] + above)
    f = m.mla(j, -LN2_HIGH[scalar], x)
    return t, m.mla(j, -LN2_LOW[scalar], f)


def split_exactly(m: Math, x: Value, above: int) -> tuple[Value, Value, Value]:
    """Give a number whose low bits are j + above, and x - j·ln 2 as a sum: the first exact, the other tiny."""
    scalar = x.type.scalar
    t = m.mla(x, LOG2_E, ROUNDING[scalar] + above)
    j = t - (ROUNDING[scalar] + above)
    return t, m.mla(j, -LN2_HIGH[scalar], x), j * -LN2_LOW[scalar]


def reduced_exp(m: Math, f: Value) -> Value:
    """Give e^f for |f| <= ln 2 / 2: 1 + f·(1 + f·P(f))."""
    p = m.polynomial(f, EXP[f.type.scalar])
    return m.mla(m.mla(p, f, 1.0), f, 1.0)


def scale(m: Math, r: Value, t: Value) -> Value:
    """Give r·2ʲ, j + TWICE in the low bits of t, with one rounding: denormals, ∞ and NaN included."""
    scalar = r.type.scalar
    if m.scales(r):
        return _scalef(m, r, t - (ROUNDING[scalar] + TWICE[scalar]))
    bits = m.bits(t)
    half = m.lshr(bits, 1)  # of the constant in t it leaves nothing where an exponent's bits are
    first, second = half << MANTISSA[scalar], (bits - half) << MANTISSA[scalar]
    return r * m.from_bits(first, t) * m.from_bits(second, t)


def power_of_two(m: Math, t: Value) -> Value:
    """Give 2ʲ, j + BIAS in the low bits of t, where that is a normal number."""
    return m.from_bits(m.bits(t) << MANTISSA[t.type.scalar], t)


def scale_down(m: Math, value: Value, t: Value) -> Value:
    """Give value·2ʲ, j <= 0 and j + DOWN in the low bits of t, with one rounding; value·2^LOWERED is finite."""
    scalar = value.type.scalar
    if m.scales(value):
        return _scalef(m, value, t - (ROUNDING[scalar] + DOWN[scalar]))
    return value * power_of_two(m, t) * 2.0 ** -LOWERED[scalar]


def _scalef(m: Math, r: Value, j: Value) -> Value:
    kind, mask = ("ps", "i16") if r.type.scalar == "float" else ("pd", "i8")
    name = f"llvm.x86.avx512.mask.scalef.{kind}.512"
    m.f.module.declare(name, r.type, [r.type, r.type, r.type, Type.of(mask), I32])
    source = m.f.poison(r.type)
    text = f"call {r.type.text} @{name}({r!r}, {j!r}, {source!r}, {mask} -1, i32 4)"
    return m.f.emit(text, r.type)


def exp2(m: Math, x: Value) -> Value:
    """Give 2ˣ."""
    if special_unit.has_unit(m, x):
        return special_unit.exp2(m, x)
    scalar = x.type.scalar
    x = m.at_least(m.at_most(x, HIGHEST2[scalar]), LOWEST2[scalar])
    t = x + (ROUNDING[scalar] + TWICE[scalar])
    f = x - (t - (ROUNDING[scalar] + TWICE[scalar]))
    r = m.mla(f, m.polynomial(f, EXP2[scalar]), 1.0)
    return scale(m, r, t)


def expm1(m: Math, x: Value) -> Value:
    """Give eˣ - 1 = 2·(s·(e^f - 1) + (s - ½)) with s = 2^(j-1), which does not overflow."""
    scalar = x.type.scalar
    bounded = m.at_least(m.at_most(x, HIGHEST[scalar]), LOWEST_EXPM1[scalar])
    s, f, rest = _parts_of_expm1(m, bounded, -1)
    r = m.mla(s, rest, m.mla(s, f, s - 0.5))
    # Near 0 the result is x: keeps -0.0 and every bit of a denormal.
    return m.f.select(m.f.compare("olt", m.fabs(x), TINY[scalar]), x, r + r)


def bounded_expm1(m: Math, x: Value) -> Value:
    """Give eˣ - 1 = s·(e^f - 1) + (s - 1) with s = 2ʲ where 0 <= x < 80; exact for denormals."""
    s, f, rest = _parts_of_expm1(m, x, 0)
    return m.mla(s, rest, m.mla(s, f, s - 1.0))


def _parts_of_expm1(m: Math, x: Value, shift: int) -> tuple[Value, Value, Value]:
    """Give 2^(j + shift), f exactly, and e^(f + g) - 1 - f = g + (f + g)²·P(f + g) with x = j·ln 2 + f + g."""
    t, f, g = split_exactly(m, x, BIAS[x.type.scalar] + shift)
    whole = f + g
    return power_of_two(m, t), f, m.mla(whole * whole, m.polynomial(whole, EXPM1[x.type.scalar]), g)


def logistic(m: Math, x: Value) -> Value:
    """Give 1/(1 + e⁻ˣ), as e⁻ᵃ/(1 + e⁻ᵃ) with a = |x| for negative x: tiny results survive."""
    if special_unit.has_unit(m, x):
        return special_unit.logistic(m, x)
    scalar = x.type.scalar
    t, f = split(m, m.at_least(-m.fabs(x), LOWEST[scalar]), DOWN[scalar])
    e = scale_down(m, reduced_exp(m, f), t)
    d, low = m.fast_two_sum(m.const(1.0, x), e)
    q = m.f.select(m.negative_sign(x), e, 1.0) / d
    return m.mla(-q, low, q)  # low/d hardly differs from low where it matters, next to d = 1


def tanh(m: Math, x: Value) -> Value:
    """Give tanh x, 1 to the last bit beyond 10 and 20."""
    if special_unit.has_unit(m, x):
        return special_unit.tanh(m, x)
    return (_tanh_f32 if x.type.scalar == "float" else _tanh_f64)(m, x)


def _tanh_f32(m: Math, x: Value) -> Value:
    """Give 1 - 2e/(1 + e) with e = e^(-2|x|), near 0 x + x³·P(x²)."""
    size = m.fabs(x)
    square, bounded = size * size, m.at_most(size, 10.0)
    rounding = ROUNDING["float"] + BIAS["float"]
    t = m.mla(bounded, -2.0 * LOG2_E, rounding)
    f = m.mla(t - rounding, LN_2 / 2, bounded)  # exact enough: of far numbers little is left of e
    e = m.horner(f, EXP_DOWN) * power_of_two(m, t)
    far = m.mla(e / (e + 1.0), -2.0, 1.0)
    near = m.mla(size * square, m.horner(square, TANH), size)
    return m.copysign(m.f.select(m.f.compare("olt", size, NEAR_TANH), near, far), x)


def _tanh_f64(m: Math, x: Value) -> Value:
    """Give p/(1 + p) with p = (e^(2|x|) - 1)/2: a polynomial less than the other way, where they are long."""
    a = m.at_most(m.fabs(x), 20.0)
    s, f, rest = _parts_of_expm1(m, a + a, -1)
    p = m.mla(s, rest, m.mla(s, f, s - 0.5))
    d, low = m.fast_two_sum(m.const(1.0, x), p)
    # Beyond 1 the sum's rounding matters little, and what is left of 1 may have no digits to correct it with.
    low = m.f.select(m.f.compare("olt", p, 1.0), low, 0.0)
    return m.copysign(_corrected_quotient(m, p, d, low), x)


def _corrected_quotient(m: Math, p: Value, d: Value, low: Value) -> Value:
    """Give p/(1 + p), where 1 + p = d + low: 1/d is what the quotient leaves of 1."""
    q = p / d
    if not m.has_fma:
        return q - q * low * (1.0 - q)
    left = m.f.fma(-q, low, m.f.fma(-q, d, p))
    return m.f.fma(left, 1.0 - q, q)


@in_double
def sinh(m: Math, x: Value) -> Value:
    """Give (q + q/(q + 1))/2 with q = e^|x| - 1; e^|x|/2 from 22 on."""
    a = m.fabs(x)
    q = bounded_expm1(m, m.at_most(a, 30.0))
    near = (q + q / (q + 1.0)) * 0.5
    return m.copysign(m.f.select(m.f.compare("ogt", a, 22.0), half_exp(m, a), near), x)


@in_double
def cosh(m: Math, x: Value) -> Value:
    """Give h + 1/(4h) with h = e^|x|/2."""
    h = half_exp(m, m.fabs(x))
    return h + 0.25 / h
