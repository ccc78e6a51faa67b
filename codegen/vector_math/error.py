"""The error function, its complement and its inverse."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import INFINITY, Coefficients, Math, in_double
from isthmus.codegen.vector_math.exponential import EXP, TWICE, bounded_exp, scale, split_exactly
from isthmus.codegen.vector_math.logarithm import log

# erf x = x + x·P(x²) for |x| <= 1, error 2^-29 and 2^-56; fitted by fit_polynomials.py
ERF: Coefficients = {
    "float": (
        0.12837916612625122,
        -0.3761262595653534,
        0.11283578723669052,
        -0.026853347197175026,
        0.005187162198126316,
        -0.0007997851935215294,
        7.806890789652243e-05,
    ),
    "double": (
        0.12837916709551256,
        -0.3761263890318341,
        0.11283791670942821,
        -0.026866170643266598,
        0.005223977609460898,
        -0.0008548326154623681,
        0.00012055301571533036,
        -1.492488115589707e-05,
        1.6449330128847062e-06,
        -1.6223654034932848e-07,
        1.3787045661390342e-08,
        -7.922013747579743e-10,
    ),
}
# erf x = 1 - exp(-P(x)) beyond, until it is 1: P fits -ln erfc with the error of erf, 2^-34, 2^-59
ERF_TAIL: Coefficients = {
    "float": (
        -0.00017468440637458116,
        1.1295149326324463,
        0.6333469152450562,
        0.10828004032373428,
        -0.025119351223111153,
        0.004171008709818125,
        -0.00043444399489089847,
        2.109254455717746e-05,
    ),
    "double": (
        1.7960787496634092e-07,
        1.1283773293848263,
        0.6366284883691604,
        0.10274725365739819,
        -0.019078157898663177,
        -0.00028048572645128603,
        0.0017689976967045593,
        -0.0006411702894434803,
        4.48209035627289e-05,
        7.036742360505435e-05,
        -4.503768759586493e-05,
        1.651404008502559e-05,
        -4.327071095246385e-06,
        8.505816453508702e-07,
        -1.2570649157189842e-07,
        1.3626939207220205e-08,
        -1.0257250853350845e-09,
        4.79618644173225e-11,
        -1.0496624695547452e-12,
    ),
}
ERF_IS_ONE = {"float": 4.0, "double": 6.0}
# (1 + 2x)·e^(x²)·erfc x in powers of (x - 4)/(x + 4), x >= 0 (Shepherd and Laframboise 1981)
ERFCX = (
    1.2329951186255526,
    -0.13962111684056294,
    0.015379652102618954,
    0.06809705425474179,
    -0.10103906603625401,
    0.09373283499667474,
    -0.06633036581363852,
    0.037167515563645,
    -0.016197734035915855,
    0.005031969753708664,
    -0.0007577734885238421,
    -0.0001992555442269373,
    0.00015062281008885754,
    -2.4402867476305803e-05,
    -1.1226116326916074e-05,
    5.716833845732946e-06,
    3.0314499791879604e-07,
    -8.332064572754765e-07,
    6.156510955481076e-08,
    1.1346161991008466e-07,
    -7.706976734135415e-09,
    -1.292392485656055e-08,
    -1.5691443709127368e-09,
)
ERFC_IS_ZERO = 28.0
# erfinv x = x·P(w) with w = -ln(1 - x²): in w - 25/8 below 6.25, then in √w - 13/4, then √w - 5
ERFINV = (
    1.6536545626831027,
    0.24015818242558826,
    -0.006033670871427754,
    -0.000740702534153955,
    0.00018673420802425592,
    -1.3882523395791372e-05,
    -1.3654691844344196e-06,
    4.234788190775101e-07,
    -2.907038277504751e-08,
    -4.1126619778e-09,
    1.0512183984476224e-09,
    -5.414238994360421e-11,
    -1.2976958285349764e-11,
    2.6303545656097025e-12,
    -8.117008687956072e-14,
    -3.998977743455948e-14,
    6.594699944984586e-15,
    -4.2865706698134726e-17,
    -1.3003906214994404e-16,
    1.575978491680069e-17,
    1.144410954582439e-18,
    -3.5755014610347204e-19,
    -1.0090648139330802e-21,
    3.3757557321366834e-21,
)
ERFINV_MIDDLE = (
    3.0838856104922208,
    1.0052589676941655,
    0.005370914553555092,
    -0.0037512085082238235,
    0.0024914420979533485,
    -0.0016882755354774494,
    0.0009532893416652314,
    -0.0003550378133773924,
    2.4031511837543914e-05,
    6.828711424330026e-05,
    -4.732067362749835e-05,
    1.2465042501046221e-05,
    2.9325492514979625e-06,
    -3.98574504822656e-06,
    1.4816725370541535e-06,
    -2.755353730283707e-08,
    -2.4561349693651575e-07,
    1.3153003716905112e-07,
    -2.0816276011732185e-08,
    -1.5284203037293896e-08,
    7.644681332597898e-09,
)
ERFINV_TAIL = (
    4.849906401408584,
    1.0103004648645457,
    -0.00013871931837563189,
    -0.0002150301198414641,
    7.599527797156571e-05,
    -1.9681770517895798e-05,
    4.526053843845141e-06,
    -9.930304829916552e-07,
    2.2904594586030665e-07,
    -6.755267727934997e-08,
    2.9038615432899087e-08,
    -1.5261478078359574e-08,
    7.787562033732868e-09,
    -3.4646782551057367e-09,
    1.3493440401247004e-09,
    -4.412181437451656e-10,
    5.1912474373345525e-11,
    4.369419157323771e-11,
    -1.650451744258088e-11,
)


def erf(m: Math, x: Value) -> Value:
    """Give 2/√π ∫₀ˣ e⁻ᵗ² dt."""
    scalar = x.type.scalar
    a = m.fabs(x)
    near = m.mla(x, m.polynomial(x * x, ERF[scalar]), x)
    bounded = m.at_most(a, ERF_IS_ONE[scalar])
    far = 1.0 - bounded_exp(m, -m.polynomial(bounded, ERF_TAIL[scalar]))
    return m.f.select(m.f.compare("ogt", a, 1.0), m.copysign(far, x), near)


@in_double
def erfc(m: Math, x: Value) -> Value:
    """Give 1 - erf x without cancellation: e^(-x²) and its factor each as a sum of two."""
    f = m.f
    magnitude = m.fabs(x)
    near = 1.0 - m.mla(x, m.polynomial(x * x, ERF["double"]), x)
    a = m.at_most(magnitude, ERFC_IS_ZERO)
    high, low = m.two_product(a, a)
    t, reduced, g = split_exactly(m, -high, TWICE["double"])
    g = g - low
    whole = reduced + g
    e = m.fast_two_sum(m.const(1.0, x), reduced)
    e = m.fast_two_sum(e[0], e[1] + m.mla(whole * whole, m.polynomial(whole, EXP["double"]), g))
    place = (a - 4.0) / (a + 4.0)
    p = m.fast_two_sum(m.const(ERFCX[0], x), place * m.polynomial(place, ERFCX[1:]))
    d = m.two_sum(m.const(1.0, x), a + a)
    ratio = p[0] / d[0]
    product, error = m.two_product(ratio, d[0])
    rest = (((p[0] - product) - error) + (p[1] - ratio * d[1])) / d[0]
    right = scale(m, m.mla(e[0], ratio, m.mla(e[0], rest, e[1] * ratio)), t)
    far = f.select(f.compare("olt", x, 0.0), 2.0 - right, right)
    return f.select(f.compare("olt", magnitude, 0.5), near, far)


@in_double
def erfinv(m: Math, x: Value) -> Value:
    """Give y with erf y = x; ±∞ at ±1, NaN beyond."""
    f = m.f
    w = -log(m, (1.0 - x) * (x + 1.0))
    root = m.sqrt(w)
    near = _from_first(m, w - 3.125, ERFINV)
    middle = _from_first(m, root - 3.25, ERFINV_MIDDLE)
    tail = _from_first(m, root - 5.0, ERFINV_TAIL)
    far = [f.select(f.compare("ogt", w, 16.0), b, a) for a, b in zip(middle, tail, strict=True)]
    high, low = (f.select(f.compare("ogt", w, 6.25), b, a) for a, b in zip(near, far, strict=True))
    inside = m.copysign(m.mla(x, high, x * low), x)
    return f.select(f.compare("oeq", m.fabs(x), 1.0), x * INFINITY, inside)


def _from_first(m: Math, t: Value, coefficients: tuple[float, ...]) -> tuple[Value, Value]:
    """Give c₀ + t·(c₁ + t·P(t)) as a sum of two."""
    first, second, *others = coefficients
    q = m.fast_two_sum(m.const(second, t), t * m.polynomial(t, others))
    product, error = m.two_product(t, q[0])
    total, rest = m.fast_two_sum(m.const(first, t), product)
    return total, rest + m.mla(t, q[1], error)
