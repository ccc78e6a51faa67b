"""Functions of few digits: for what is rounded to half precision afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import round_to
from isthmus.codegen.llvm_text import F32, Value
from isthmus.codegen.vector_math import Math
from isthmus.codegen.vector_math.special_unit import LOG2_E
from isthmus.dialects import prim
from isthmus.ir import Literal

SMALL = 0.02
"""Below, tanh and erf are the first two terms of their series: the third is less than 2^-25 of the first."""
SQRT_PI = 1.772453850905516
ERF_STEP = 0.3275911
ERF_TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""erf x = 1 - e^-x² Σ aₖ tᵏ, t = 1/(1 + p·x), to 1.5e-7 for x >= 0 (Abramowitz and Stegun 1964, 7.1.26)."""


MILLS_STEP = 0.3
MILLS_TERMS = (
    *(0.12004942446947098, 0.11400952935218811, 0.14312459528446198),
    *(-0.014942802488803864, 0.21427074074745178, -0.07650687545537949),
)
"""e^(x²/2) Φ(-x) = Σ aₖ tᵏ⁺¹, t = 1/(1 + p·x), within 2^-16 of itself for 0 <= x < 15."""
CUBIC_1, CUBIC_3 = 2.302208198144325, 0.1029432395800235
"""2√(2/π)·log₂ e, and 0.044715 of it."""


def is_coarse(op: Operation) -> bool:
    """Whether few digits of an op's result are enough."""
    literal = op.attributes.get("accuracy")
    return isinstance(literal, Literal) and literal.data == "half"


def coarse_exp(m: Math, x: Value) -> Value:
    """Give e^x of f32 within |x| units of the last place, 0 instead of denormals."""
    return _power(m, x * LOG2_E)


def _power(m: Math, x: Value) -> Value:
    """2^x, 0 instead of denormals."""
    return m.each_lane(lambda lane: m.f.call("llvm.nvvm.ex2.approx.ftz.f32", F32, lane), x)


def _reciprocal(m: Math, x: Value) -> Value:
    return m.each_lane(lambda lane: m.f.call("llvm.nvvm.rcp.approx.ftz.f", F32, lane), x)


def coarse_logistic(m: Math, x: Value) -> Value:
    """Give 1/(1 + e^-x) of f32 within 3 + |x| units of the last place, 0 where e^-x is infinite."""
    return _reciprocal(m, _power(m, x * -LOG2_E) + 1.0)


def coarse_tanh(m: Math, x: Value) -> Value:
    """Give tanh x of f32 within 2^-18 of itself: (1 - e)/(1 + e) with e = e^-2|x|."""
    e = _power(m, m.fabs(x) * (-2.0 * LOG2_E))
    large = (1.0 - e) * _reciprocal(m, e + 1.0)
    small = m.mla(x * x, -1.0 / 3.0, 1.0) * x
    return m.f.select(m.f.compare("olt", m.fabs(x), SMALL), small, _signed(m, large, x))


def coarse_erf(m: Math, x: Value) -> Value:
    """Give erf x of f32 within 2e-7, or 2^-16 of itself."""
    size, square = m.fabs(x), x * x
    t = _reciprocal(m, m.mla(size, ERF_STEP, 1.0))
    terms = m.horner(t, ERF_TERMS) * t
    large = m.mla(-terms, _power(m, square * -LOG2_E), 1.0)
    small = m.mla(square, -2.0 / (3.0 * SQRT_PI), 2.0 / SQRT_PI) * x
    return m.f.select(m.f.compare("olt", size, SMALL), small, _signed(m, large, x))


def coarse_silu(m: Math, x: Value) -> Value:
    """Give x/(1 + e^-x) of f32."""
    return x * coarse_logistic(m, x)


def coarse_tanh_gate(m: Math, x: Value) -> Value:
    """Give 1/(1 + e^-2u), u = √(2/π)·(x + 0.044715·x³), within 2^-16 of itself, 0 where e^-2u is infinite."""
    return _reciprocal(m, _power(m, -x * m.mla(x * x, CUBIC_3, CUBIC_1)) + 1.0)


def coarse_gelu_tanh(m: Math, x: Value) -> Value:
    """Give x/(1 + e^-2u)."""
    return x * coarse_tanh_gate(m, x)


def coarse_density(m: Math, x: Value) -> Value:
    """Give e^(-x²/2)/√(2π) within 2^-16 of itself."""
    return _power(m, x * x * (-0.5 * LOG2_E)) * 0.3989422804014327


def coarse_ndtr(m: Math, x: Value) -> Value:
    """Give Φ(x) within 2^-15 of itself."""
    t = _reciprocal(m, m.mla(m.fabs(x), MILLS_STEP, 1.0))
    tail = m.horner(t, MILLS_TERMS) * t * _power(m, x * x * (-0.5 * LOG2_E))
    return m.f.select(m.f.compare("olt", x, 0.0), tail, 1.0 - tail)


def coarse_gelu(m: Math, x: Value) -> Value:
    """Give x·Φ(x)."""
    return x * coarse_ndtr(m, x)


def _signed(m: Math, size: Value, sign: Value) -> Value:
    return m.f.intrinsic("copysign", size, sign)


COARSE: dict[type[Operation], Callable[[Math, Value], Value]] = {
    prim.ExpOp: coarse_exp,
    prim.LogisticOp: coarse_logistic,
    prim.TanhOp: coarse_tanh,
    prim.ErfOp: coarse_erf,
    prim.SiluOp: coarse_silu,
    prim.TanhGateOp: coarse_tanh_gate,
    prim.GeluTanhOp: coarse_gelu_tanh,
    prim.NormalDensityOp: coarse_density,
    prim.NdtrOp: coarse_ndtr,
    prim.GeluOp: coarse_gelu,
}
"""What has a form of few digits."""


def emit_coarse(state: State, op: Operation) -> None:
    """Emit the form of few digits of an op on f32."""
    x = cast(Value, state.get(ir.operands_of(op)[0]))
    (y,) = op.results
    state.set(y, round_to(state.math, COARSE[type(op)](state.math, x), ir.dtype_of(y)))
