"""Division of many numbers by one: its reciprocal is taken once, and each quotient corrected to the last place."""

from __future__ import annotations

from isthmus.codegen.dtypes import round_to
from isthmus.codegen.llvm_text import F32, Value
from isthmus.codegen.vector_math import Math

SMALLEST, LARGEST = 2.0**-126, 2.0**126
"""Between these a divisor and its reciprocal have all their digits."""


def divide_alike(m: Math, n: Value, d: Value, dtype: str, how: str = "any") -> Value:
    """Give n/d, correctly rounded, for a scalar d that is the same for the whole group; f32 registers.

    `how`: coarse, where n·r is enough; fraction, where n is not negative and at most 1, or NaN; any.

    With r = 1/d rounded, q = n·r is off by a unit or two of the last place and n - q·d is exact, so that
    q + (n - q·d)·r is the quotient (Markstein 1990). Where that is 0 or NaN, q has the right sign, or is infinite.
    Where |n| < 2^-100 the remainder has not all its digits, and the quotient may be a unit off.
    """
    f, size = m.f, m.fabs(d)
    usual = f.compare("oge", size, SMALLEST) & f.compare("ole", size, LARGEST)
    slot = f.slot(n.type)
    reciprocal = f.const(1.0, F32) / d
    wide = f.splat(d, n.type.lanes)
    with f.when(usual):
        r = f.splat(reciprocal, n.type.lanes)
        q = n * r
        if how != "coarse":
            better = f.fma(f.fma(-q, wide, n), r, q)
            q = better if how == "fraction" else f.select(f.compare("one", better, 0.0), better, q)
        f.store(q, slot)
    with f.when(~usual):
        f.store(n / wide, slot)
    return round_to(m, f.load(slot, n.type), dtype)
