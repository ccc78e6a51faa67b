"""Digamma of f64 next to those of its zeros below 0 that are not stored: every term to 2^-100.

    ψ(-a) = ln a + 1/(2a) - Σ B₂ₖ/(2k·a²ᵏ) + π·cot πa

A double next to a zero gives some 1e-12, and 1e-15 where it is close by chance: what cancels there needs twice the
digits of a double. It is asked for by few arguments in a million, so nothing is done for speed.
"""

from __future__ import annotations

from fractions import Fraction

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import Math
from isthmus.codegen.vector_math.gamma_terms import COTANGENT, Pair, add, horner_of_pairs, product, reciprocal
from isthmus.codegen.vector_math.gamma_zeros import DIGAMMA_ZEROS
from isthmus.codegen.vector_math.logarithm import decompose

LN2 = (0.6931471805599453, 2.3190468138462996e-17)
SMALL = 2.0**-14
"""Elsewhere an error of 2^-68 is no more than a unit."""


def _parts(number: Fraction) -> tuple[float, float]:
    return float(number), float(number - Fraction(float(number)))


# artanh(s)/s = Σ s²ʲ/(2j + 1)
ARTANH = tuple(_parts(Fraction(1, 2 * j + 1)) for j in range(11))
ARTANH_REST = tuple(1 / (2 * j + 1) for j in range(11, 23))
# B₂ₖ/2k, enough of them for a >= 32
SERIES = tuple(_parts(Fraction(n, d)) for n, d in ((1, 12), (-1, 120), (1, 252), (-1, 240), (1, 132), (-691, 32760)))
SERIES_REST = (1 / 12, -3617 / 8160, 43867 / 14364, -174611 / 6600, 854513 / 3036, -236364091 / 65520)


def digamma_far_down(m: Math, x: Value, value: Value) -> Value:
    """Give ψ(x) next to its zeros below the stored ones, and `value` elsewhere."""
    f = m.f
    last = -float(len(DIGAMMA_ZEROS))
    inside = f.compare("olt", x, last) & f.compare("olt", m.fabs(value), SMALL)

    def exact() -> Value:
        a = f.select(inside, -x, 0.25 - last)
        inverse = reciprocal(m, (a, m.const(0.0, a)))
        square = product(m, inverse, inverse)
        series = horner_of_pairs(m, square, SERIES, m.horner(square[0], SERIES_REST))
        small = add(m, (inverse[0] * 0.5, inverse[1] * 0.5), _minus(product(m, square, series)))
        total = add(m, add(m, _log(m, a), _cotangent(m, a)), small)
        return total[0] + total[1]

    return m.replaced(value, inside, exact)


def _log(m: Math, a: Value) -> Pair:
    """ln a = e·ln 2 + 2·artanh s, a = 2ᵉ·(1 + r), s = r/(2 + r)"""
    e, _, r = decompose(m, a)
    below = reciprocal(m, m.two_sum(m.const(2.0, a), r))
    s = product(m, (r, m.const(0.0, a)), below)
    z = product(m, s, s)
    curve = product(m, s, horner_of_pairs(m, z, ARTANH, m.horner(z[0], ARTANH_REST)))
    whole = product(m, (m.const(LN2[0], a), m.const(LN2[1], a)), (e, m.const(0.0, a)))
    return add(m, whole, (curve[0] + curve[0], curve[1] + curve[1]))


def _cotangent(m: Math, a: Value) -> Pair:
    """π·cot πa = 1/r - r·Σ 2ζ(2k)·r²ᵏ⁻², |r| < 1/4; from k = 12 on ζ(2k) is a sum of four powers."""
    r = a - m.f.intrinsic("rint", a)
    zero = m.const(0.0, a)
    z = m.two_product(r, r)
    rest = zero
    for n in (4, 3, 2, 1):
        rest = rest + 2.0 / float(n) ** 24 / (1.0 - z[0] * (1.0 / n**2))
    c = product(m, (r, zero), horner_of_pairs(m, z, COTANGENT, rest))
    return add(m, reciprocal(m, (r, zero)), _minus(c))


def _minus(a: Pair) -> Pair:
    return -a[0], -a[1]
