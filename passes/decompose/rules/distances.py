"""Distances and similarities between vectors."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import at_least_1d, axis
from isthmus.passes.decompose.promotion import common_dtype, inside, like, wide
from isthmus.passes.decompose.rules.linear_algebra import broadcast_shapes
from isthmus.passes.decompose.rules.reductions import norm
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition


def operands(e: Emitter, *values: SSAValue) -> list[SSAValue]:
    """Values broadcast together in the dtype that torch computes in."""
    dtype = inside(common_dtype(values))
    shape = ir.shape_of(values[0])
    for v in values[1:]:
        shape = broadcast_shapes(shape, ir.shape_of(v))
    return [e.broadcast_to(e.convert(v, dtype), shape) for v in values]


def distance(e: Emitter, a: SSAValue, b: SSAValue, order: Scalar, eps: Scalar) -> SSAValue:
    """‖a - b + ε‖ over the last dimension"""
    x, y = operands(e, a, b)
    if not ir.is_differentiable(ir.dtype_of(x)):
        x, y = (e.convert(v, "f32") for v in (x, y))
    difference = e.sub(x, y)
    return norm(e, e.add(difference, like(e, eps, difference)), _number(order), (len(ir.shape_of(x)) - 1,))


@decomposition("pairwise_distance.default")
def pairwisedistance(
    e: Emitter, call: Call, a: SSAValue, b: SSAValue, order: Scalar, eps: Scalar, keepdim: bool
) -> SSAValue:
    return e.convert(e.reshape(distance(e, a, b, order, eps), call.shape()), call.dtype())


@decomposition("cosine_similarity.default")
def cosine_similarity(e: Emitter, call: Call, a: SSAValue, b: SSAValue, dim: int, eps: Scalar) -> SSAValue:
    """Σ (a/‖a‖)(b/‖b‖), the norms not below ε; the norms held for the derivative as torch does"""
    x, y = operands(e, a, b)
    x, y = at_least_1d(e, x), at_least_1d(e, y)
    at = axis(x, dim)
    total = e.sum(e.mul(*(_unit(e, v, at, eps) for v in (x, y))), (at,))
    return e.convert(e.reshape(total, call.shape()), call.dtype())


def _unit(e: Emitter, x: SSAValue, dim: int, eps: Scalar) -> SSAValue:
    length = norm(e, x, 2.0, (dim,))
    low = like(e, eps, length)
    held = e.select(e.cmp("lt", length, low), low, length)
    return e.div(x, e.broadcast(held, ir.shape_of(x), [d for d in range(len(ir.shape_of(x))) if d != dim]))


@decomposition("dist.default")
def dist(e: Emitter, call: Call, a: SSAValue, b: SSAValue, order: Scalar) -> SSAValue:
    """‖a - b‖ over all elements"""
    x, y = operands(e, a, b)
    difference = e.sub(x, y)
    return e.convert(norm(e, difference, _number(order), range(len(ir.shape_of(difference)))), call.dtype())


@decomposition("cdist.default", "_cdist_forward.default")
def cdist(e: Emitter, call: Call, a: SSAValue, b: SSAValue, order: Scalar, mode: int | None) -> SSAValue:
    """y[..., i, j] = ‖a[..., i, :] - b[..., j, :]‖"""
    *_, rows, columns = call.shape()
    width = ir.shape_of(a)[-1]
    table = (*call.shape(), width)
    x = e.broadcast_to(e.reshape(wide(e, a), (*ir.shape_of(a)[:-2], rows, 1, width)), table)
    y = e.broadcast_to(e.reshape(wide(e, b), (*ir.shape_of(b)[:-2], 1, columns, width)), table)
    return e.convert(norm(e, e.sub(x, y), _number(order), (len(table) - 1,)), call.dtype())


@decomposition("renorm.default")
def renorm(e: Emitter, call: Call, x: SSAValue, order: Scalar, dim: int, maximum: Scalar) -> SSAValue:
    """Slices along dim whose norm is more than the maximum scaled down to it"""
    at, y = axis(x, dim), wide(e, x)
    over = [d for d in range(len(ir.shape_of(x))) if d != at]
    length = norm(e, y, _number(order), over)
    limit = like(e, maximum, length)
    factor = e.div(limit, e.add(length, like(e, 1e-7, length)))
    scale = e.select(e.cmp("gt", length, limit), factor, e.const_like(1, length))
    return e.convert(e.mul(y, e.broadcast(scale, ir.shape_of(y), (at,))), call.dtype())


@decomposition("_weight_norm.default")
def weight_norm(e: Emitter, call: Call, v: SSAValue, g: SSAValue, dim: int) -> SSAValue:
    """v·g/‖v‖, one norm for each index of dim (one for all for dim = -1)"""
    over = [d for d in range(len(ir.shape_of(v))) if d != dim]
    length = norm(e, v, 2.0, over)
    factor = e.div(e.reshape(g, ir.shape_of(length)), length)
    return e.mul(v, e.broadcast(factor, ir.shape_of(v), () if dim == -1 else (dim,)))


def _number(order: Scalar) -> float:
    if not isinstance(order, (int, float)):
        raise Refusal("an order that is a tensor is left to the library")
    return float(order)
