"""Reference implementations of reductions, windows, sorting and contractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.runtime.interpret_table import (
    Frame,
    Value,
    evaluates,
    known_shape,
    literal_int,
    literal_ints,
    literal_str,
    tensors,
)

COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
}
"""How two elements become one."""


def identity(kind: str, dtype: torch.dtype) -> int | float | bool:
    """Give the element that changes nothing."""
    if kind in ("add", "or"):
        return 0
    if kind == "mul":
        return 1
    if kind == "and":
        return True if dtype is torch.bool else (255 if dtype is torch.uint8 else -1)
    if dtype is torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def combine_along(kind: str, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Combine the elements of x along dims, which disappear."""
    dims = tuple(d % x.dim() for d in dims) if x.dim() else ()
    if not dims:
        return x
    shape = [s for d, s in enumerate(x.shape) if d not in dims]
    if any(x.shape[d] == 0 for d in dims):
        return torch.full(shape, identity(kind, x.dtype), dtype=x.dtype)
    if kind == "add":
        return torch.sum(x, dims, dtype=x.dtype)
    if kind == "max":
        return torch.amax(x, dims)
    if kind == "min":
        return torch.amin(x, dims)
    for d in sorted(dims, reverse=True):
        if kind == "mul":
            x = torch.prod(x, d, dtype=x.dtype)
        elif x.dtype is torch.bool:
            x = torch.all(x, d) if kind == "and" else torch.any(x, d)
        else:
            parts = x.unbind(d)
            x = parts[0]
            for part in parts[1:]:
                x = COMBINE[kind](x, part)
    return x


