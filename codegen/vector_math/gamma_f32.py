"""Log-gamma and digamma of f32, in f64 and without pairs where little cancels."""

from __future__ import annotations

import math

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import INFINITY, NAN, Math
from isthmus.codegen.vector_math.gamma_terms import (
    DIGAMMA,
    HALF_LN_2PI,
    LOG_GAMMA,
    by_root,
    mirrored,
    sine_and_cosine,
)
from isthmus.codegen.vector_math.logarithm import log

# x·(ln Γ(x) - (x - 1/2)·ln x + x - ln(2π)/2) in powers of 1/x² from x = 3 on, error 2^-42
STIRLING = (
    0.08333333333320651,
    -0.002777777659158229,
    0.0007936325967782277,
    -0.0005941751340017177,
    0.0008111778836850598,
    -0.0014317176906673947,
    0.0018152698871182382,
)


def lgamma(m: Math, x: Value) -> Value:
    """Give ln |Γ(x)|: (z - 1)·(z - 2)·P(z - 3/2) ± ln q, z = x + 1, x or x - 1, below 3; Stirling's series beyond."""
    f, wide = m.f, m.widen(x)
    a = m.fabs(wide)
    small, upper, large = f.compare("olt", a, 1.0), f.compare("oge", a, 2.0), f.compare("oge", a, 3.0)
    z = f.select(upper, a - 1.0, a)  # z + 1 where small
    t = z - f.select(small, m.const(0.5, a), m.const(1.5, a))
    first = f.select(small, z, z - 1.0)
    second = f.select(small, z - 1.0, z - 2.0)
    near = first * second * m.polynomial(t, LOG_GAMMA)
    inverse = 1.0 / a
    far = m.mla(inverse, m.horner(inverse * inverse, STIRLING), HALF_LN_2PI[0] - a)
    q = f.select(large | small, a, f.select(upper, z, 1.0))
    times = f.select(large, a - 0.5, f.select(small, m.const(-1.0, a), m.const(1.0, a)))
    value = m.mla(log(m, q), times, f.select(large, far, near))

    def below() -> Value:
        left = log(m, math.pi / (a * sine_and_cosine(m, a)[0])) - value
        # the terms cancel next to the zeros: in pairs
        return m.replaced(left, f.compare("olt", m.fabs(left), 2.0**-10), lambda: mirrored(m, a))

    whole = m.replaced(value, f.compare("olt", wide, 0.0), below)
    pole = f.compare("oeq", f.intrinsic("trunc", a), a) & f.compare("ole", wide, 0.0)
    return m.narrow(f.select(pole | f.compare("oeq", a, INFINITY), INFINITY, whole))


def digamma(m: Math, x: Value) -> Value:
    """Give ψ(x): the recurrence up to 8 as one fraction, then the asymptotic series; by its root from 1 to 2."""
    f, wide = m.f, m.widen(x)
    a = m.fabs(wide)
    y, numerator, denominator = a, m.const(0.0, a), m.const(1.0, a)
    for _ in range(8):
        low = f.compare("olt", y, 8.0)
        numerator = f.select(low, m.mla(numerator, y, denominator), numerator)
        denominator = f.select(low, denominator * y, denominator)
        y = f.select(low, y + 1.0, y)
    inverse = 1.0 / y
    square = inverse * inverse
    value = m.mla(inverse, -0.5, log(m, y)) - square * m.horner(square, DIGAMMA) - numerator / denominator
    near = f.compare("ogt", wide, 1.0) & f.compare("olt", wide, 2.0)
    value = f.select(near, by_root(m, f.select(near, wide, 1.5)), value)

    def below() -> Value:
        sine, cosine = sine_and_cosine(m, a)
        return value + 1.0 / a + cosine / sine * math.pi

    whole = m.replaced(value, f.compare("olt", wide, 0.0), below)
    whole = f.select(f.compare("oeq", wide, 0.0), m.copysign(m.const(INFINITY, a), -wide), whole)
    pole = f.compare("oeq", f.intrinsic("trunc", a), a) & f.compare("olt", wide, 0.0)
    return m.narrow(f.select(pole | m.is_nan(wide), NAN, whole))
