"""Mathematical functions in line, on f32 and f64 with any number of lanes.

Every function is a rule of a `Math`, which emits into one function for one target. All are
polynomials of this package but sin, cos, tan beyond |x| = 1.6e6, which call the C
library lane by lane where there is one, and the remainder, which LLVM turns into such calls.
"""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math import gamma, gamma_f32
from isthmus.codegen.vector_math.core import Binary, Math, Unary
from isthmus.codegen.vector_math.error import erf, erfc, erfinv
from isthmus.codegen.vector_math.exponential import cosh, exp, exp2, expm1, logistic, sinh, tanh
from isthmus.codegen.vector_math.gates import gelu, gelu_tanh, ndtr, normal_density, silu, tanh_gate
from isthmus.codegen.vector_math.inverse import acos, asin, atan, atan2
from isthmus.codegen.vector_math.logarithm import acosh, asinh, atanh, log, log1p, log2, log10
from isthmus.codegen.vector_math.polygamma import polygamma
from isthmus.codegen.vector_math.power import pow
from isthmus.codegen.vector_math.rounding import (
    ceil,
    copysign,
    floor,
    nextafter,
    remainder,
    round_even,
    rsqrt,
    sqrt,
    trunc,
)
from isthmus.codegen.vector_math.trigonometric import cos, sin, tan


def lgamma(m: Math, x: Value) -> Value:
    """Give ln |Γ(x)|."""
    return gamma_f32.lgamma(m, x) if x.type.scalar == "float" else gamma.lgamma(m, x)


def digamma(m: Math, x: Value) -> Value:
    """Give ψ(x)."""
    return gamma_f32.digamma(m, x) if x.type.scalar == "float" else gamma.digamma(m, x)


UNARY: dict[str, Unary] = {
    rule.__name__: rule
    for rule in (
        *(exp, exp2, expm1, log, log2, log10, log1p, logistic),
        *(sin, cos, tan, asin, acos, atan),
        *(sinh, cosh, tanh, asinh, acosh, atanh),
        *(erf, erfc, erfinv, lgamma, digamma),
        *(silu, gelu, gelu_tanh, tanh_gate, ndtr, normal_density),
        *(sqrt, rsqrt, floor, ceil, round_even, trunc),
    )
}
"""Functions of one number by name."""

BINARY: dict[str, Binary] = {rule.__name__: rule for rule in (pow, atan2, copysign, nextafter, remainder)}
"""Functions of two numbers by name."""

__all__ = ["BINARY", "UNARY", "Binary", "Math", "Unary", "polygamma"]
