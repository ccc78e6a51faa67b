"""Pullbacks of movements: linear maps of indices, so each is its transpose."""

from __future__ import annotations

from typing import cast

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.table import Cotangents, Needs, constant, one, pullback
from isthmus.sizes import Dim

constant(prim.ConstOp, prim.SizeOp, prim.IotaOp, prim.RngOp, prim.YieldOp)


@pullback(prim.BroadcastOp)
def broadcast(e: Emitter, op: prim.BroadcastOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = Σ ȳ over the dimensions that x has not."""
    dims = cast(tuple[int, ...], op.dims.data)
    rank = len(ir.shape_of(op.y))
    summed = e.sum(one(cts), [d for d in range(rank) if d not in dims])
    order = sorted(dims)
    return (e.transpose(summed, [order.index(d) for d in dims]),)


@pullback(prim.ReshapeOp)
def reshape(e: Emitter, op: prim.ReshapeOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = ȳ in x's shape."""
    return (e.reshape(one(cts), ir.shape_of(op.x)),)


@pullback(prim.TransposeOp)
def transpose(e: Emitter, op: prim.TransposeOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = ȳ transposed by the inverse permutation."""
    perm = cast(tuple[int, ...], op.perm.data)
    return (e.transpose(one(cts), [perm.index(d) for d in range(len(perm))]),)


@pullback(prim.SliceOp)
def slice(e: Emitter, op: prim.SliceOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = ȳ between zeros."""
    dim, stride = cast(int, op.dim.data), cast(int, op.stride.data)
    start, limit = cast(Dim, op.start.data), cast(Dim, op.limit.data)
    size, length = ir.shape_of(op.x)[dim], ir.shape_of(op.y)[dim]
    if length == 0:
        return (None,)
    end = limit if stride == 1 else start + (length - 1) * stride + 1
    return (e.pad(one(cts), dim, start, size - end, stride - 1),)


@pullback(prim.PadOp)
def pad(e: Emitter, op: prim.PadOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = the part of ȳ where x was put."""
    dim, low, interior = cast(int, op.dim.data), cast(Dim, op.low.data), cast(int, op.interior.data)
    size = ir.shape_of(op.x)[dim]
    if size == 0:
        return (None,)
    return (e.slice(one(cts), dim, low, low + (size - 1) * (interior + 1) + 1, interior + 1),)


@pullback(prim.ReverseOp)
def reverse(e: Emitter, op: prim.ReverseOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄ = ȳ reversed."""
    return (e.reverse(one(cts), cast(tuple[int, ...], op.dims.data)),)


@pullback(prim.ConcatOp)
def concat(e: Emitter, op: prim.ConcatOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """Each operand gets its part of ȳ."""
    g, dim = one(cts), cast(int, op.dim.data)
    start: Dim = 0
    parts: list[ir.SSAValue | None] = []
    for x, need in zip(ir.operands_of(op), needs, strict=True):
        limit = start + ir.shape_of(x)[dim]
        parts.append(e.slice(g, dim, start, limit) if need else None)
        start = limit
    return tuple(parts)
