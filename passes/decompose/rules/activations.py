"""Activation functions; at a kink the derivative of the formula is torch's."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import axis
from isthmus.passes.decompose.promotion import like, pointwise, wide
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition, library_call


@decomposition("relu.default")
def relu(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.relu(x)


@pointwise("relu6.default", operands=1)
def relu6(e: Emitter, x: SSAValue) -> SSAValue:
    return hardtanh(e, x, 0, 6)


@pointwise("hardtanh.default", operands=1)
def hardtanh(e: Emitter, x: SSAValue, low: Scalar, high: Scalar) -> SSAValue:
    """x held in [low, high]; the derivative at the bounds is 0, a zero at a bound of 0 keeps its sign."""
    held = e.stop_gradient(x)
    floor, ceiling = (
        e.select(e.cmp("eq", x, bound), held, bound) if value == 0 else bound
        for value, bound in ((v, like(e, v, x)) for v in (low, high))
    )
    return _between(e, x, (low, high), (floor, ceiling))


def within(e: Emitter, x: SSAValue, low: Scalar, high: Scalar) -> SSAValue:
    """x held in [low, high]; the derivative at the bounds is 0."""
    return _between(e, x, (low, high), (like(e, low, x), like(e, high, x)))


def _between(e: Emitter, x: SSAValue, bounds: tuple[Scalar, Scalar], instead: tuple[SSAValue, SSAValue]) -> SSAValue:
    low, high = (like(e, b, x) for b in bounds)
    return e.select(e.cmp("le", x, low), instead[0], e.select(e.cmp("ge", x, high), instead[1], x))


@pointwise("hardsigmoid.default", operands=1)
def hardsigmoid(e: Emitter, x: SSAValue) -> SSAValue:
    """(x + 3)/6 held in [0, 1]"""
    return e.div(within(e, e.shifted(x, 3), 0, 6), like(e, 6, x))


@pointwise("hardswish.default", operands=1)
def hardswish(e: Emitter, x: SSAValue) -> SSAValue:
    """x·((x + 3) held in [0, 6])/6"""
    return e.div(e.mul(x, within(e, e.shifted(x, 3), 0, 6)), like(e, 6, x))


@pointwise("leaky_relu.default", operands=1)
def leaky_relu(e: Emitter, x: SSAValue, slope: Scalar) -> SSAValue:
    """x > 0 ? x : slope·x"""
    return e.select(e.cmp("gt", x, e.zeros_like(x)), x, e.mul(x, like(e, slope, x)))


@decomposition("prelu.default", "_prelu_kernel.default")
def prelu(e: Emitter, call: Call, x: SSAValue, weight: SSAValue) -> SSAValue:
    """x > 0 ? x : weight·x with one weight a channel"""
    y, w = wide(e, x), wide(e, weight)
    rank = len(ir.shape_of(x))
    if len(ir.shape_of(w)) == rank and rank != 1:
        spread = e.broadcast_to(w, ir.shape_of(x))
    elif ir.numel(w) == 1 or rank < 2:
        spread = e.broadcast_to(e.reshape(w, ()) if ir.numel(w) == 1 else w, ir.shape_of(x))
    else:
        spread = e.broadcast(e.reshape(w, (ir.shape_of(x)[1],)), ir.shape_of(x), (1,))
    return e.convert(e.select(e.cmp("gt", y, e.zeros_like(y)), y, e.mul(spread, y)), call.dtype())


@decomposition("rrelu.default")
def rrelu(
    e: Emitter, call: Call, x: SSAValue, lower: Scalar, upper: Scalar, training: bool, generator: object
) -> SSAValue:
    """x > 0 ? x : slope·x; the slope is the middle of [lower, upper], while training uniform in it"""
    if not isinstance(lower, (int, float)) or not isinstance(upper, (int, float)):
        raise Refusal("bounds that are tensors are left to the library")
    y = wide(e, x)
    if not training:
        return e.convert(leaky_relu(e, y, (lower + upper) / 2), call.dtype())
    if call.draws_from_library:  # the slopes, and 1 where x > 0
        operands, types = [x, e.zeros_like(x)], [x.type, x.type]
        arguments = (ir.Operand(0), ir.Operand(1), float(lower), float(upper), True, None)
        callee, reason = "rrelu_with_noise_functional.default", "the stream is torch's own"
        slopes = e.convert(library_call(e, callee, operands, arguments, types, reason)[1], ir.dtype_of(y))
        return e.convert(e.mul(y, e.stop_gradient(slopes)), call.dtype())
    slopes = e.shifted(e.scaled(call.uniform(ir.shape_of(x), ir.dtype_of(y)), upper - lower), lower)
    return e.convert(e.select(e.cmp("gt", y, e.zeros_like(y)), y, e.mul(slopes, y)), call.dtype())


@pointwise("elu.default", operands=1)
def elu(e: Emitter, x: SSAValue, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> SSAValue:
    """scale·(x > 0 ? x : alpha·(e^(x·input_scale) - 1))"""
    positive = e.cmp("gt", x, e.zeros_like(x))
    below = e.select(positive, e.zeros_like(x), x)
    curve = e.mul(e.expm1(e.mul(below, like(e, input_scale, x))), e.mul(like(e, alpha, x), like(e, scale, x)))
    return e.select(positive, e.mul(x, like(e, scale, x)), curve)


@pointwise("celu.default", operands=1)
def celu(e: Emitter, x: SSAValue, alpha: Scalar) -> SSAValue:
    """x > 0 ? x : alpha·(e^(x/alpha) - 1)"""
    if not isinstance(alpha, (int, float)):
        raise Refusal("alpha must be a number")
    return elu(e, x, alpha, 1, 1 / alpha)


@pointwise("selu.default", operands=1)
def selu(e: Emitter, x: SSAValue) -> SSAValue:
    """elu with the constants of Klambauer et al., arXiv:1706.02515"""
    return elu(e, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@pointwise("gelu.default", operands=1)
def gelu(e: Emitter, x: SSAValue, approximate: str) -> SSAValue:
    """x·Φ(x) = ½x(1 + erf(x/√2)), or with tanh(√(2/π)(x + 0.044715x³)) for the erf"""
    return e.unary(prim.GeluTanhOp if approximate == "tanh" else prim.GeluOp, x)


@pointwise("silu.default", operands=1)
def silu(e: Emitter, x: SSAValue) -> SSAValue:
    """x / (1 + e⁻ˣ)"""
    return e.mul(x, e.logistic(x)) if ir.is_complex(ir.dtype_of(x)) else e.unary(prim.SiluOp, x)


def softplus_of(e: Emitter, x: SSAValue) -> SSAValue:
    """ln(1 + eˣ), to rounding: x itself where eˣ is beyond the precision; smooth for the derivative."""
    large = e.cmp("gt", x, like(e, 40 if ir.dtype_of(x) == "f64" else 20, x))
    return e.select(large, x, e.log1p(e.exp(e.select(large, e.zeros_like(x), x))))


@pointwise("softplus.default", operands=1)
def softplus(e: Emitter, x: SSAValue, beta: Scalar, threshold: Scalar) -> SSAValue:
    """ln(1 + e^(βx))/β; x where βx > threshold"""
    scaled = e.mul(x, like(e, beta, x))
    large = e.cmp("gt", scaled, like(e, threshold, x))
    inner = e.select(large, e.zeros_like(x), scaled)
    return e.select(large, x, e.div(e.log1p(e.exp(inner)), like(e, beta, x)))


def log_sigmoid_of(e: Emitter, x: SSAValue) -> SSAValue:
    """ln(1/(1 + e⁻ˣ)) = -softplus(-x)"""
    return e.neg(softplus_of(e, e.neg(x)))


@pointwise("log_sigmoid.default", operands=1)
def log_sigmoid(e: Emitter, x: SSAValue) -> SSAValue:
    return log_sigmoid_of(e, x)


@decomposition("log_sigmoid_forward.default")
def log_sigmoid_forward(e: Emitter, call: Call, x: SSAValue) -> tuple[SSAValue, ...]:
    """With e^-|x|, which torch keeps for backward on a CPU; empty elsewhere"""
    z = wide(e, x)
    y = e.convert(log_sigmoid_of(e, z), call.dtype())
    if len(call.types) == 1:
        return (y,)
    if call.shape(1) != call.shape():
        return y, e.const(0, call.shape(1), call.dtype(1))
    return y, e.convert(e.exp(e.neg(e.abs(z))), call.dtype(1))


@pointwise("mish.default", operands=1)
def mish(e: Emitter, x: SSAValue) -> SSAValue:
    """x·tanh(ln(1 + eˣ))"""
    return e.mul(x, e.tanh(softplus_of(e, x)))


@pointwise("threshold.default", operands=1)
def threshold(e: Emitter, x: SSAValue, limit: Scalar, value: Scalar) -> SSAValue:
    """x ≤ limit ? value : x"""
    return e.select(e.cmp("le", x, like(e, limit, x)), like(e, value, x), x)


def _within(e: Emitter, x: SSAValue, bound: Scalar) -> SSAValue:
    limit = like(e, bound, x)
    return e.and_(e.cmp("ge", x, e.neg(limit)), e.cmp("le", x, limit))


@pointwise("softshrink.default", operands=1)
def softshrink(e: Emitter, x: SSAValue, bound: Scalar) -> SSAValue:
    """x moved toward 0 by the bound; 0 within it"""
    limit = like(e, bound, x)
    moved = e.select(e.cmp("gt", x, e.zeros_like(x)), e.sub(x, limit), e.add(x, limit))
    return e.select(_within(e, x, bound), e.zeros_like(x), moved)


@pointwise("hardshrink.default", operands=1)
def hardshrink(e: Emitter, x: SSAValue, bound: Scalar) -> SSAValue:
    """0 within the bound, x outside"""
    return e.select(_within(e, x, bound), e.zeros_like(x), x)


@decomposition("glu.default")
def glu(e: Emitter, call: Call, x: SSAValue, dim: int) -> SSAValue:
    """a·σ(b) for the halves a, b of x"""
    at = axis(x, dim)
    half = call.shape()[at]
    a, b = (wide(e, e.slice(x, at, k * half, (k + 1) * half)) for k in range(2))
    return e.convert(e.mul(a, e.logistic(b)), call.dtype())
