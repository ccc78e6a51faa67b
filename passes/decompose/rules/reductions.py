"""Sums, extrema, moments and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import axes, axis, broadcast_over, count, kept
from isthmus.passes.decompose.promotion import like, refuse_complex, wide
from isthmus.passes.decompose.rules.logic import truth
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim

Dims = Sequence[int] | int | None


def accumulated(e: Emitter, x: SSAValue, kind: str, dims: Sequence[int]) -> SSAValue:
    """Combine along dims, in float32 for narrower floats; sums of booleans are or, products and."""
    if ir.dtype_of(x) == "i1":
        kind = {"add": "or", "mul": "and"}.get(kind, kind)
    return e.reduce(kind, wide(e, x), dims)


@decomposition("sum.default")
def sum_all(e: Emitter, call: Call, x: SSAValue, dtype: str | None) -> SSAValue:
    return sum_dims(e, call, x, None, False, dtype)


@decomposition("sum.dim_IntList")
def sum_dims(e: Emitter, call: Call, x: SSAValue, dims: Dims, keepdim: bool, dtype: str | None) -> SSAValue:
    y = e.convert(x, call.dtype()) if dtype or not ir.is_differentiable(ir.dtype_of(x)) else x
    return e.convert(kept(e, accumulated(e, y, "add", axes(x, dims)), call), call.dtype())


@decomposition("nansum.default")
def nansum(e: Emitter, call: Call, x: SSAValue, dims: Dims, keepdim: bool, dtype: str | None) -> SSAValue:
    return sum_dims(e, call, _without_nan(e, x), dims, keepdim, dtype)


def _without_nan(e: Emitter, x: SSAValue) -> SSAValue:
    return e.select(e.is_nan(x), e.zeros_like(x), x) if ir.is_float(ir.dtype_of(x)) else x


@decomposition("mean.default")
def mean_all(e: Emitter, call: Call, x: SSAValue, dtype: str | None) -> SSAValue:
    return mean_dims(e, call, x, None, False, dtype)


@decomposition("mean.dim")
def mean_dims(e: Emitter, call: Call, x: SSAValue, dims: Dims, keepdim: bool, dtype: str | None) -> SSAValue:
    """Σx / n"""
    over = axes(x, dims)
    total = accumulated(e, e.convert(x, call.dtype()), "add", over)
    return e.convert(kept(e, e.div(total, like(e, count(x, over), total)), call), call.dtype())


@decomposition("nanmean.default")
def nanmean(e: Emitter, call: Call, x: SSAValue, dims: Dims, keepdim: bool, dtype: str | None) -> SSAValue:
    over = axes(x, dims)
    y = wide(e, e.convert(x, call.dtype()))
    present = e.sum(e.convert(e.not_(e.is_nan(y)), ir.dtype_of(y)), over)
    return e.convert(kept(e, e.div(e.sum(_without_nan(e, y), over), present), call), call.dtype())


@decomposition("prod.default")
def prod_all(e: Emitter, call: Call, x: SSAValue, dtype: str | None) -> SSAValue:
    return e.convert(accumulated(e, e.convert(x, call.dtype()), "mul", axes(x, None)), call.dtype())


@decomposition("prod.dim_int")
def prod_dim(e: Emitter, call: Call, x: SSAValue, dim: int, keepdim: bool, dtype: str | None) -> SSAValue:
    return e.convert(kept(e, accumulated(e, e.convert(x, call.dtype()), "mul", axes(x, dim)), call), call.dtype())


# ---- extrema


def _extremum(kind: str, *overloads: str) -> None:
    @decomposition(*overloads)
    def rule(e: Emitter, call: Call, x: SSAValue, dims: Dims = None, keepdim: bool = False) -> SSAValue:
        """Ties share the derivative."""
        return kept(e, e.reduce(kind, x, axes(x, dims)), call)

    del rule


_extremum("max", "amax.default", "max.default")
_extremum("min", "amin.default", "min.default")


@decomposition("aminmax.default")
def aminmax(e: Emitter, call: Call, x: SSAValue, dim: int | None, keepdim: bool) -> tuple[SSAValue, ...]:
    over = axes(x, dim)
    return tuple(kept(e, e.reduce(kind, x, over), call, k) for k, kind in enumerate(("min", "max")))


def take_along(e: Emitter, x: SSAValue, index: SSAValue, dim: int) -> SSAValue:
    """y[..., k, ...] = x[..., index[..., k, ...], ...] along dim, for an index of x's rank and no larger elsewhere."""
    shape = ir.shape_of(index)
    places = [index if d == dim else e.iota(shape, d, ir.dtype_of(index)) for d in range(len(shape))]
    return e.gather(x, places, range(len(shape)))


