"""Reads and writes at positions that are data, and random numbers: the example is one more position."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import dim, ints, literals_of, text
from isthmus.passes.vectorize.dims import moved_behind, moved_to_front
from isthmus.passes.vectorize.table import Batch, batching


def _example_at(batch: Batch, index: SSAValue) -> SSAValue:
    """The number of its example at each element of an index over all examples."""
    return batch.e.iota(ir.shape_of(index), 0, ir.dtype_of(index))


@batching(prim.GatherOp)
def _gather(batch: Batch, op: prim.GatherOp) -> SSAValue:
    """Where all read at the same places, or one table, there are just more elements; else the example is an index."""
    e, dims = batch.e, ints(op.dims.data)
    further = tuple(d + 1 for d in dims)
    if not any(map(batch.is_mapped, op.indices)):
        made = e.gather(batch.over_all(op.x), [batch.shared(i) for i in op.indices], further)
        return moved_to_front(e, made, len(ir.shape_of(op.indices[0])))
    indices = [batch.over_all(i) for i in op.indices]
    if not batch.is_mapped(op.x):
        return e.gather(batch.shared(op.x), indices, dims)
    return e.gather(batch.over_all(op.x), [_example_at(batch, indices[0]), *indices], (0, *further))


@batching(prim.ScatterOp)
def _scatter(batch: Batch, op: prim.ScatterOp) -> SSAValue:
    """As gather; inside of each example the order of updates stays."""
    e, kind = batch.e, text(literals_of(op)["kind"])
    x, updates = batch.over_all(op.x), batch.over_all(op.updates)
    further = tuple(d + 1 for d in ints(op.dims.data))
    if not any(map(batch.is_mapped, op.indices)):
        behind = moved_behind(e, updates, len(ir.shape_of(op.indices[0])))
        return e.scatter(x, behind, [batch.shared(i) for i in op.indices], further, kind)
    indices = [batch.over_all(i) for i in op.indices]
    return e.scatter(x, updates, [_example_at(batch, indices[0]), *indices], (0, *further), kind)


@batching(prim.RngOp)
def _rng(batch: Batch, op: prim.RngOp) -> SSAValue:
    """Keys of the examples' own: the first one's stream, of which each example has a part of its own.

    Of the draws from one key, which have the counters offset.., the B examples have B·offset.., so they stay disjoint.
    """
    e, keys, shape = batch.e, batch.over_all(op.key), (batch.size, *ir.shape_of(op.y))
    if batch.size == 0:
        return e.const(0, shape, ir.dtype_of(op.y))
    key = e.reshape(e.slice(keys, 0, 0, 1), ())
    return e.rng(key, text(op.kind.data), dim(op.offset.data) * batch.size, shape, ir.dtype_of(op.y))
