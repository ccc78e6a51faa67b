"""Tensors made from numbers."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import inside, rounded
from isthmus.passes.decompose.rules.writes import on_diagonal
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim

ZEROS = (
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "empty_strided.default",
    "empty_permuted.default",
    "new_empty.default",
    "new_empty_strided.default",
    "_efficientzerotensor.default",
)
"""What torch leaves uninitialized is 0 here."""


@decomposition(*ZEROS)
def zeros(e: Emitter, call: Call, *how: object) -> SSAValue:
    return e.const(0, call.shape(), call.dtype())


@decomposition("ones.default", "ones_like.default", "new_ones.default")
def ones(e: Emitter, call: Call, *how: object) -> SSAValue:
    return e.const(1, call.shape(), call.dtype())


@decomposition("full.default", "full_like.default")
def full(e: Emitter, call: Call, like: object, value: Scalar, *how: object) -> SSAValue:
    return e.full(value, call.shape(), call.dtype())


@decomposition("new_full.default")
def new_full(e: Emitter, call: Call, x: SSAValue, size: object, value: Scalar, *how: object) -> SSAValue:
    return e.full(value, call.shape(), call.dtype())


@decomposition("scalar_tensor.default")
def scalar_tensor(e: Emitter, call: Call, value: Scalar, *how: object) -> SSAValue:
    return e.full(value, (), call.dtype())


def _arange(e: Emitter, call: Call, start: Scalar, step: Scalar) -> SSAValue:
    """start + step·i, in double precision for floats as torch"""
    dtype, shape = call.dtype(), call.shape()
    if not ir.is_differentiable(dtype):  # the numbers are cut to integers before anything is computed
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    whole = not any(isinstance(v, float) or _is_float(v) for v in (start, step))
    count = "i64" if whole else "f64"
    y = e.iota(shape, 0, count)
    if not (isinstance(step, int) and step == 1):
        y = e.mul(y, e.full(step, shape, count))
    if not (isinstance(start, int) and start == 0):
        y = e.add(y, e.full(start, shape, count))
    return e.convert(y, dtype)


def _is_float(value: Scalar) -> bool:
    return isinstance(value, SSAValue) and ir.is_float(ir.dtype_of(value))


@decomposition("arange.default")
def arange(e: Emitter, call: Call, end: Scalar, *how: object) -> SSAValue:
    return _arange(e, call, 0, 1)


@decomposition("arange.start")
def arange_start(e: Emitter, call: Call, start: Scalar, end: Scalar, *how: object) -> SSAValue:
    return _arange(e, call, start, 1)


@decomposition("arange.start_step")
def arange_step(e: Emitter, call: Call, start: Scalar, end: Scalar, step: Scalar, *how: object) -> SSAValue:
    return _arange(e, call, start, step)


@decomposition("linspace.default", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace(e: Emitter, call: Call, start: Scalar, end: Scalar, steps: Dim, *how: object) -> SSAValue:
    """start + step·i in the first half, end - step·(n - 1 - i) in the second, so that both ends are exact"""
    dtype = call.dtype()
    if ir.is_complex(dtype):
        raise Refusal("is left to the library for complex numbers")
    within = inside(dtype) if ir.is_float(dtype) else "f64"
    return e.convert(_evenly(e, start, end, steps, call, within), dtype)


def _evenly(e: Emitter, start: Scalar, end: Scalar, steps: Dim, call: Call, dtype: str) -> SSAValue:
    shape = call.shape()
    ends = [e.full(rounded(v, call.dtype()), shape, dtype) for v in (start, end)]
    if steps == 1 or steps == 0:
        return ends[0]
    gaps = e.full(steps - 1, shape, dtype)
    step = e.div(e.sub(ends[1], ends[0]), gaps)
    i = e.iota(shape, 0, dtype)
    half = e.full(steps // 2, shape, dtype)
    lower = e.add(ends[0], e.mul(step, i))
    upper = e.sub(ends[1], e.mul(step, e.sub(gaps, i)))
    return e.select(e.cmp("lt", i, half), lower, upper)


@decomposition("logspace.default", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor")
def logspace(e: Emitter, call: Call, start: Scalar, end: Scalar, steps: Dim, base: Scalar, *how: object) -> SSAValue:
    """baseˣ for x of `linspace`"""
    if not ir.is_float(call.dtype()):
        raise Refusal("is left to the library for integers and complex numbers")
    dtype = inside(call.dtype())
    powers = _evenly(e, start, end, steps, call, dtype)
    return e.convert(e.pow(e.full(base, call.shape(), dtype), powers), call.dtype())


@decomposition("eye.default", "eye.m")
def eye(e: Emitter, call: Call, *how: object) -> SSAValue:
    return e.convert(on_diagonal(e, call.shape(), 0, 1, 0), call.dtype())


@decomposition("tril_indices.default")
def tril_indices(e: Emitter, call: Call, rows: int, columns: int, offset: int, *how: object) -> SSAValue:
    """Row by row the places with column ≤ row + offset"""
    return _triangle_indices(e, call, rows, columns, offset, upper=False)


@decomposition("triu_indices.default")
def triu_indices(e: Emitter, call: Call, rows: int, columns: int, offset: int, *how: object) -> SSAValue:
    """Row by row the places with column ≥ row + offset"""
    return _triangle_indices(e, call, rows, columns, offset, upper=True)


def _triangle_indices(e: Emitter, call: Call, rows: int, columns: int, offset: int, upper: bool) -> SSAValue:
    """The k-th place: sort all places, those in the triangle first, and keep as many as there are."""
    shape, total = (rows, columns), rows * columns
    outside = e.not_(on_diagonal(e, shape, 0, 1, offset, "ge" if upper else "le"))
    _, order = e.sort(e.convert(e.reshape(outside, (total,)), "i64"), 0)
    flat = e.slice(order, 0, 0, call.shape()[1])
    width = e.const_like(max(columns, 1), flat)
    parts = [e.expand_dims(p, (0,)) for p in (e.div(flat, width), e.rem(flat, width))]
    return e.convert(e.concat(parts, 0), call.dtype())
