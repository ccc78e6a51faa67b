"""x·s(x) with s from 0 to 1, and such s: the logistic function, the normal distribution's integral and its imitation.

x·s(x) = max(x, 0) - |x|·s(-|x|) = max(x, 0) - |x|·c·e^-y with y >= 0 known to twice the precision: nothing cancels, and
the power of two comes last, so that a tiny product is rounded once.
"""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math import special_unit
from isthmus.codegen.vector_math.core import ROUNDING, Coefficients, Math
from isthmus.codegen.vector_math.exponential import (
    DOWN,
    EXP,
    EXP2,
    LOWERED,
    power_of_two,
    scale_down,
    split_exactly,
)

FARTHEST_LOGISTIC = {"float": 110.0, "double": 753.0}
"""Beyond this x·e^-x is 0."""
FARTHEST_CUBIC = {"float": 11.0, "double": 22.0}
FARTHEST = {"float": 14.75, "double": 39.0}
"""Beyond this x·Φ(-x) is 0."""
# (x + BEND)·e^(x²/2)·Φ(-x) in powers of (x - CENTRE)/(x + CENTRE), 0 <= x <= FARTHEST; error 2^-28 and 2^-57. With
# this BEND it is level at 0, and what x + BEND leaves is exact; at CENTRE it is almost a number of the format
BEND = 1.25
CENTRE = {"float": 4.328125, "double": 5.03125}
MILLS: Coefficients = {
    "float": (
        0.4902379810810089,
        -0.13549494743347168,
        0.05133279785513878,
        0.0031880484893918037,
        -0.021953539922833443,
        0.017955658957362175,
        -0.008049425669014454,
        0.001606033300049603,
        0.00043916056165471673,
        -0.00031754246447235346,
        -6.972933624638245e-05,
    ),
    "double": (
        0.48034930186896135,
        -0.12704160879279483,
        0.06034583988634448,
        -0.010771165305695364,
        -0.014048598545596449,
        0.01861793536142658,
        -0.013081645069312859,
        0.0061283163326104765,
        -0.0017508193583837166,
        8.852867891336054e-05,
        0.00016349141144323724,
        -5.8788560412802366e-05,
        -5.953394678405089e-06,
        8.98916455449757e-06,
        -6.559298999731798e-07,
        -1.21912556436003e-06,
        2.1377156810293942e-07,
        1.767179262177753e-07,
        -3.933930922429205e-08,
        -2.8039676889475324e-08,
        5.2290226916373924e-09,
        4.104241277543064e-09,
        -3.2695677062769066e-10,
        -3.3232569666081466e-10,
    ),
}
SQRT_2_PI = {
    "float": (0.3989422917366028, -1.1335170135851058e-08),
    "double": (0.3989422804014327, -2.49232720227773e-17),
}
"""1/√(2π) as a sum of two."""
# 2u·log₂ e = x·(CUBIC_1 + CUBIC_3·x²), each a sum of two; the first of CUBIC_1 ends in zeros, so that what a sum with
# it leaves is exact
CUBIC_1 = {"float": (2.3022079467773438, 2.513669699055754e-07), "double": (2.302208198144328, -2.977296208542741e-15)}
CUBIC_3 = {
    "float": (0.10294324159622192, -2.016198541454628e-09),
    "double": (0.1029432395800235, -5.978177400718744e-18),
}

Pair = tuple[Value, Value]
"""A number as a sum of two."""


def silu(m: Math, x: Value) -> Value:
    """Give x/(1 + e⁻ˣ)."""
    size = m.at_most(m.fabs(x), FARTHEST_LOGISTIC[x.type.scalar])
    if special_unit.has_unit(m, x):
        return _less(m, x, special_unit.times_logistic(m, size, -size))
    t, grown = _exp_of_sum(m, -size, None)
    return _less(m, x, _times_logistic(m, size, t, grown))


def gelu_tanh(m: Math, x: Value) -> Value:
    """Give x/(1 + e⁻²ᵘ), u = √(2/π)·(x + 0.044715·x³)."""
    size = m.at_most(m.fabs(x), FARTHEST_CUBIC[x.type.scalar])
    return _less(m, x, _times_cubic_logistic(m, size, size))


def tanh_gate(m: Math, x: Value) -> Value:
    """Give 1/(1 + e⁻²ᵘ), u = √(2/π)·(x + 0.044715·x³)."""
    size = m.at_most(m.fabs(x), FARTHEST_CUBIC[x.type.scalar])
    tail = _times_cubic_logistic(m, m.const(1.0, x), size)
    return m.f.select(m.negative_sign(x), tail, 1.0 - tail)


def gelu(m: Math, x: Value) -> Value:
    """Give x·Φ(x): |x|·Φ(-|x|) is |x|·e^(-x²/2)·M(|x|) with Mills' ratio M over √(2π)."""
    size = m.at_most(m.fabs(x), FARTHEST[x.type.scalar])
    return _less(m, x, _times_bell(m, size, _mills(m, size), size))


