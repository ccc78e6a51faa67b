"""Reference implementation of kernels without loops: each body value is a tensor that broadcasts over the whole space.

A point of the space is an element; positions along a dim are an `arange` shaped to vary along it alone. Levels and the
order of walks do not show: values are complete before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.prim.base import PRIM_OPS
from isthmus.ir import Literal, LiteralValue, Operand
from isthmus.runtime.interpret_library import call_on_values
from isthmus.runtime.interpret_reduce import combine_along, identity
from isthmus.runtime.interpret_shape import combine_rows
from isthmus.runtime.interpret_structured import random_elements
from isthmus.runtime.interpret_table import TABLE, Frame, Value, evaluates, known, known_shape, tensors, torch_dtype


@dataclass
class _Point:
    """All points of one kernel at once."""

    op: kernel.LoopNest
    operands: Sequence[Tensor]
    results: list[Tensor]
    frame: Frame
    sizes: list[int]
    values: dict[SSAValue, Tensor] = field(default_factory=dict[SSAValue, Tensor])

    def position(self, dim: int) -> Tensor:
        """Positions along one dim of the space."""
        shape = [1] * len(self.sizes)
        shape[dim] = self.sizes[dim]
        return torch.arange(self.sizes[dim]).reshape(shape)

    def index(self, expr: kernel.Expr, values: Sequence[Tensor]) -> Tensor:
        """An index at every point."""
        total = torch.full([1] * len(self.sizes), known(expr.constant, self.frame))
        for (kind, inner, by), coefficient in expr.terms:
            if kind == "d":
                atom = self.position(cast(int, inner))
            elif kind == "v":
                atom = values[cast(int, inner)]
            else:
                e, n = self.index(cast(kernel.Expr, inner), values), known(by, self.frame)
                atom = torch.div(e, n, rounding_mode="floor") if kind == "div" else torch.remainder(e, n)
            total = total + atom * known(coefficient, self.frame)
        return total

    def indices(self, op: Operation, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The map of a load or store at every point."""
        return tuple(self.index(e, values) for e in cast(kernel.Map, op.properties["map"]).data)

    def everywhere(self, x: Tensor) -> Tensor:
        """Expand over the whole space."""
        return x.expand(self.sizes)


