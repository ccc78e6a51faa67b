"""Powers: y·ln x to twice the precision, then the exponential of the sum."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import INFINITY, NAN, Math
from isthmus.codegen.vector_math.exponential import (
    LN2_HIGH,
    LN2_LOW,
    TWICE,
    clamped,
    exp,
    reduced_exp,
    scale,
    split,
)
from isthmus.codegen.vector_math.logarithm import decompose, log

# 2·artanh(s)/s - 2 = s²·(2/3 + s²·P(s²)), error 2^-69; fitted by fit_polynomials.py
LOG = (
    0.3999999999999972,
    0.2857142857157993,
    0.22222222190781898,
    0.18181821568053447,
    0.15384404537100604,
    0.13341204478538296,
    0.11591458484478322,
    0.12576971188785385,
)
TWO_THIRDS_REST = 3.700743415417188e-17
"""2/3 less the double nearest to it."""

Pair = tuple[Value, Value]


def double_log(m: Math, x: Value) -> Pair:
    """Give ln x for a double x >= 0 as a sum of two, relative error about 2^-64.

    ln x = e·ln 2 + 2s + s³·(2/3 + s²·P(s²)), s = f/(2 + f).
    """
    f = m.f
    e, _, r = decompose(m, x)
    s = _divide(m, r, m.two_sum(m.const(2.0, x), r))
    z = _multiply(m, s, s)
    # 2/3 + s²·P(s²): the first coefficient's own rounding matters, the rest's does not
    w = m.fast_two_sum(m.const(2 / 3, x), m.mla(z[0], m.horner(z[0], LOG), TWO_THIRDS_REST))
    cube = _multiply(m, _multiply(m, z, s), w)
    high, low = m.fast_two_sum(s[0] + s[0], cube[0])
    low = low + (s[1] + s[1]) + cube[1]
    total, error = m.two_sum(e * LN2_HIGH["double"], high)
    low = m.mla(e, LN2_LOW["double"], low + error)
    high, low = m.fast_two_sum(total, low)
    regular = f.compare("ogt", x, 0.0) & f.compare("olt", x, INFINITY)
    edge = f.select(f.compare("oeq", x, 0.0), m.const(-INFINITY, x), x)
    return f.select(regular, high, edge), f.select(regular, low, 0.0)


def _multiply(m: Math, a: Pair, b: Pair) -> Pair:
    product, error = m.two_product(a[0], b[0])
    return m.fast_two_sum(product, m.mla(a[0], b[1], m.mla(a[1], b[0], error)))


def _divide(m: Math, n: Value, d: Pair) -> Pair:
    """Give n/d as a sum of two."""
    quotient = n / d[0]
    product, error = m.two_product(quotient, d[0])
    rest = (n - product) - error - quotient * d[1]
    return quotient, rest / d[0]


def pow(m: Math, x: Value, y: Value) -> Value:
    """Give xʸ with the special values of C99."""
    if x.type.scalar == "float":
        a, b = m.widen(m.fabs(x)), m.widen(y)
        magnitude = m.narrow(exp(m, b * log(m, a)))
    else:
        magnitude = _pow_f64(m, m.fabs(x), y)
    return _pow_specials(m, x, y, magnitude)


def _pow_f64(m: Math, a: Value, y: Value) -> Value:
    """Give exp(y·ln a) with the logarithm and the product to twice the precision."""
    f = m.f
    high, low = double_log(m, a)
    p, error = m.two_product(y, high)
    rest = m.mla(y, low, error)
    finite = f.compare("olt", m.fabs(p), 800.0)
    t, reduced = split(m, clamped(m, p), TWICE["double"])
    reduced = reduced + f.select(finite, rest, 0.0)
    return scale(m, reduced_exp(m, reduced), t)


def _pow_specials(m: Math, x: Value, y: Value, magnitude: Value) -> Value:
    f = m.f
    magnitude = f.select(f.compare("oeq", m.fabs(x), 1.0), 1.0, magnitude)
    is_integer = f.compare("oeq", f.intrinsic("trunc", y), y)
    half = y * 0.5
    is_odd = is_integer & f.compare("one", f.intrinsic("trunc", half), half)
    result = f.select(is_odd, m.copysign(magnitude, x), magnitude)
    negative = f.compare("olt", x, 0.0) & f.compare("ogt", x, -INFINITY)
    result = f.select(negative & ~is_integer, NAN, result)
    one = f.compare("oeq", y, 0.0) | f.compare("oeq", x, 1.0)
    return f.select(one, 1.0, result)
