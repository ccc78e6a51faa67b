"""Reference implementations of the primitives that make, move and index elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

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
    literal_size,
    literal_str,
    tensors,
    torch_dtype,
)


@evaluates(prim.ConstOp)
def const(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y[i] = value; one element in memory, seen at each index."""
    type_ = op.results[0].type
    value = cast(complex, ir.literal(op, "value"))
    dtype = torch_dtype(type_)
    element = torch.tensor(value, dtype=dtype) if not isinstance(value, int) else _integer(value, dtype)
    return (element.expand(known_shape(type_, frame)),)


def _integer(value: int, dtype: torch.dtype) -> Tensor:
    """An integer of any sign, wrapped to the width of the dtype."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return torch.tensor(value, dtype=dtype)
    wrapped = (value + 2**63) % 2**64 - 2**63
    return torch.tensor(wrapped, dtype=torch.int64).to(dtype)


@evaluates(prim.SizeOp)
def size(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y = the value of a size."""
    return (torch.tensor(literal_size(op, "expr", frame), dtype=torch.int64),)


@evaluates(prim.IotaOp)
def iota(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y[i] = i[dim]"""
    type_ = op.results[0].type
    shape, dim = known_shape(type_, frame), literal_int(op, "dim")
    positions = torch.arange(shape[dim], dtype=torch.int64).to(torch_dtype(type_))
    return (positions.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape),)


@evaluates(prim.BroadcastOp)
def broadcast(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Dimension k of x is dimension dims[k] of y."""
    (x,) = tensors(operands)
    dims = literal_ints(op, "dims")
    shape = known_shape(op.results[0].type, frame)
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    aligned = [1] * len(shape)
    for k, d in enumerate(dims):
        aligned[d] = x.shape[k]
    return (x.permute(order).reshape(aligned).expand(shape),)


@evaluates(prim.ReshapeOp)
def reshape(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The same elements in row-major order."""
    (x,) = tensors(operands)
    return (x.reshape(known_shape(op.results[0].type, frame)),)


@evaluates(prim.TransposeOp)
def transpose(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Dimension k of y is dimension perm[k] of x."""
    (x,) = tensors(operands)
    return (x.permute(literal_ints(op, "perm")),)


@evaluates(prim.SliceOp)
def slice_(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y[k] = x[start + k·stride] along dim, while below limit."""
    (x,) = tensors(operands)
    dim, stride = literal_int(op, "dim"), literal_int(op, "stride")
    start, limit = literal_size(op, "start", frame), literal_size(op, "limit", frame)
    if not 0 <= start <= limit <= x.shape[dim]:
        raise IndexError(f"slice [{start}, {limit}) of dimension {dim} with {x.shape[dim]} elements")
    return (torch.ops.aten.slice.Tensor(x, dim, start, limit, stride),)


@evaluates(prim.PadOp)
def pad(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """x along dim between `low` and `high` values, with `interior` values between neighbours."""
    (x,) = tensors(operands)
    dim, step = literal_int(op, "dim"), literal_int(op, "interior") + 1
    low = literal_size(op, "low", frame)
    value = cast(complex, ir.literal(op, "value"))
    y = torch.full(known_shape(op.results[0].type, frame), value, dtype=x.dtype)
    inner = torch.ops.aten.slice.Tensor(y, dim, low, low + max(0, (x.shape[dim] - 1) * step + 1), step)
    inner.copy_(x)
    return (y,)


@evaluates(prim.ReverseOp)
def reverse(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The order along dims reversed."""
    (x,) = tensors(operands)
    return (torch.flip(x, literal_ints(op, "dims")),)


@evaluates(prim.ConcatOp)
def concat(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The operands one after the other along dim."""
    return (torch.cat(list(tensors(operands)), literal_int(op, "dim")),)


# ---- positions that are data


def _checked(indices: Sequence[Tensor], dims: Sequence[int], shape: Sequence[int]) -> list[Tensor]:
    for index, dim in zip(indices, dims, strict=True):
        outside = (index < 0) | (index >= shape[dim])
        if bool(outside.any()):
            culprit = int(index[outside][0])
            raise IndexError(f"index {culprit} is out of bounds for dimension {dim} with size {shape[dim]}")
    return [i.long() for i in indices]


def _indexed_first(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Give x with the indexed dims in front, and the order of its dims that did it."""
    order = [*dims, *(d for d in range(x.dim()) if d not in dims)]
    return x.permute(order), order


@evaluates(prim.GatherOp)
def gather(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y[s, r] = x with indices[k][s] in dims[k] and r elsewhere."""
    x, *indices = tensors(operands)
    dims = literal_ints(op, "dims")
    front, _ = _indexed_first(x, dims)
    return (front[tuple(_checked(indices, dims, x.shape))],)


@evaluates(prim.ScatterOp)
def scatter(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """x, then for each s, r in row-major order: the element there combined with updates[s, r]."""
    x, updates, *indices = tensors(operands)
    dims, kind = literal_ints(op, "dims"), literal_str(op, "kind")
    front, order = _indexed_first(x, dims)
    places = 1
    position = torch.zeros_like(indices[0], dtype=torch.int64)
    for index, dim in zip(_checked(indices, dims, x.shape), dims, strict=True):
        position = position * x.shape[dim] + index
        places *= x.shape[dim]
    rest = front.shape[len(dims) :]
    rows = front.reshape(places, rest.numel()).clone()
    combined = combine_rows(rows, position.reshape(-1), updates.reshape(position.numel(), rest.numel()), kind)
    back = sorted(range(x.dim()), key=lambda k: order[k])
    return (combined.reshape(front.shape).permute(back),)


def combine_rows(rows: Tensor, position: Tensor, updates: Tensor, kind: str) -> Tensor:
    """Combine updates, in order, into the rows at these positions; in place."""
    if kind == "add":
        return rows.index_add_(0, position, updates)
    if kind == "set":
        last = torch.full((rows.shape[0],), -1, dtype=torch.int64)
        last.scatter_reduce_(0, position, torch.arange(position.numel()), "amax")
        written = last >= 0
        rows[written] = updates[last[written]]
        return rows
    combine = {"mul": torch.mul, "max": torch.maximum, "min": torch.minimum}[kind]
    for s in range(position.numel()):
        at = int(position[s])
        rows[at] = combine(rows[at], updates[s])
    return rows
