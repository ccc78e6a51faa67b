"""Pullbacks of reductions over sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.pull import pull_through
from isthmus.passes.autodiff.rules.along import add_along, count
from isthmus.passes.autodiff.table import Cotangents, Fallbacks, Needs, nested_pullback, one, pullback

Windowed = prim.ReduceWindowOp | prim.MaxPoolOp

IDENTITY = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}


@pullback(prim.MaxPoolOp)
def max_pool(e: Emitter, op: prim.MaxPoolOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """Each window's ȳ is added where its largest element was."""
    g = cts[0]
    assert g is not None
    shape, dims = ir.shape_of(op.x), cast(tuple[int, ...], op.dims.data)
    kept = [d for d in range(len(shape)) if d not in dims]
    order, last = [*kept, *dims], len(kept)
    flat_y = (*(shape[d] for d in kept), count(op.y, dims))
    updates, index = (e.reshape(e.transpose(v, order), flat_y) for v in (g, op.index))
    zeros = e.const(0, (*(shape[d] for d in kept), count(op.x, dims)), ir.dtype_of(op.x))
    x_bar = e.reshape(add_along(e, updates, index, zeros, last), [shape[d] for d in order])
    return (e.transpose(x_bar, [order.index(d) for d in range(len(shape))]),)


@nested_pullback(prim.ReduceWindowOp)
def reduce_window(
    e: Emitter, op: prim.ReduceWindowOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks
) -> Cotangents:
    """Sum: x̄[i] = Σ ȳ of the windows that hold i, itself a sum over windows; else as the reduction of each window."""
    if op.kind.data == "add":
        return (_windows_holding(e, op, one(cts)),)
    return pull_through(e, _reduced_windows, op, cts, needs, fallbacks)


def _column(op: Windowed, key: str) -> tuple[int, ...]:
    return cast(tuple[int, ...], ir.literal(op, key))


def _windows_holding(e: Emitter, op: prim.ReduceWindowOp, g: SSAValue) -> SSAValue | None:
    """With ȳ spread by the strides, x̄[i] = Σ_k ȳ[i + low - k·dilation]: windows of stride 1 over the padded spread."""
    columns = zip(*(_column(op, k) for k in ("dims", "window", "strides", "low", "dilations")), strict=True)
    for d, window, stride, low, dilation in columns:
        size, length = ir.shape_of(op.x)[d], ir.shape_of(g)[d]
        if size == 0 or length == 0:
            return None
        reach = dilation * (window - 1)
        before = reach - low
        after = size + reach - ((length - 1) * stride + 1) - before
        spread = e.pad(g, d, max(before, 0), _at_least_0(after), stride - 1)
        start = max(-before, 0)
        g = e.slice(spread, d, start, start + size + reach)
    ones = (1,) * len(_column(op, "dims"))
    zeros = (0,) * len(ones)
    dims, window, dilations = (_column(op, k) for k in ("dims", "window", "dilations"))
    return e.reduce_window("add", g, dims, window, ones, zeros, zeros, dilations)


def _at_least_0(size: ir.Dim) -> ir.Dim:
    """Windows that do not reach x's end leave a positive rest; padding beyond the reach would leave a negative one."""
    return size if isinstance(size, ir.Size) else max(size, 0)


def _reduced_windows(e: Emitter, op: Operation, *operands: SSAValue) -> SSAValue:
    """y = the reduction over a last dimension that holds each window's elements."""
    assert isinstance(op, prim.ReduceWindowOp)
    (x,) = operands
    kind = cast(str, op.kind.data)
    dims, window, strides, dilations = (_column(op, k) for k in ("dims", "window", "strides", "dilations"))
    for d, low, high in zip(dims, _column(op, "low"), _column(op, "high"), strict=True):
        x = e.pad(x, d, low, high, 0, IDENTITY[kind])
    lengths = [ir.shape_of(op.y)[d] for d in dims]
    elements: list[SSAValue] = []
    for offsets in product(*map(range, window)):
        starts = [k * dilation for k, dilation in zip(offsets, dilations, strict=True)]
        elements.append(_strided(e, x, dims, starts, strides, lengths))
    rank = len(ir.shape_of(x))
    return e.reduce(kind, e.concat([e.expand_dims(v, [rank]) for v in elements], rank), [rank])


def _strided(
    e: Emitter,
    x: SSAValue,
    dims: Sequence[int],
    starts: Sequence[int],
    strides: Sequence[int],
    lengths: Sequence[ir.Dim],
) -> SSAValue:
    for d, start, stride, length in zip(dims, starts, strides, lengths, strict=True):
        x = e.slice(x, d, start, start + (length - 1) * stride + 1, stride)
    return x
