"""Log-gamma and digamma of f64."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import INFINITY, NAN, Math
from isthmus.codegen.vector_math.gamma_below import digamma_near_zero, log_gamma_near_zero
from isthmus.codegen.vector_math.gamma_far import digamma_far_down
from isthmus.codegen.vector_math.gamma_terms import (
    HUGE,
    TINY,
    add,
    by_root,
    cotangent,
    log_gamma,
    mirrored,
    positive,
    reciprocal,
)
from isthmus.codegen.vector_math.power import double_log


def lgamma(m: Math, x: Value) -> Value:
    """Give ln |Γ(x)|; below 0 ln(π/(a·|sin πa|)) - ln Γ(a), a = |x|."""
    f = m.f
    a = m.fabs(x)
    right = log_gamma(m, a)
    result = m.replaced(right[0] + right[1], f.compare("olt", x, 0.0), lambda: mirrored(m, a, right))
    result = log_gamma_near_zero(m, x, result)
    extreme = f.compare("ogt", x, HUGE) | f.compare("olt", a, TINY)

    def first_term() -> Value:
        log = double_log(m, a)[0]
        return f.select(f.compare("olt", a, TINY), -log, a * (log - 1.0))

    result = m.replaced(result, extreme, first_term)
    pole = f.compare("oeq", f.intrinsic("trunc", a), a) & f.compare("ole", x, 0.0)
    return f.select(pole | f.compare("oeq", a, INFINITY), INFINITY, result)


def digamma(m: Math, x: Value) -> Value:
    """Give ψ(x) of doubles, the terms added to twice the precision: they cancel where ψ is small.

    Below 0 it is ψ(|x|) + 1/|x| + π·cot π|x|; near the positive root a polynomial times the distance from it.
    """
    f = m.f
    a = m.fabs(x)
    value = positive(m, a)

    def mirrored() -> Value:
        high, low = add(m, add(m, value, reciprocal(m, (a, m.const(0.0, a)))), cotangent(m, a))
        return high + low

    result = m.replaced(value[0] + value[1], f.compare("olt", x, 0.0), mirrored)
    result = digamma_far_down(m, x, digamma_near_zero(m, x, result))
    near = f.compare("ogt", x, 1.0) & f.compare("olt", x, 2.0)
    result = f.select(near, by_root(m, f.select(near, x, 1.5)), result)
    huge = f.compare("ogt", x, 1.0e17)
    result = f.select(huge, double_log(m, f.select(huge, x, 1.0))[0], result)
    result = f.select(f.compare("olt", a, 1.0e-290), -1.0 / x, result)
    pole = f.compare("oeq", f.intrinsic("trunc", a), a) & f.compare("olt", x, 0.0)
    return f.select(pole | m.is_nan(x), NAN, result)
