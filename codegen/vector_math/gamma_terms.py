"""What log-gamma and digamma are made of: both right of 0 to more than f64, as sums of two, and what mirrors them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import Math
from isthmus.codegen.vector_math.power import double_log
from isthmus.codegen.vector_math.trigonometric import COS, SIN

# ln Γ(x)/((x - 1)·(x - 2)) in powers of x - 3/2 on [1, 2], error 2^-57; fitted by benchmarks/fit_polynomials.py
LOG_GAMMA = (
    0.4831289505409809,
    -0.14595989591430608,
    0.06291140107456496,
    -0.03130848750100946,
    0.016797098631183286,
    -0.009425622448628962,
    0.005446457844815174,
    -0.0032120740696152126,
    0.001922916130226262,
    -0.0011644146742614523,
    0.0007115224837242318,
    -0.0004379919000247079,
    0.0002712739010062094,
    -0.00016892748042878096,
    0.00010565337762768203,
    -6.60912275607609e-05,
    4.159364789055563e-05,
    -2.7361174194071e-05,
    1.746647632899039e-05,
    -8.071109598318383e-06,
    4.920974445597605e-06,
    -7.977296255739943e-06,
    5.256699312514383e-06,
)
# Stirling's series in 1/x²: B₂ₖ/(2k·(2k - 1))
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400, 43867 / 244188)
HALF_LN_2PI = (0.9189385332046728, -3.8782941580672414e-17)
"""ln(2π)/2 as a sum of two."""
LN_PI = (1.1447298858494002, 1.0265951162707826e-17)
PI_REST = 1.2246467991473532e-16
"""π less the double nearest to it."""
TINY, HUGE = 2.0**-70, 1.0e17
"""Below and beyond these a first term is enough."""

# digamma's asymptotic series in 1/x²: B₂ₖ/2k
DIGAMMA = (
    1 / 12,
    -1 / 120,
    1 / 252,
    -1 / 240,
    1 / 132,
    -691 / 32760,
    1 / 12,
    -3617 / 8160,
    43867 / 14364,
)
ROOT = (1.4616321449683622, 9.549995429965697e-17)
"""Where digamma is 0, as a sum of two."""
# ψ(x)/(x - root) in powers of x - 3/2 on [1, 2], error 2^-54; fitted by benchmarks/fit_polynomials.py
SLOPE = (
    0.9510558760318328,
    -0.4236274212814606,
    0.24054248424078722,
    -0.14840492305388028,
    0.09498872445284973,
    -0.061922133275542385,
    0.040760833943393235,
    -0.026975796657635914,
    0.0179072482355179,
    -0.011908220152973426,
    0.007927023328427249,
    -0.005279936638151568,
    0.0035180886935343107,
    -0.002345499819524016,
    0.0015635034896286319,
    -0.0010364320982124966,
    0.0006902816735702969,
    -0.00048603438565100537,
    0.00032588224140825644,
    -0.00014465681121181615,
    9.329244571950353e-05,
    -0.00017833306133947587,
    0.00012117533582833747,
)
# π·cot πr = 1/r - r·C(r²) with C = Σ 2ζ(2k + 2)·r²ᵏ: terms as sums of two, and what follows five of them,
# 2/(1 - r²) + Σ 2(ζ(2k) - 1)·r²ᵏ⁻¹²
COTANGENT = (
    (3.289868133696453, 6.081344700796952e-17),
    (2.1646464674222763, 9.49702408571073e-17),
    (2.0346861239688985, -1.9517198332883063e-16),
    (2.0081547123958887, -4.034349661547569e-17),
    (2.001989150255636, 2.1873826341294005e-16),
    (2.000492173106616, 7.113198248766341e-18),
    (2.0001224962701176, -2.1277148994144281e-16),
    (2.0000305645188172, 8.163518284861808e-17),
    (2.00000763458653, -8.118713784376256e-17),
    (2.0000019079240676, 1.2218006976829918e-16),
    (2.0000004769010054, 1.0255162665490708e-16),
)
COTANGENT_REST = (
    0.0004921731066160966,
    0.00012249627011740966,
    3.056451881730374e-05,
    7.63458652999968e-06,
    1.9079240677455924e-06,
    4.76901005455466e-07,
    1.1921637810251896e-07,
    2.9803109656730085e-08,
    7.450668049576915e-09,
    1.8626548648393363e-09,
    4.656623667353011e-10,
)

Pair = tuple[Value, Value]


def mirrored(m: Math, a: Value, right: Pair | None = None) -> Value:
    """Give ln |Γ(-a)| = ln π - ln(a·|sin πa|) - ln Γ(a) for a > 0; `right`: ln Γ(a)."""
    high, low = right or log_gamma(m, a)
    part = product(m, (a, m.const(0.0, a)), _sine(m, a))
    log = double_log(m, part[0])
    high, low = add(m, add(m, (m.const(LN_PI[0], a), m.const(LN_PI[1], a)), (-log[0], -log[1])), (-high, -low))
    return high + (low - part[1] / part[0])


def _sine(m: Math, x: Value) -> Pair:
    """Give |sin πx| to 2^-58: of the distance from an integer, or the cosine of the distance from a half."""
    f = m.f
    size = m.fabs(x - f.intrinsic("rint", x))
    outer = f.compare("ogt", size, 0.25)
    y, error = m.two_product(f.select(outer, 0.5 - size, size), m.const(math.pi, x))
    z, below = m.two_product(y, y)
    error = error + f.select(outer, 0.5 - size, size) * PI_REST
    half = z * 0.5
    # sin y = y + SIN₀·y³ + y⁵·..., the second term as a sum of two
    cube, rest = m.two_product(z, y)
    third, over = m.two_product(cube, m.const(SIN[0], x))
    over = m.mla(m.mla(y, below, rest), SIN[0], over)
    fifth = m.mla(z * cube, m.horner(z, SIN[1:]), m.mla(-half, error, error) + over)
    sine, more = m.fast_two_sum(y, third)
    one, rest = m.fast_two_sum(m.const(1.0, x), -half)
    cosine = m.mla(z * z, m.horner(z, COS), -m.mla(y, error, below * 0.5))
    return m.fast_two_sum(f.select(outer, one, sine), f.select(outer, cosine + rest, fifth + more))


def log_gamma(m: Math, a: Value) -> Pair:
    """Give ln Γ(a), TINY < a < HUGE.

    Below 10 it is ±ln q + (z - 1)·(z - 2)·P(z - 3/2), 1 <= z < 2, with z = a + 1 and q = 1/a or z = a - k and
    q = (a - 1)·...·(a - k); Stirling's series beyond.
    """
    f = m.f
    large, small = f.compare("oge", a, 10.0), f.compare("olt", a, 1.0)
    z, q, rest = f.select(large, 1.5, a), m.const(1.0, a), m.const(0.0, a)
    for _ in range(8):
        down = f.compare("oge", z, 2.0)
        less = z - 1.0
        longer, error = m.two_product(q, less)
        q, rest = f.select(down, longer, q), f.select(down, m.mla(rest, less, error), rest)
        z = f.select(down, less, z)
    first = f.select(small, z, z - 1.0)
    second = f.select(small, z - 1.0, z - 2.0)  # exact: z - 1, z - 2, or both of z + 1
    t = z - f.select(small, m.const(0.5, a), m.const(1.5, a))
    curve = m.fast_two_sum(m.const(LOG_GAMMA[0], a), t * m.polynomial(t, LOG_GAMMA[1:]))
    near = product(m, m.two_product(first, second), curve)
    # ln Γ(a) = (a - 1/2)·ln a - a + ln(2π)/2 + Σ B₂ₖ/(2k(2k - 1)·a²ᵏ⁻¹)
    inverse = 1.0 / a
    series = inverse * m.horner(inverse * inverse, STIRLING)
    constant = m.two_sum(-a, m.const(HALF_LN_2PI[0], a))
    far = constant[0], constant[1] + (series + HALF_LN_2PI[1])
    log = double_log(m, f.select(large | small, a, q))
    log = log[0], log[1] + rest / q
    times = f.select(large, a - 0.5, f.select(small, m.const(-1.0, a), m.const(1.0, a)))
    base = tuple(f.select(large, v, n) for v, n in zip(far, near, strict=True))
    return add(m, product(m, log, (times, m.const(0.0, a))), (base[0], base[1]))


def sine_and_cosine(m: Math, x: Value) -> Pair:
    """Give |sin πx| and cos πx with the sign of the tangent, from the distance r of x from an integer, |r| <= 1/2."""
    f = m.f
    r = x - f.intrinsic("rint", x)
    size = m.fabs(r)
    outer = f.compare("ogt", size, 0.25)
    y = f.select(outer, 0.5 - size, size) * math.pi
    z = y * y
    sine = m.mla(z * y, m.horner(z, SIN), y)
    cosine = m.mla(z * z, m.horner(z, COS), m.mla(z, -0.5, 1.0))
    first, second = f.select(outer, cosine, sine), f.select(outer, sine, cosine)
    return first, f.select(f.compare("olt", r, 0.0), -second, second)


def positive(m: Math, a: Value) -> Pair:
    """Give ψ(a), 1e-290 < a < 1e17: the recurrence ψ(y) = ψ(y + 1) - 1/y up to 10, then the asymptotic series."""
    f = m.f
    zero = m.const(0.0, a)
    y: Pair = (a, zero)
    total: Pair = (zero, zero)
    for _ in range(10):
        low = f.compare("olt", y[0], 10.0)
        inverse = reciprocal(m, y)
        less = add(m, total, (-inverse[0], -inverse[1]))
        more = m.two_sum(y[0], m.const(1.0, a))
        total = f.select(low, less[0], total[0]), f.select(low, less[1], total[1])
        y = f.select(low, more[0], y[0]), f.select(low, y[1] + more[1], y[1])
    inverse = reciprocal(m, y)
    square = inverse[0] * inverse[0]
    log = double_log(m, y[0])
    total = add(m, total, (log[0], m.mla(y[1], inverse[0], log[1])))
    total = add(m, total, (inverse[0] * -0.5, inverse[1] * -0.5))
    return total[0], total[1] - square * m.horner(square, DIGAMMA)


def by_root(m: Math, x: Value) -> Value:
    """Give (x - root)·P(x - 3/2) for 1 < x < 2."""
    t = x - 1.5
    high, low = m.fast_two_sum(m.const(SLOPE[0], t), t * m.polynomial(t, SLOPE[1:]))
    distance = (x - ROOT[0]) - ROOT[1]
    return m.mla(distance, high, distance * low)


def cotangent(m: Math, a: Value) -> Pair:
    """Give π·cot πa."""
    r = a - m.f.intrinsic("rint", a)
    z = m.two_product(r, r)
    rest = 2.0 / (1.0 - z[0]) + m.polynomial(z[0], COTANGENT_REST)
    c = product(m, (r, m.const(0.0, r)), horner_of_pairs(m, z, COTANGENT[:5], rest))
    return add(m, reciprocal(m, (r, m.const(0.0, r))), (-c[0], -c[1]))


def reciprocal(m: Math, y: Pair) -> Pair:
    """Give 1/y."""
    q = 1.0 / y[0]
    one, error = m.two_product(q, y[0])
    return q, (((1.0 - one) - error) - q * y[1]) * q


def product(m: Math, a: Pair, b: Pair) -> Pair:
    """Give a·b."""
    high, error = m.two_product(a[0], b[0])
    return m.fast_two_sum(high, m.mla(a[0], b[1], m.mla(a[1], b[0], error)))


def horner_of_pairs(m: Math, x: Pair, coefficients: Sequence[tuple[float, float]], rest: Value) -> Pair:
    """Give Σ cₖ·xᵏ of sums of two, where `rest` is all that follows, as one double."""
    value: Pair = (rest, m.const(0.0, rest))
    for high, low in reversed(coefficients):
        value = product(m, x, value)
        total, error = m.two_sum(m.const(high, rest), value[0])
        value = m.fast_two_sum(total, error + (value[1] + low))
    return value


def add(m: Math, a: Pair, b: Pair) -> Pair:
    """Give a + b."""
    total, error = m.two_sum(a[0], b[0])
    return m.fast_two_sum(total, error + (a[1] + b[1]))
