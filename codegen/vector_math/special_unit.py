"""Exponentials of f32 by the power of two that GPUs have in hardware: 2 units of the last place, a third of the work.

With L = log₂ e in two parts, x·L = hi + lo, where hi is x·L rounded; e^x = 2^hi·2^lo = 2^hi·(1 + lo·ln 2), since
|lo| < 2^-16.
"""

from __future__ import annotations

from isthmus.codegen.llvm_text import F32, Value
from isthmus.codegen.vector_math.core import INFINITY, Math

LOG2_E = 1.4426950216293335
LOG2_E_LOW = 1.9259629911266175e-08
LN_2 = 0.6931471805599453
HIGHEST = 88.72283172607422
"""e^x is infinite beyond (but for one number of f32, whose e^x is within 2^-23 of what is too large)."""
LOWEST = -104.0
# tanh x = x + x³·P(x²) for |x| <= 0.35, error 2^-34
TANH = (
    -0.3333333432674408,
    0.13333401083946228,
    -0.05398113653063774,
    0.021926026791334152,
    -0.008372781798243523,
)


def has_unit(m: Math, x: Value) -> bool:
    """Whether the target computes 2^x of this type in hardware."""
    return m.has_exp2 and x.type.scalar == "float"


def exp(m: Math, x: Value) -> Value:
    """Give e^x, denormals included."""
    return m.f.select(m.f.compare("ogt", x, HIGHEST), INFINITY, bounded_exp(m, m.at_least(x, LOWEST)))


def bounded_exp(m: Math, x: Value) -> Value:
    """Give e^x where it is neither infinite nor beyond all denormals."""
    high = x * LOG2_E
    low = m.mla(x, LOG2_E_LOW, m.mla(x, LOG2_E, -high))
    power = exp2(m, high)
    return m.mla(power, low * LN_2, power)


def exp2(m: Math, x: Value) -> Value:
    """Give 2^x."""
    return m.each_lane(lambda lane: m.f.call("llvm.nvvm.ex2.approx.f32", F32, lane), x)


def tanh(m: Math, x: Value) -> Value:
    """Give tanh x = 1 - 2/(e^2a + 1) with a = |x|, beyond 10 as at 10; x + x³·P(x²) near 0."""
    magnitude, square = m.fabs(x), x * x
    a = m.at_most(magnitude, 10.0)
    far = 1.0 - reciprocal(m, bounded_exp(m, a + a) + 1.0) * 2.0
    small = m.mla(x * square, m.polynomial(square, TANH), x)
    return m.copysign(m.f.select(m.f.compare("olt", magnitude, 0.35), small, far), x)


def reciprocal(m: Math, d: Value) -> Value:
    """Give 1/d to the last place for 1 <= d < 2^100: the hardware's, and one step of Newton's r + (1 - d·r)·r."""
    r = near_reciprocal(m, d)
    return m.mla(m.mla(-d, r, 1.0), r, r)


def near_reciprocal(m: Math, d: Value) -> Value:
    """Give 1/d within one unit of the last place for 1 <= d < 2^100."""
    return m.each_lane(lambda lane: m.f.call("llvm.nvvm.rcp.approx.ftz.f", F32, lane), d)


def logistic(m: Math, x: Value) -> Value:
    """Give 1/(1 + e^-x), as e^-a/(1 + e^-a) with a = |x| for negative x: tiny results survive."""
    e = exp(m, -m.fabs(x))
    r = reciprocal(m, e + 1.0)
    return m.f.select(m.f.compare("olt", x, 0.0), e * r, r)


def times_logistic(m: Math, factor: Value, x: Value) -> Value:
    """Give factor·e^x/(1 + e^x) for x <= 0."""
    return _times_ratio(m, factor, exp(m, x))


def times_power_logistic(m: Math, factor: Value, x: Value, low: Value) -> Value:
    """Give factor·e/(1 + e), e = 2^(x + low), for x <= 0."""
    e = exp2(m, x)
    return _times_ratio(m, factor, m.mla(e, low * LN_2, e))


def _times_ratio(m: Math, factor: Value, e: Value) -> Value:
    return factor * reciprocal(m, e + 1.0) * e


def times_exp(m: Math, factor: Value, rest: Value, x: Value, low: Value) -> Value:
    """Give (factor + rest)·e^(x + low) for x <= 0."""
    high = x * LOG2_E
    error = m.mla(x, LOG2_E_LOW, m.mla(x, LOG2_E, -high))
    grown = m.mla(error, LN_2, low)
    return exp2(m, high) * (factor + m.mla(factor, grown, rest))