def taken(e: Emitter, x: SSAValue, index: SSAValue, dim: int) -> SSAValue:
    """The element of x at one position along dim: `index` lacks that dimension, as the result does."""
    if not ir.shape_of(x):
        return x
    narrow = e.expand_dims(index, (dim,))
    return e.reshape(take_along(e, x, narrow, dim), ir.shape_of(index))


def _extremum_with_index(kind: str, overload: str) -> None:
    @decomposition(overload)
    def rule(e: Emitter, call: Call, x: SSAValue, dim: int, keepdim: bool) -> tuple[SSAValue, ...]:
        """The derivative goes to the element at the index alone."""
        at = axis(x, dim)
        if not ir.shape_of(x):
            return x, e.const(0, (), "i64")
        index = e.arg_reduce(kind, x, at)
        return kept(e, taken(e, x, index, at), call, 0), kept(e, index, call, 1)

    del rule


_extremum_with_index("max", "max.dim")
_extremum_with_index("min", "min.dim")


def _index_of_extremum(kind: str, overload: str) -> None:
    @decomposition(overload)
    def rule(e: Emitter, call: Call, x: SSAValue, dim: int | None, keepdim: bool) -> SSAValue:
        if not ir.shape_of(x):
            return e.const(0, call.shape(), "i64")
        flat = e.reshape(x, (ir.numel(x),)) if dim is None else x
        return kept(e, e.arg_reduce(kind, flat, 0 if dim is None else axis(x, dim)), call)

    del rule


_index_of_extremum("max", "argmax.default")
_index_of_extremum("min", "argmin.default")


# ---- truth


def _quantifier(kind: str, name: str) -> None:
    @decomposition(f"{name}.default", f"{name}.dim", f"{name}.dims")
    def rule(e: Emitter, call: Call, x: SSAValue, dims: Dims = None, keepdim: bool = False) -> SSAValue:
        """uint8 gives uint8, everything else bool."""
        nothing = isinstance(dims, tuple) and not dims  # an empty list reduces nothing, None everything
        over = () if nothing else axes(x, dims)
        return e.convert(kept(e, e.reduce(kind, truth(e, x), over), call), call.dtype())

    del rule


_quantifier("and", "all")
_quantifier("or", "any")


