"""Tensors put together: side by side, stacked, along a diagonal."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import axis
from isthmus.passes.decompose.promotion import common_dtype
from isthmus.passes.decompose.table import Call, decomposition
from isthmus.sizes import Dim


@decomposition("cat.default", "concat.default", "concatenate.default")
def cat(e: Emitter, call: Call, xs: Sequence[SSAValue], dim: int) -> SSAValue:
    """Joined along dim; an empty vector joins anything."""
    dtype = common_dtype(xs)
    rank = len(call.shape())
    parts = [e.convert(x, dtype) for x in xs if not (ir.shape_of(x) == (0,) and rank > 1)]
    if not parts:
        return e.const(0, call.shape(), call.dtype())
    return e.convert(e.concat(parts, axis(parts[0], dim)), call.dtype())


@decomposition("stack.default")
def stack(e: Emitter, call: Call, xs: Sequence[SSAValue], dim: int) -> SSAValue:
    rank = len(call.shape())
    at = dim + rank if dim < 0 else dim
    dtype = common_dtype(xs)
    return e.convert(e.concat([e.expand_dims(e.convert(x, dtype), (at,)) for x in xs], at), call.dtype())


def _join(e: Emitter, call: Call, xs: Sequence[SSAValue], rank: int, dim: int) -> SSAValue:
    """Join along dim after giving each at least `rank` dimensions as numpy's h/v/d/column_stack do."""
    return cat(e, call, [_as_rank(e, x, rank) for x in xs], dim)


def _as_rank(e: Emitter, x: SSAValue, rank: int) -> SSAValue:
    shape = ir.shape_of(x)
    if len(shape) >= rank:
        return x
    vector = shape or (1,)
    return e.reshape(
        x, {1: vector, 2: (1, *vector)[-2:], 3: (1, *vector, 1) if len(vector) == 1 else (*vector, 1)}[rank]
    )


@decomposition("hstack.default")
def hstack(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    return _join(e, call, xs, 1, 0 if len(call.shape()) == 1 else 1)


@decomposition("vstack.default", "row_stack.default")
def vstack(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    return _join(e, call, xs, 2, 0)


@decomposition("dstack.default")
def dstack(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    return _join(e, call, xs, 3, 2)


@decomposition("column_stack.default")
def column_stack(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    columns = [e.reshape(x, (ir.numel(x), 1)) if len(ir.shape_of(x)) <= 1 else x for x in xs]
    return cat(e, call, columns, 1)


@decomposition("block_diag.default")
def block_diag(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    """Matrices along the diagonal, zeros elsewhere"""
    rows, columns = call.shape()
    parts: list[SSAValue] = []
    before: Dim = 0
    for x in xs:
        matrix = e.convert(_as_rank(e, x, 2), call.dtype())
        width = ir.shape_of(matrix)[1]
        parts.append(e.pad(matrix, 1, before, columns - before - width))
        before = before + width
    return e.concat(parts, 0) if parts else e.const(0, (rows, columns), call.dtype())


@decomposition("cartesian_prod.default")
def cartesian_prod(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    """All combinations, the last vector fastest"""
    if len(xs) == 1:
        return xs[0]
    grid = tuple(ir.shape_of(x)[0] for x in xs)
    columns = [e.reshape(e.broadcast(x, grid, (k,)), (call.shape()[0], 1)) for k, x in enumerate(xs)]
    return e.concat([e.convert(c, call.dtype()) for c in columns], 1)


@decomposition("_chunk_cat.default")
def chunk_cat(e: Emitter, call: Call, xs: Sequence[SSAValue], dim: int, chunks: int) -> SSAValue:
    """Each tensor padded with zeros to equal chunks along dim and laid flat behind it; these side by side"""
    parts: list[SSAValue] = []
    for x in xs:
        at = axis(x, dim)
        shape = ir.shape_of(x)
        wanted = (shape[at] + chunks - 1) // chunks * chunks
        y = e.pad(e.convert(x, call.dtype()), at, 0, wanted - shape[at])
        rest: Dim = wanted // chunks
        for s in shape[at + 1 :]:
            rest = rest * s
        parts.append(e.reshape(y, (*shape[:at], chunks, rest)))
    return e.concat(parts, len(ir.shape_of(parts[0])) - 1)
