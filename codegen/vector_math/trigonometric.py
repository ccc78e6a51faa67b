"""Trigonometric functions: x = j·π/2 + r with |r| <= π/4; arguments beyond 2^20 go to libm where there is one.

f32 is evaluated in f64 with shorter polynomials: the reduction needs the digits anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import ROUNDING, Math
from isthmus.codegen.vector_math.far_angles import near_angle

TWO_OVER_PI = 0.6366197723675814
# π/2 in parts of 33 bits, each with its remainder (fdlibm): j·part is exact up to j = 2^20.
PIO2_1 = 1.57079632673412561417e00
PIO2_1_REST = 6.07710050650619224932e-11
PIO2_2 = 6.07710050630396597660e-11
PIO2_2_REST = 2.02226624879595063154e-21
FARTHEST = 1.6e6

Pair = tuple[Value, Value | None]
"""A number as a sum of two; without the second where one is enough."""

# sin r = r + r³·P(r²), error 2^-63; cos r = 1 - r²/2 + r⁴·P(r²), error 2^-64: for f64
SIN = (
    -0.16666666666666666,
    0.008333333333333038,
    -0.0001984126984095588,
    2.7557319069612567e-06,
    -2.5052069607352e-08,
    1.60541274981975e-10,
    -7.379732025273684e-13,
)
COS = (
    0.0416666666666666,
    -0.0013888888888874463,
    2.480158728965877e-05,
    -2.755731439578106e-07,
    2.0875728375506697e-09,
    -1.1359878304512549e-11,
)
# The same to 2^-37 and 2^-43: for f32
SIN_SHORT = (
    -0.16666666641527186,
    0.008333329373310426,
    -0.00019839330584300296,
    2.7182697556117682e-06,
)
COS_SHORT = (
    0.041666666622675604,
    -0.0013888883740028485,
    2.479951642306214e-05,
    -2.72099375295132e-07,
)


def sin(m: Math, x: Value) -> Value:
    """Give sin x."""
    return _guarded(m, "sin", x, lambda t, s, c: _signed(m, t, _pick(m, t, s[0], c[0])))


def cos(m: Math, x: Value) -> Value:
    """Give cos x = sin(x + π/2): the next quadrant."""

    def result(t: Value, s: Pair, c: Pair) -> Value:
        following = m.bits(t) + 1
        return _signed(m, m.from_bits(following, t), _pick(m, t, c[0], s[0]))

    return _guarded(m, "cos", x, result)


def tan(m: Math, x: Value) -> Value:
    """Give tan x = sin r/cos r, or -cos r/sin r in odd quadrants."""

    def result(t: Value, s: Pair, c: Pair) -> Value:
        n, d = ((_pick(m, t, a, b)) for a, b in ((s[0], -c[0]), (c[0], s[0])))
        quotient = n / d
        if s[1] is None or c[1] is None:
            return quotient
        product, error = m.two_product(quotient, d)
        rest = _pick(m, t, s[1], -c[1]) - quotient * _pick(m, t, c[1], s[1])
        return quotient + (((n - product) - error) + rest) / d

    return _guarded(m, "tan", x, result)


def _guarded(m: Math, name: str, x: Value, combine: Callable[[Value, Pair, Pair], Value]) -> Value:
    """Evaluate by polynomials; lanes with a huge argument are replaced by libm's result."""
    double = x.type.scalar == "double"
    wide = x if double else m.widen(x)
    turns = None
    if not m.has_libm:
        wide, turns = near_angle(m, wide, FARTHEST)
    t, s, c = (_reduce_f64 if double else _reduce_f32)(m, wide)
    value = combine(t if turns is None else m.from_bits(m.bits(t) + turns, t), s, c)
    if name != "cos":  # sin(-0.0) = -0.0, and a denormal is its own sine
        value = m.f.select(m.f.compare("olt", m.fabs(wide), 2.0**-200), wide, value)
    value = value if double else m.narrow(value)
    return _replace_far(m, name, x, value) if m.has_libm else value


def _replace_far(m: Math, name: str, x: Value, value: Value) -> Value:
    far = m.f.compare("ogt", m.fabs(x), FARTHEST)
    slot = m.f.slot(x.type)
    m.f.store(value, slot, 64)
    with m.f.when(m.any(far)):
        exact = m.libm(name, m.f.select(far, x, 0.0))
        m.f.store(m.f.select(far, exact, value), slot, 64)
    return m.f.load(slot, x.type, 64)


def _reduce_f32(m: Math, x: Value) -> tuple[Value, Pair, Pair]:
    """Give t, whose low bits are j, and sin r, cos r to the precision of f32."""
    t = m.mla(x, TWO_OVER_PI, ROUNDING["double"])
    j = t - ROUNDING["double"]
    r = m.mla(j, -PIO2_1_REST, m.mla(j, -PIO2_1, x))
    z = r * r
    s = m.mla(z * r, m.horner(z, SIN_SHORT), r)
    c = m.mla(z * z, m.horner(z, COS_SHORT), m.mla(z, -0.5, 1.0))
    return t, (s, None), (c, None)


def _reduce_f64(m: Math, x: Value) -> tuple[Value, Pair, Pair]:
    """Give t, whose low bits are j, and sin r, cos r with r = y + w to 119 bits (fdlibm), each a sum of two."""
    t = m.mla(x, TWO_OVER_PI, ROUNDING["double"])
    j = t - ROUNDING["double"]
    first = x - j * PIO2_1
    second, error = m.two_sum(first, -(j * PIO2_2))
    rest = m.mla(j, -PIO2_2_REST, error)
    y, w = m.fast_two_sum(second, rest)
    z = y * y
    cube = z * y
    # sin(y + w) = y + (y³·P + w·(1 - z/2)) and cos(y + w) = cos y - y·w
    s = m.fast_two_sum(y, m.mla(cube, m.horner(z, SIN), m.mla(z * w, -0.5, w)))
    half = z * 0.5
    one = 1.0 - half
    c = m.fast_two_sum(one, ((1.0 - one) - half) + m.mla(z * z, m.horner(z, COS), -(y * w)))
    return t, s, c


def _pick(m: Math, t: Value, even: Value, odd: Value) -> Value:
    """Choose by the lowest bit of j."""
    is_odd = m.f.compare("ne", m.bits(t) & 1, 0)
    return m.f.select(is_odd, odd, even)


def _signed(m: Math, t: Value, value: Value) -> Value:
    """Negate where the second bit of j is set."""
    sign = (m.bits(t) & 2) << 62
    return m.from_bits(m.bits(value) ^ sign, value)
