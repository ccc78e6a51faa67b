"""Inverse trigonometric functions, in f64."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import INFINITY, Math, in_double, in_double2

PI_2 = (1.5707963267948966, 6.123233995736766e-17)
PI_4 = (0.7853981633974483, 3.061616997868383e-17)
TAN_PI_8 = 0.41421356237309503
TAN_3PI_8 = 2.414213562373095

# asin x = x + x³·P(x²) for |x| <= 1/2, error 2^-60; atan x likewise for |x| <= tan π/8, 2^-64
ASIN = (
    0.16666666666666763,
    0.07499999999970129,
    0.044642857175254416,
    0.030381942676823606,
    0.02237221586309594,
    0.017351596245302334,
    0.013981009936576711,
    0.011397360588788619,
    0.010788958013407747,
    0.0036735012014497883,
    0.021787572269040323,
    -0.0211125368759668,
    0.03269964544282359,
)
ATAN = (
    -0.33333333333333326,
    0.19999999999997095,
    -0.14285714285316392,
    0.11111111083744554,
    -0.09090907985768874,
    0.07692279197019855,
    -0.06666174584445626,
    0.05876515035350236,
    -0.052151685999400406,
    0.04490497458364028,
    -0.033173002093406644,
    0.01489138622071337,
)


@in_double
def asin(m: Math, x: Value) -> Value:
    """Give asin x; beyond ½ it is π/2 - 2·asin √((1 - |x|)/2)."""
    near, v, rest = _half_angle(m, x)
    return m.copysign(m.f.select(near, v + rest, _less_twice(m, PI_2, v, rest)), x)


@in_double
def acos(m: Math, x: Value) -> Value:
    """Give acos x: π/2 - asin x, or 2·asin √((1 - x)/2), or π minus that of -x."""
    near, v, rest = _half_angle(m, x)
    u = v + rest
    middle = PI_2[0] - (m.copysign(u, x) - PI_2[1])
    left = _less_twice(m, (2 * PI_2[0], 2 * PI_2[1]), v, rest)
    far = m.f.select(m.f.compare("olt", x, 0.0), left, u + u)
    return m.f.select(near, middle, far)


def _less_twice(m: Math, angle: tuple[float, float], v: Value, rest: Value) -> Value:
    """Give angle - 2·(v + rest), |rest| much smaller than v <= ½."""
    total, error = m.fast_two_sum(m.const(angle[0], v), -(v + v))
    return total + ((error + angle[1]) - (rest + rest))


def _half_angle(m: Math, x: Value) -> tuple[Value, Value, Value]:
    """Tell where |x| < ½, and give there asin |x|, elsewhere asin √((1 - |x|)/2), as a sum v + rest."""
    a = m.fabs(x)
    near = m.f.compare("olt", a, 0.5)
    z = m.f.select(near, a * a, (1.0 - a) * 0.5)
    v = m.f.select(near, a, m.sqrt(z))
    return near, v, v * z * m.polynomial(z, ASIN)


@in_double
def atan(m: Math, x: Value) -> Value:
    """Give atan x."""
    a = m.fabs(x)
    return m.copysign(_angle(m, a, m.const(1.0, x)), x)


@in_double2
def atan2(m: Math, y: Value, x: Value) -> Value:
    """Give the angle of the point (x, y), with the signs of zeros and infinities as C99 says."""
    f = m.f
    n, d = m.fabs(y), m.fabs(x)
    both = f.compare("oeq", n, INFINITY) & f.compare("oeq", d, INFINITY)
    n, d = f.select(both, 1.0, n), f.select(both, 1.0, d)
    # Sums of huge numbers overflow, quotients of denormals are coarse: bring both near 1.
    huge = f.compare("ogt", n, 2.0**1000) | f.compare("ogt", d, 2.0**1000)
    tiny = f.compare("olt", n, 2.0**-900) & f.compare("olt", d, 2.0**-900)
    factor = f.select(tiny, m.const(2.0**200, x), m.const(1.0, x))
    factor = f.select(huge, m.const(2.0**-200, x), factor)
    n, d = n * factor, d * factor
    zero = f.compare("oeq", n, 0.0) & f.compare("oeq", d, 0.0)
    angle = f.select(zero, 0.0, _angle(m, n, d))
    left = 2 * PI_2[0] - (angle - 2 * PI_2[1])
    return m.copysign(f.select(m.negative_sign(x), left, angle), y)


def _angle(m: Math, n: Value, d: Value) -> Value:
    """Give atan(n/d) for n, d >= 0, turned by 0, π/4 or π/2 so that |tan| <= tan π/8 is left."""
    f = m.f
    steep = f.compare("ogt", n, d * TAN_3PI_8)
    middle = f.compare("ogt", n, d * TAN_PI_8)
    numerator = f.select(steep, -d, f.select(middle, n - d, n))
    denominator = f.select(steep, n, f.select(middle, n + d, d))
    t = numerator / denominator
    z = t * t

    def turned(part: int) -> Value:
        zero = m.const(0.0, n)
        return f.select(steep, PI_2[part], f.select(middle, PI_4[part], zero))

    tail = m.mla(t * z, m.polynomial(z, ATAN), turned(1))
    return turned(0) + (t + tail)