def ndtr(m: Math, x: Value) -> Value:
    """Give Φ(x), the integral of the normal distribution."""
    size = m.at_most(m.fabs(x), FARTHEST[x.type.scalar])
    tail = _times_bell(m, None, _mills(m, size), size)
    return m.f.select(m.negative_sign(x), tail, 1.0 - tail)


def normal_density(m: Math, x: Value) -> Value:
    """Give e^(-x²/2)/√(2π)."""
    high, low = (m.const(c, x) for c in SQRT_2_PI[x.type.scalar])
    return _times_bell(m, None, (high, low), m.at_most(m.fabs(x), FARTHEST[x.type.scalar]))


def _less(m: Math, x: Value, tail: Value) -> Value:
    """Give max(x, 0) - tail; -0 for -0 and where the tail is 0, NaN at -∞ as 0·∞."""
    return m.f.select(m.negative_sign(x), x * 0.0, x) - tail


# ---- the logistic function


def _exp_of_sum(m: Math, x: Value, low: Value | None) -> Pair:
    """Give j + DOWN in the low bits of a number, and e^f - 1 for x + low = j·ln 2 + f."""
    t, reduced, g = split_exactly(m, x, DOWN[x.type.scalar])
    g = g if low is None else g + low
    whole = reduced + g
    return t, reduced + m.mla(whole * whole, m.polynomial(whole, EXP[x.type.scalar]), g)


def _times_logistic(m: Math, factor: Value, t: Value, grown: Value) -> Value:
    """Give factor·e/(1 + e) with e = 2ʲ·r, r = 1 + grown, 2ʲ <= 1."""
    r, lowered = grown + 1.0, LOWERED[t.type.scalar]
    high = r * power_of_two(m, t)  # e without its smallness
    inverse = 1.0 / m.mla(high, 2.0**-lowered, 1.0)
    q = r * inverse
    left = m.mla(q * -(2.0**-lowered), high, r - q) * inverse  # r - q is exact
    return scale_down(m, m.mla(factor, q, factor * left), t)


def _times_cubic_logistic(m: Math, factor: Value, x: Value) -> Value:
    """Give factor/(1 + e²ᵘ), x >= 0: 2u·log₂ e = x·(c₁ + c₃·x²) as a sum of two."""
    (c1, c1_low), (c3, c3_low) = CUBIC_1[x.type.scalar], CUBIC_3[x.type.scalar]
    square, rest = m.two_product(x, x)
    p = m.mla(square, c3, c1)
    if m.has_fma:
        error = m.f.fma(square, m.const(c3, x), -(p - c1))
    else:
        product, below = m.two_product(square, m.const(c3, x))
        error = (product - (p - c1)) + below
    low = error + m.mla(rest, c3, m.mla(square, c3_low, c1_low))
    power, below = m.two_product(x, -p)
    low = m.mla(-x, low, below)
    if special_unit.has_unit(m, x):
        return special_unit.times_power_logistic(m, factor, power, low)
    rounding = ROUNDING[x.type.scalar] + DOWN[x.type.scalar]
    t = power + rounding
    f = (power - (t - rounding)) + low
    first, *others = EXP2[x.type.scalar]
    return _times_logistic(m, factor, t, m.mla(f, first, f * f * m.polynomial(f, others)))


# ---- the normal distribution


def _mills(m: Math, x: Value) -> Pair:
    """Give e^(x²/2)·Φ(-x) for x >= 0; in GPU code as one number, since there the work is what a kernel waits for."""
    f, scalar = m.f, x.type.scalar
    n, d, bottom = x - CENTRE[scalar], x + CENTRE[scalar], x + BEND
    first, *others = MILLS[scalar]
    if special_unit.has_unit(m, x):
        t = n * special_unit.near_reciprocal(m, d)
        return m.mla(t, m.polynomial(t, others), first) * special_unit.near_reciprocal(m, bottom), m.const(0.0, x)
    t, inverse = n / d, 1.0 / bottom
    h, low = m.fast_two_sum(m.const(first, x), t * m.polynomial(t, others))
    ratio = h * inverse
    if not m.has_fma:
        return ratio, low * inverse
    left = f.fma(-ratio, bottom, h) + low
    left = f.fma(-ratio, x - (bottom - BEND), left)
    return ratio, left * inverse


def _times_bell(m: Math, factor: Value | None, ratio: Pair, x: Value) -> Value:
    """Give factor·ratio·e^(-x²/2), 0 <= x <= FARTHEST; equal work for equal x."""
    high, rest = ratio
    square, below = m.two_product(x, x)
    if special_unit.has_unit(m, x):
        product = special_unit.times_exp(m, high, rest, square * -0.5, below * -0.5)
        return product if factor is None else product * factor
    t, grown = _exp_of_sum(m, square * -0.5, below * -0.5)
    more = m.mla(high, grown, rest)
    return scale_down(m, high + more if factor is None else m.mla(high, factor, more * factor), t)
