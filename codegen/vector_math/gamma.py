"""Log-gamma and digamma."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I32, Value
from isthmus.codegen.vector_math.core import NAN, Math, in_double
from isthmus.codegen.vector_math.power import double_log

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
# π·cot πr = 1/r - r·C(r²) with C = Σ 2ζ(2k + 2)·r²ᵏ: three terms as sums of two, then 2/(1 - r²) + Σ 2(ζ(2k) - 1)·r²ᵏ⁻⁸
COTANGENT = (
    (3.289868133696453, 6.081344700796952e-17),
    (2.1646464674222763, 9.49702408571073e-17),
    (2.0346861239688985, -1.9517198332883063e-16),
)
COTANGENT_REST = (
    0.00815471239588868,
    0.0019891502556361705,
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


@in_double
def lgamma(m: Math, x: Value) -> Value:
    """Give ln |Γ(x)| by libm's reentrant function, lane by lane."""
    sign = m.f.slot(I32)
    return m.each_lane(lambda lane: m.f.call("lgamma_r", lane.type, lane, sign), x)


@in_double
def digamma(m: Math, x: Value) -> Value:
    """Give ψ(x), the terms added to twice the precision: they cancel where ψ is small.

    Below 0 it is ψ(|x|) + 1/|x| + π·cot π|x|; near the positive root a polynomial times the distance from it.
    """
    f = m.f
    a = m.fabs(x)
    value = _positive(m, a)
    negative = f.compare("olt", x, 0.0)
    reflected = _sum(m, _sum(m, value, _reciprocal(m, (a, m.const(0.0, a)))), _cotangent(m, a))
    high, low = (f.select(negative, r, v) for r, v in zip(reflected, value, strict=True))
    result = high + low
    near = f.compare("ogt", x, 1.0) & f.compare("olt", x, 2.0)
    result = f.select(near, _by_root(m, f.select(near, x, 1.5)), result)
    huge = f.compare("ogt", x, 1.0e17)
    result = f.select(huge, double_log(m, f.select(huge, x, 1.0))[0], result)
    result = f.select(f.compare("olt", a, 1.0e-290), -1.0 / x, result)
    pole = f.compare("oeq", f.intrinsic("trunc", a), a) & f.compare("olt", x, 0.0)
    return f.select(pole | m.is_nan(x), NAN, result)


def _positive(m: Math, a: Value) -> Pair:
    """Give ψ(a), 1e-290 < a < 1e17: the recurrence ψ(y) = ψ(y + 1) - 1/y up to 10, then the asymptotic series."""
    f = m.f
    zero = m.const(0.0, a)
    y: Pair = (a, zero)
    total: Pair = (zero, zero)
    for _ in range(10):
        low = f.compare("olt", y[0], 10.0)
        inverse = _reciprocal(m, y)
        less = _sum(m, total, (-inverse[0], -inverse[1]))
        more = m.two_sum(y[0], m.const(1.0, a))
        total = f.select(low, less[0], total[0]), f.select(low, less[1], total[1])
        y = f.select(low, more[0], y[0]), f.select(low, y[1] + more[1], y[1])
    inverse = _reciprocal(m, y)
    square = inverse[0] * inverse[0]
    log = double_log(m, y[0])
    total = _sum(m, total, (log[0], m.mla(y[1], inverse[0], log[1])))
    total = _sum(m, total, (inverse[0] * -0.5, inverse[1] * -0.5))
    return total[0], total[1] - square * m.horner(square, DIGAMMA)


def _by_root(m: Math, x: Value) -> Value:
    """Give (x - root)·P(x - 3/2) for 1 < x < 2."""
    t = x - 1.5
    high, low = m.fast_two_sum(m.const(SLOPE[0], t), t * m.polynomial(t, SLOPE[1:]))
    distance = (x - ROOT[0]) - ROOT[1]
    return m.mla(distance, high, distance * low)


def _cotangent(m: Math, a: Value) -> Pair:
    """Give π·cot πa."""
    r = a - m.f.intrinsic("rint", a)
    z = m.two_product(r, r)
    c: Pair = (2.0 / (1.0 - z[0]) + m.polynomial(z[0], COTANGENT_REST), m.const(0.0, r))
    for high, low in reversed(COTANGENT):
        c = _product(m, z, c)
        total, error = m.two_sum(m.const(high, r), c[0])
        c = m.fast_two_sum(total, error + (c[1] + low))
    c = _product(m, (r, m.const(0.0, r)), c)
    return _sum(m, _reciprocal(m, (r, m.const(0.0, r))), (-c[0], -c[1]))


def _reciprocal(m: Math, y: Pair) -> Pair:
    """Give 1/y."""
    q = 1.0 / y[0]
    product, error = m.two_product(q, y[0])
    return q, (((1.0 - product) - error) - q * y[1]) * q


def _product(m: Math, a: Pair, b: Pair) -> Pair:
    product, error = m.two_product(a[0], b[0])
    return m.fast_two_sum(product, m.mla(a[0], b[1], m.mla(a[1], b[0], error)))


def _sum(m: Math, a: Pair, b: Pair) -> Pair:
    total, error = m.two_sum(a[0], b[0])
    return m.fast_two_sum(total, error + (a[1] + b[1]))