@evaluates(kernel.FusedOp, kernel.ContractOp)
def fused(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Run the body once for all points."""
    assert isinstance(op, kernel.LoopNest)
    results: list[Tensor] = []
    for result, initial in zip(op.results, op.initial_, strict=True):
        if initial is not None:
            results.append(tensors(operands)[initial].clone(memory_format=torch.contiguous_format))
        else:
            results.append(torch.zeros(known_shape(result.type, frame), dtype=torch_dtype(result.type)))
    point = _Point(op, tensors(operands), results, frame, [known(s, frame) for s in op.sizes_])
    for inner in op.block.ops:
        arguments = [point.values[v] for v in ir.operands_of(inner)]
        evaluate = _BODY.get(type(inner))
        if evaluate is not None:
            made = evaluate(point, inner, arguments)
        else:
            made = [cast(Tensor, v) for v in TABLE[type(inner)](inner, arguments, frame)]
        for value, tensor in zip(inner.results, made, strict=True):
            point.values[value] = tensor
    return point.results


def _load(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    assert isinstance(op, kernel.LoadOp)
    source = point.operands[cast(int, op.operand.data)]
    indices = point.indices(op, arguments)
    if op.default is None:
        return (source[indices] if indices else source.reshape([1] * len(point.sizes)),)
    predicate = arguments[-1]
    if source.numel() == 0:
        y = torch.zeros_like(predicate, dtype=source.dtype)
    else:
        y = source[tuple(i.clamp(0, n - 1) for i, n in zip(indices, source.shape, strict=True))] if indices else source
    default = torch.tensor(op.default.data, dtype=source.dtype)
    return (torch.where(predicate, y, default),)


def _index(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    return point.indices(op, arguments)


def _check(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    assert isinstance(op, kernel.CheckOp)
    i, *rest = arguments
    bound = known(cast(ir.Dim, op.bound.data), point.frame)
    outside = (i < 0) | (i >= bound)
    if rest:
        inside_, outside = rest[0] & ~outside, outside & rest[0]
    else:
        inside_ = ~outside
    if 0 not in point.sizes and bool(outside.any()):
        culprit = int(i.expand(outside.shape)[outside][0])
        raise IndexError(f"index {culprit} is out of bounds for dimension {op.dim.data} with size {bound}")
    return (torch.where(inside_, i, torch.zeros_like(i)),)


def _rng(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    key, counter = arguments
    kind = cast(str, ir.literal(op, "kind"))
    return (random_elements(int(key.reshape(-1)[0]), counter, kind, torch_dtype(op.results[0].type)),)


def _reduce(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    assert isinstance(op, kernel.ReduceOp)
    kind, dims = cast(str, op.kind.data), cast(tuple[int, ...], op.dims.data)
    if kind in kernel.ARG_REDUCTIONS:
        return _arg_reduce(point, kind, dims, arguments)
    y = combine_along(kind, point.everywhere(arguments[0]), dims)
    for d in dims:
        y = y.unsqueeze(d)
    return (y,)


def _dot(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    """Factors vary along batch, m, k and along batch, n, k: a product of matrices."""
    assert isinstance(op, kernel.DotOp)
    *batch, m, n, k = point.sizes
    a, b = arguments
    a, b = a.expand(*a.shape[:-1], k).squeeze(-2), b.expand(*b.shape[:-1], k).squeeze(-3)
    y = torch.matmul(a, b.transpose(-1, -2))
    return (y.expand(*(n if y.shape[d] == 1 else y.shape[d] for d, n in enumerate((*batch, m, n)))).unsqueeze(-1),)


def _arg_reduce(point: _Point, kind: str, dims: tuple[int, ...], arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    """The extremum (a NaN, where there is one) and the smallest position that has it."""
    x, position = (point.everywhere(a) for a in arguments)
    largest = combine_along(kind[3:], x, dims)
    for d in dims:
        largest = largest.unsqueeze(d)
    same = (x == largest) | ((x != x) & (largest != largest))
    last = torch.full_like(position, torch.iinfo(torch.int64).max)
    return largest, torch.amin(torch.where(same, position, last), dims, keepdim=True)


def _cumulative(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    return [cast(Tensor, v) for v in TABLE[prim.CumulativeOp](op, [point.everywhere(arguments[0])], point.frame)]


def _store(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    assert isinstance(op, kernel.StoreOp)
    number = cast(int, op.result.data)
    result = point.results[number]
    x, *values = arguments
    indices = point.indices(op, values)
    shape = torch.broadcast_shapes(x.shape, *(i.shape for i in indices))
    if 0 in shape or any(point.sizes[d] == 0 for d in range(len(point.op.parallel))):
        return ()  # a row without elements still has its sum
    if op.kind is None:
        result[indices if indices else ...] = x.expand(shape) if indices else x.reshape(())
        return ()
    position = torch.zeros((), dtype=torch.int64)
    for index, extent in zip(indices, result.shape, strict=True):
        position = position * extent + index
    flat = result.reshape(-1, 1).clone()
    updates = point.everywhere(x).reshape(-1, 1)
    combined = combine_rows(flat, point.everywhere(position).reshape(-1), updates, cast(str, op.kind.data))
    point.results[number] = combined.reshape(result.shape)
    return ()


def _accumulate(point: _Point, op: Operation, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    """Each partition of the parallel points combined into its own entry."""
    assert isinstance(op, kernel.AccumulateOp)
    kind, number = cast(str, op.kind.data), cast(int, op.result.data)
    result = point.results[number]
    sinks = (o for o in point.op.block.ops if isinstance(o, kernel.AccumulateOp) and o.result.data == number)
    if next(sinks) is op:  # several may share a result
        result[...] = identity(kind, result.dtype)
    if 0 in point.sizes:
        return ()
    if isinstance(point.op, kernel.ContractOp):
        _sum_rows(point, point.op, op, arguments[0], result)
        return ()
    named = cast(kernel.Map, op.properties["map"]).dims()
    parallel = len(point.op.parallel)
    x = arguments[0]
    x = x.expand([n if d < parallel or d in named else x.shape[d] for d, n in enumerate(point.sizes)])
    for d in point.op.rows:
        if d not in named:  # what is the same along a row counts once
            x = combine_along(kind, x, (d,)).unsqueeze(d)
    points = 1
    for extent in point.sizes[:parallel]:
        points *= extent
    flat = x.reshape(points, *x.shape[parallel:])
    indices = [i.reshape(i.shape[parallel:]) for i in point.indices(op, ())]
    count = result.shape[0]
    dealt = ir.literal(point.op, "dealt") is True
    for p in range(count):
        part = flat[p::count] if dealt else flat[p * points // count : (p + 1) * points // count]
        if part.shape[0]:
            result[(p, *indices)] = (
                combine_along(kind, part, (0,)) if indices else combine_along(kind, part, tuple(range(part.dim())))
            )
    return ()


def _sum_rows(point: _Point, op: kernel.ContractOp, sink: kernel.AccumulateOp, x: Tensor, result: Tensor) -> None:
    """The sums of each part of the rows that the grid makes, in whole tiles; further partial results are 0."""
    *batch, m, n, _ = point.sizes
    wide = x.expand(*batch, m, n, 1).reshape(math.prod(batch), m, n)
    grid = cast("tuple[ir.Dim, ir.Dim, ir.Dim]", op.grid.data) if op.grid is not None else (1, 1, 1)
    tile = cast(int, op.tile.data[0]) if op.tile is not None else 1  # pyright: ignore
    outer, inner = (known(g, point.frame) for g in grid[:2])
    (column,) = (i.reshape(-1).expand(n) for i in point.indices(sink, ()))
    panels = -(-m // tile)
    for p in range(outer * inner):
        b, r = divmod(p, inner)
        of = slice(b * len(wide) // outer, (b + 1) * len(wide) // outer)
        rows = slice(panels * r // inner * tile, panels * (r + 1) // inner * tile)
        result[p, column] = wide[of, rows].sum((0, 1))


_BODY: dict[type[Operation], Callable[[_Point, Operation, Sequence[Tensor]], Sequence[Tensor]]] = {
    kernel.LoadOp: _load,
    kernel.IndexOp: _index,
    kernel.CheckOp: _check,
    kernel.RngOp: _rng,
    kernel.ReduceOp: _reduce,
    kernel.DotOp: _dot,
    kernel.CumulativeOp: _cumulative,
    kernel.StoreOp: _store,
    kernel.AccumulateOp: _accumulate,
}


# ---- library calls


@evaluates(kernel.JoinOp)
def join(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """One after the other."""
    return (torch.cat(list(tensors(operands))),)


@evaluates(kernel.ReshapeOp)
def reshape(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The same bytes in another shape."""
    (x,) = tensors(operands)
    return (x.reshape(known_shape(op.results[0].type, frame)),)


_PRIMITIVES = {cls.name: cls for cls in PRIM_OPS}


@evaluates(kernel.ExternOp)
def extern(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The primitive, or the operator of torch, that the call stands for, on the operands as it sees them."""
    assert isinstance(op, kernel.ExternOp)
    seen = [_seen(x, view, frame) for x, view in zip(tensors(operands), op.views_, strict=False)]
    symbol = cast(str, op.symbol.data)
    cls = _PRIMITIVES.get(symbol)
    if cls is None:
        return call_on_values(symbol, cast(tuple[LiteralValue, ...], op.args.data), seen, frame)
    literals = dict(cast(tuple[tuple[str, LiteralValue], ...], op.args.data))
    bias = literals.pop("bias", None)
    added = seen.pop() if isinstance(bias, (str, Operand)) else None
    results = TABLE[cls](_primitive(op, cls, literals), seen, frame)
    return results if added is None else [cast(Tensor, results[0]) + added]


@evaluates(kernel.AttentionOp, kernel.AttentionBwdOp)
def stream(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """The primitive that the kernel stands for, on the operands as it sees them."""
    assert isinstance(op, kernel.StreamOp)
    seen = [_seen(x, view, frame) for x, view in zip(tensors(operands), op.views_, strict=False)]
    properties = {key: Literal.of(value) for key, value in op.literals().items()}
    return TABLE[op.primitive](ir.create_op(op.primitive, (), [r.type for r in op.results], properties), seen, frame)


def _seen(x: Tensor, view: LiteralValue, frame: Frame) -> Tensor:
    if view is None:
        return x
    shape, strides, offset = cast(tuple[ir.Shape, ir.Shape, ir.Dim], view)
    numbers = [[known(d, frame) for d in dims] for dims in (shape, strides)]
    return torch.as_strided(x, numbers[0], numbers[1], known(offset, frame) + x.storage_offset())


def _primitive(op: kernel.ExternOp, cls: type[prim.PrimOp], literals: dict[str, LiteralValue]) -> Operation:
    """Give a primitive without operands, outside any block: the literals and types that the table's functions read."""
    properties = {key: Literal.of(value) for key, value in literals.items()}
    return ir.create_op(cls, (), [r.type for r in op.results], properties)