@decomposition("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(e: Emitter, call: Call, x: SSAValue, dims: Dims = None) -> SSAValue:
    return e.sum(e.convert(truth(e, x), "i64"), axes(x, dims))


# ---- variance


def moments_of(e: Emitter, x: SSAValue, dims: Dims, correction: Scalar | None) -> tuple[SSAValue, SSAValue]:
    """Σ(x - mean)² / max(n - correction, 0) and the mean, in the dtype torch computes in."""
    if isinstance(correction, SSAValue):
        raise Refusal("a correction that is a tensor is left to the library")
    refuse_complex(x)
    over = axes(x, dims)
    mean, variance = e.moments(wide(e, x), over)
    return _corrected(e, variance, count(x, over), 1 if correction is None else correction), mean


def _corrected(e: Emitter, variance: SSAValue, n: Dim, correction: Scalar) -> SSAValue:
    if correction == 0:
        return variance
    if isinstance(n, int) and isinstance(correction, (int, float)):
        if n - correction > 0:
            return e.scaled(variance, n / (n - correction))
        return e.div(e.scaled(variance, n), e.zeros_like(variance))
    total = like(e, n, variance)
    left = e.sub(total, like(e, correction, variance))
    return e.div(e.mul(variance, total), e.max(left, e.zeros_like(left)))


def root(e: Emitter, x: SSAValue) -> SSAValue:
    """√x with derivative 0 at 0, as torch has it for norms and standard deviations."""
    zero = e.cmp("eq", x, e.zeros_like(x))
    return e.select(zero, x, e.sqrt(e.select(zero, like(e, 1, x), x)))


def _enter_moments(name: str, pick: str) -> None:
    def results(e: Emitter, call: Call, x: SSAValue, dims: Dims, correction: Scalar | None) -> tuple[SSAValue, ...]:
        variance, mean = moments_of(e, x, dims, correction)
        spread = variance if pick.startswith("var") else root(e, variance)
        values = (spread, mean) if pick.endswith("mean") else (spread,)
        return tuple(e.convert(kept(e, v, call, k), call.dtype(k)) for k, v in enumerate(values))

    @decomposition(f"{name}.correction")
    def corrected(
        e: Emitter, call: Call, x: SSAValue, dims: Dims, correction: Scalar | None, keepdim: bool
    ) -> tuple[SSAValue, ...]:
        return results(e, call, x, dims, correction)

    @decomposition(f"{name}.default")
    def plain(e: Emitter, call: Call, x: SSAValue, unbiased: bool) -> tuple[SSAValue, ...]:
        return results(e, call, x, None, int(unbiased))

    @decomposition(f"{name}.dim")
    def over_dims(
        e: Emitter, call: Call, x: SSAValue, dims: Dims, unbiased: bool, keepdim: bool
    ) -> tuple[SSAValue, ...]:
        return results(e, call, x, dims, int(unbiased))

    del corrected, plain, over_dims


for _name in ("var", "std", "var_mean", "std_mean"):
    _enter_moments(_name, _name)


# ---- norms


@decomposition("linalg_vector_norm.default")
def vector_norm(
    e: Emitter, call: Call, x: SSAValue, order: Scalar, dims: Dims, keepdim: bool, dtype: str | None
) -> SSAValue:
    if not isinstance(order, (int, float)):
        raise Refusal("an order that is a tensor is left to the library")
    real = call.dtype()
    y = e.convert(x, dtype) if dtype else x
    y = wide(e, y)
    return e.convert(kept(e, norm(e, y, float(order), axes(x, dims)), call), real)


def norm(e: Emitter, x: SSAValue, order: float, dims: Sequence[int]) -> SSAValue:
    """(Σ|x|ᵖ)^(1/p); max |x| for ∞, min |x| for -∞, the number of elements other than 0 for 0. Derivative 0 at 0."""
    if ir.is_complex(ir.dtype_of(x)):
        x = root(e, e.add(e.square(e.real(x)), e.square(e.unary(prim.ImagOp, x))))
    if order == 2:
        return root(e, e.sum(e.square(x), dims))
    if order == 0:
        return e.sum(e.convert(truth(e, x), ir.dtype_of(x)), dims)
    size = e.abs(x)
    if order == 1:
        return e.sum(size, dims)
    if math.isinf(order):
        return e.reduce("max" if order > 0 else "min", size, dims)
    return power_of(e, e.sum(power_of(e, size, order), dims), 1 / order)


def power_of(e: Emitter, x: SSAValue, exponent: float) -> SSAValue:
    """xᵖ with derivative 0 at 0."""
    zero = e.cmp("eq", x, e.zeros_like(x))
    inner = e.pow(e.select(zero, like(e, 1, x), x), like(e, exponent, x))
    return e.select(zero, like(e, 0.0 if exponent > 0 else math.inf, x), inner)


@decomposition("norm.Scalar")
def norm_scalar(e: Emitter, call: Call, x: SSAValue, order: Scalar) -> SSAValue:
    return vector_norm(e, call, x, order, None, False, None)


@decomposition("norm.ScalarOpt_dim")
def norm_dims(e: Emitter, call: Call, x: SSAValue, order: Scalar | None, dims: Dims, keepdim: bool) -> SSAValue:
    return vector_norm(e, call, x, 2 if order is None else order, dims, keepdim, None)


@decomposition("norm.ScalarOpt_dtype")
def norm_dtype(e: Emitter, call: Call, x: SSAValue, order: Scalar | None, dtype: str) -> SSAValue:
    return vector_norm(e, call, x, 2 if order is None else order, None, False, dtype)


@decomposition("norm.ScalarOpt_dim_dtype")
def norm_dims_dtype(
    e: Emitter, call: Call, x: SSAValue, order: Scalar | None, dims: Dims, keepdim: bool, dtype: str
) -> SSAValue:
    return vector_norm(e, call, x, 2 if order is None else order, dims, keepdim, dtype)


@decomposition("frobenius_norm.dim")
def frobenius_norm(e: Emitter, call: Call, x: SSAValue, dims: Dims, keepdim: bool) -> SSAValue:
    return vector_norm(e, call, x, 2, dims, keepdim, None)


@decomposition("linalg_norm.default")
def linalg_norm(
    e: Emitter, call: Call, x: SSAValue, order: Scalar | None, dims: Dims, keepdim: bool, dtype: str | None
) -> SSAValue:
    """A vector norm unless an order is given for a matrix."""
    over = axes(x, dims)
    if order is not None and len(over) != 1:
        return matrix_norm(e, call, x, order, over, keepdim, dtype)
    return vector_norm(e, call, x, 2 if order is None else order, dims, keepdim, dtype)


@decomposition("linalg_matrix_norm.default")
def matrix_norm(
    e: Emitter, call: Call, x: SSAValue, order: Scalar, dims: Sequence[int], keepdim: bool, dtype: str | None
) -> SSAValue:
    """max (min for negative order) over columns (1) or rows (∞) of Σ|x|; other orders need singular values."""
    if not isinstance(order, (int, float)) or abs(order) not in (1, math.inf):
        raise Refusal("matrix norms by singular values are left to the library")
    row, column = (axis(x, d) for d in dims)
    summed, reduced = (row, column) if abs(order) == 1 else (column, row)
    y = wide(e, e.convert(x, dtype) if dtype else x)
    sums = e.sum(e.abs(y), (summed,))
    extremum = e.reduce("max" if order > 0 else "min", sums, (reduced - (summed < reduced),))
    return e.convert(kept(e, extremum, call), call.dtype())


@decomposition("linalg_matrix_norm.str_ord", "linalg_norm.ord_str")
def matrix_norm_named(
    e: Emitter, call: Call, x: SSAValue, order: str, dims: Dims, keepdim: bool, dtype: str | None
) -> SSAValue:
    if order != "fro":
        raise Refusal("matrix norms by singular values are left to the library")
    return vector_norm(e, call, x, 2, dims, keepdim, dtype)


@decomposition("logsumexp.default", "special_logsumexp.default")
def logsumexp(e: Emitter, call: Call, x: SSAValue, dims: Dims, keepdim: bool) -> SSAValue:
    """m + ln Σ e^(x - m), m = max x (0 where that is infinite)"""
    refuse_complex(x)
    over = axes(x, dims)
    y = wide(e, e.convert(x, call.dtype()))
    top = e.reduce("max", e.stop_gradient(y), over)
    top = e.select(e.cmp("eq", e.abs(top), like(e, math.inf, top)), e.zeros_like(top), top)
    total = e.sum(e.exp(e.sub(y, broadcast_over(e, top, y, over))), over)
    return e.convert(kept(e, e.add(top, e.log(total)), call), call.dtype())
