"""Log-gamma and digamma of f64 below 0: from a zero that is stored as a sum of two, so that nothing cancels next to it.

With x₀ the zero, δ = x - x₀, and e, e₀ the distances of x, x₀ from the integer -m below them,

    ln |Γ(x)| = ln Γ(1 + e) - ln Γ(1 + e₀) - ln Π (x + k)/(x₀ + k),  k = 0, ..., m
    ψ(x) = π·sin πδ/(sin²πy - sin²½πδ) - δ·(mean of ψ' from 1 - x to 1 - x₀),  y = (x + x₀)/2

where (π/sin πy)² = π² + (π·cot πy)².
"""

from __future__ import annotations

import math

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import Math
from isthmus.codegen.vector_math.gamma_terms import LOG_GAMMA, cotangent
from isthmus.codegen.vector_math.gamma_zeros import DIGAMMA_ZEROS, LOG_GAMMA_ZEROS
from isthmus.codegen.vector_math.logarithm import log1p
from isthmus.codegen.vector_math.polygamma import zeta

FEWEST, MOST = 3, 2 + len(LOG_GAMMA_ZEROS) // 2
"""ln |Γ| has zeros in (-m, 1 - m) for these m; further down they are closer to the poles than any double."""

# ln Γ(1 + e) in powers of e - 1/2: (e² - e)·P with e² - e = (e - 1/2)² - 1/4
CURVE = tuple(
    math.fsum((second, -first / 4))
    for first, second in zip((*LOG_GAMMA, 0.0, 0.0), (0.0, 0.0, *LOG_GAMMA), strict=True)
)
NEAR = 2.0**-12
"""A distance from a zero of ψ within which it is found from there."""


def log_gamma_near_zero(m: Math, x: Value, value: Value) -> Value:
    """Give ln |Γ(x)| next to its zeros below 0, and `value` elsewhere."""
    f = m.f
    inside = f.compare("olt", x, 1.0 - FEWEST) & f.compare("ogt", x, float(-MOST))
    small = inside & f.compare("olt", m.fabs(value), 0.015625)
    return m.replaced(value, small, lambda: _log_gamma_from_zero(m, f.select(small, x, 0.5 - FEWEST)))


def _log_gamma_from_zero(m: Math, x: Value) -> Value:
    f = m.f
    lower = f.intrinsic("floor", x)
    e = x - lower
    right = f.select(f.compare("oge", e, 0.5), m.const(1.0, x), m.const(0.0, x))
    high, low = _zero(m, "log_gamma", LOG_GAMMA_ZEROS, right + (lower + FEWEST) * -2.0)
    step = (x - high) - low
    # Π (x + k)/(x₀ + k) - 1 for k = 0, ..., m - 2 is c/b: c' = c·(x + k) + b·δ, b' = b·(x₀ + k)
    c, b = m.const(0.0, x), m.const(1.0, x)
    for k in range(MOST - 1):
        more, below = m.mla(c, x + float(k), b * step), m.mla(b, high + float(k), b * low)
        if k > FEWEST - 2:
            inside = f.compare("ole", lower, float(-k - 2))
            more, below = f.select(inside, more, c), f.select(inside, below, b)
        c, b = more, below
    # and for the integers next to x, m - 1 and m, whose factors nearly cancel where x is between them
    start = high - lower
    both = (((e - 0.5) + (start - 0.5)) + low) * step / ((start + low) * ((start - 1.0) + low))
    rest = c / b
    ratio = both + m.mla(rest, both, rest)
    return m.mla(step, _mean_slope(m, e - 0.5, (start + low) - 0.5), -log1p(m, ratio))


def _mean_slope(m: Math, t: Value, start: Value) -> Value:
    """Give (C(t) - C(start))/(t - start) of the polynomial C = CURVE: by dividing it by t - start."""
    b = value = m.const(CURVE[-1], t)
    for coefficient in CURVE[-2:0:-1]:
        b = m.mla(b, start, coefficient)
        value = m.mla(value, t, b)
    return value


def digamma_near_zero(m: Math, x: Value, value: Value) -> Value:
    """Give ψ(x) next to its zeros below 0, and `value` elsewhere."""
    f = m.f
    inside = f.compare("olt", x, 0.0) & f.compare("ogt", x, -float(len(DIGAMMA_ZEROS)))
    small = f.compare("olt", m.fabs(value), 0.0125)

    def from_zero() -> Value:
        a = f.select(inside & small, x, -0.5)
        high, low = _zero(m, "digamma", DIGAMMA_ZEROS, f.intrinsic("trunc", -a))
        step = (a - high) - low
        half = step * 0.5
        c = cotangent(m, (high - f.intrinsic("rint", high)) + (low + half))
        total = m.mla(c[0], c[0], m.mla(c[0] + c[0], c[1], math.pi**2))
        # sin πδ = πδ·(1 + t), sin² ½πδ·total = π²·w
        square = step * step * math.pi**2
        t = square * m.mla(square, 1 / 120, -1 / 6)
        w = square * m.mla(square, -1 / 12, 1.0) * total * (0.25 / math.pi**2)
        mean = m.mla(step * step, zeta(m, 1.0 - (high + half), 4) * 0.25, zeta(m, 1.0 - (high + half), 2))
        near = step * (total + m.mla(total, (t + w) / (1.0 - w), -mean))
        return f.select(f.compare("olt", m.fabs(step), NEAR), near, value)

    return m.replaced(value, inside & small, from_zero)


def _zero(m: Math, name: str, zeros: tuple[tuple[float, float], ...], index: Value) -> tuple[Value, Value]:
    """Give the two parts of the zero of a number, a float."""
    number = m.f.cast("fptosi", index, index.type.with_scalar("i64"))
    high, low = (m.table(f"{name}_zeros_{i}", [z[i] for z in zeros], number) for i in range(2))
    return high, low
