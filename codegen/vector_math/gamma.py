"""Log-gamma and digamma."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I32, Value
from isthmus.codegen.vector_math.core import INFINITY, NAN, Math, in_double
from isthmus.codegen.vector_math.logarithm import log
from isthmus.codegen.vector_math.trigonometric import tan

# digamma's asymptotic series in 1/x²: B₂ₖ/2k
DIGAMMA = (
    1 / 12,
    -1 / 120,
    1 / 252,
    -1 / 240,
    1 / 132,
    -691 / 32760,
    1 / 12,
)


def lgamma(m: Math, x: Value) -> Value:
    """Give ln |Γ(x)| by libm's reentrant function, lane by lane."""
    name = "lgammaf_r" if x.type.scalar == "float" else "lgamma_r"
    sign = m.f.slot(I32)
    return m.each_lane(lambda lane: m.f.call(name, lane.type, lane, sign), x)


@in_double
def digamma(m: Math, x: Value) -> Value:
    """Give ψ(x): ψ(1 - x) - π/tan πx below 0, recurrence up to 10, then the asymptotic series."""
    f = m.f
    negative = f.compare("olt", x, 0.0)
    y = f.select(negative, 1.0 - x, x)
    result = m.const(0.0, x)
    for _ in range(10):
        low = f.compare("olt", y, 10.0)
        result = f.select(low, result - 1.0 / y, result)
        y = f.select(low, y + 1.0, y)
    inverse = 1.0 / (y * y)
    series = inverse * m.horner(inverse, DIGAMMA)
    series = f.select(f.compare("olt", y, 1.0e17), series, 0.0)
    result = result + (log(m, y) - 0.5 / y - series)
    fraction = x - f.intrinsic("trunc", x)
    reflected = result - 3.141592653589793 / tan(m, fraction * 3.141592653589793)
    result = f.select(negative, reflected, result)
    pole = negative & f.compare("oeq", fraction, 0.0)
    result = f.select(pole, NAN, result)
    return f.select(f.compare("oeq", x, 0.0), m.copysign(m.const(INFINITY, x), -x), result)
