"""Division of many numbers by one: its reciprocal is taken once, and each quotient corrected to the last place."""

from __future__ import annotations

import math

from isthmus.codegen.dtypes import round_to
from isthmus.codegen.llvm_text import F32, Value
from isthmus.codegen.vector_math import Math

SMALLEST, LARGEST = 2.0**-126, 2.0**126
"""Between these a divisor and its reciprocal have all their digits."""
SHIFT = 2.0**64
"""What brings another divisor there, but for 0 and infinity."""


def divide_alike(m: Math, n: Value, d: Value, dtype: str, how: str = "any") -> Value:
    """Give n/d, correctly rounded, for a scalar d that is the same for the whole group; f32 registers.

    `how`: coarse, where n·r is enough; fraction, where n is not negative and at most 1, or NaN; any.

    With r = 1/d rounded, q = n·r is off by a unit or two of the last place and n - q·d is exact, so that
    q + (n - q·d)·r is the quotient (Markstein 1990). Where that is 0 or NaN, q has the right sign, or is infinite.
    Where |n| < 2^-100 the remainder has not all its digits, and the quotient may be a unit off.

    A divisor out of range is multiplied by a power of two s first, and the quotient again: n/(d·s)·s. There is no
    branch with a division for each n on its other side: LLVM would compute both and select.
    """
    f, size = m.f, m.fabs(d)
    shift = f.select(f.compare("olt", size, SMALLEST), f.const(SHIFT, F32), f.const(1.0, F32))
    shift = f.select(f.compare("ogt", size, LARGEST), f.const(1.0 / SHIFT, F32), shift)
    d = d * shift
    r, wide, back = (f.splat(x, n.type.lanes) for x in (f.const(1.0, F32) / d, d, shift))
    q = n * r
    if how == "fraction":
        ordinary = f.compare("ogt", size, 0.0) & f.compare("olt", size, math.inf)
        better = f.fma(f.fma(-q, wide, n), r, q)
        q = f.select(f.splat(ordinary, n.type.lanes), better, q)
    elif how != "coarse":
        better = f.fma(f.fma(-q, wide, n), r, q)
        q = f.select(f.compare("one", better, 0.0), better, q)
    return round_to(m, q * back, dtype)