@evaluates(prim.ReduceOp)
def reduce(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The elements of x along dims combined."""
    (x,) = tensors(operands)
    return (combine_along(literal_str(op, "kind"), x, literal_ints(op, "dims")),)


@evaluates(prim.ArgReduceOp)
def arg_reduce(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Index of the first extremum along dim; a NaN counts as the extremum."""
    (x,) = tensors(operands)
    function = torch.argmax if literal_str(op, "kind") == "max" else torch.argmin
    return (function(x.to(torch.uint8) if x.dtype is torch.bool else x, literal_int(op, "dim")),)


@evaluates(prim.CumulativeOp)
def cumulative(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Running combination along dim, from the end when reverse."""
    (x,) = tensors(operands)
    dim, kind, reverse = literal_int(op, "dim"), literal_str(op, "kind"), ir.literal(op, "reverse") is True
    x = torch.flip(x, (dim,)) if reverse else x
    if kind == "add":
        y = torch.cumsum(x, dim, dtype=x.dtype)
    elif kind == "mul":
        y = torch.cumprod(x, dim, dtype=x.dtype)
    elif x.shape[dim] == 0:
        y = x.clone()
    else:
        parts = list(x.unbind(dim))
        y = torch.stack(list(itertools.accumulate(parts, COMBINE[kind])), dim)
    return (torch.flip(y, (dim,)) if reverse else y,)


@evaluates(prim.SortOp)
def sort(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Stable; a NaN counts as the largest."""
    (x,) = tensors(operands)
    y, index = torch.sort(x, dim=literal_int(op, "dim"), descending=ir.literal(op, "descending") is True, stable=True)
    return y, index


# ---- windows


def _window_steps(op: Operation, x: Tensor, shape: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give, for each place in the window in row-major order: elements, whether inside x, position within dims of x."""
    dims, window = literal_ints(op, "dims"), literal_ints(op, "window")
    strides, low, dilations = (literal_ints(op, key) for key in ("strides", "low", "dilations"))
    for place in itertools.product(*map(range, window)):
        values = x
        inside = torch.ones([1] * x.dim(), dtype=torch.bool)
        position = torch.zeros([1] * x.dim(), dtype=torch.int64)
        for k, d in enumerate(dims):
            at = torch.arange(shape[d]) * strides[k] - low[k] + place[k] * dilations[k]
            there = [-1 if e == d else 1 for e in range(x.dim())]
            inside = inside & ((at >= 0) & (at < x.shape[d])).reshape(there)
            position = position * x.shape[d] + at.reshape(there)
            values = values.index_select(d, at.clamp(0, max(0, x.shape[d] - 1)))
        yield values, inside, position


@evaluates(prim.ReduceWindowOp)
def reduce_window(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The elements of each window combined; positions outside x give the identity."""
    (x,) = tensors(operands)
    kind, shape = literal_str(op, "kind"), known_shape(op.results[0].type, frame)
    neutral = torch.tensor(identity(kind, x.dtype), dtype=x.dtype)
    y = neutral.expand(shape)
    for values, inside, _ in _window_steps(op, x, shape):
        y = COMBINE[kind](y, torch.where(inside, values, neutral))
    return (y,)


@evaluates(prim.MaxPoolOp)
def max_pool(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The first largest element of each window (the last NaN where there is one) and its position."""
    (x,) = tensors(operands)
    shape = known_shape(op.results[0].type, frame)
    best = torch.full(shape, identity("max", x.dtype), dtype=x.dtype)
    index = torch.zeros(shape, dtype=torch.int64)
    found = torch.zeros(shape, dtype=torch.bool)
    for values, inside, position in _window_steps(op, x, shape):
        better = inside & (~found | (values > best) | (values != values))
        best = torch.where(better, values, best)
        index = torch.where(better, position, index)
        found = found | better
    return best, index


# ---- contractions


@evaluates(prim.DotOp)
def dot(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y[batch, free a, free b] = Σ_contract a · b"""
    a, b = tensors(operands)
    batch_a, batch_b = literal_ints(op, "batch_a"), literal_ints(op, "batch_b")
    contract_a, contract_b = literal_ints(op, "contract_a"), literal_ints(op, "contract_b")
    free_a = [d for d in range(a.dim()) if d not in (*batch_a, *contract_a)]
    free_b = [d for d in range(b.dim()) if d not in (*batch_b, *contract_b)]
    batch = [a.shape[d] for d in batch_a]
    rows, columns = [a.shape[d] for d in free_a], [b.shape[d] for d in free_b]
    depth = math.prod(a.shape[d] for d in contract_a)
    left = a.permute((*batch_a, *free_a, *contract_a)).reshape(math.prod(batch), math.prod(rows), depth)
    right = b.permute((*batch_b, *contract_b, *free_b)).reshape(math.prod(batch), depth, math.prod(columns))
    return (torch.bmm(left, right).reshape(batch + rows + columns),)


def _conv_literals(op: Operation) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    strides, padding, dilations = (literal_ints(op, key) for key in ("strides", "padding", "dilations"))
    return strides, padding, dilations, literal_int(op, "groups")


@evaluates(prim.ConvOp)
def conv(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Convolution of x with w."""
    x, w = tensors(operands)
    strides, padding, dilations, groups = _conv_literals(op)
    zeros = [0] * len(strides)
    return (torch.ops.aten.convolution.default(x, w, None, strides, padding, dilations, False, zeros, groups),)


def _conv_transpose(op: Operation, g: Tensor, x: Tensor, w: Tensor, wanted: int) -> Tensor:
    strides, padding, dilations, groups = _conv_literals(op)
    mask = [wanted == 0, wanted == 1, False]
    zeros = [0] * len(strides)
    gradients = torch.ops.aten.convolution_backward.default(
        g, x, w, None, strides, padding, dilations, False, zeros, groups, mask
    )
    return gradients[wanted]


@evaluates(prim.ConvDxOp)
def conv_dx(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The transpose of conv in x."""
    g, w = tensors(operands)
    x = torch.empty(known_shape(op.results[0].type, frame), dtype=g.dtype)
    return (_conv_transpose(op, g, x, w, 0),)


@evaluates(prim.ConvDwOp)
def conv_dw(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The transpose of conv in w."""
    g, x = tensors(operands)
    w = torch.empty(known_shape(op.results[0].type, frame), dtype=g.dtype)
    return (_conv_transpose(op, g, x, w, 1),)
