"""What can be computed for some rows of a matrix at a time, so that the matrix never exists as a whole.

From a product on, every value that has its rows is followed: through arithmetic, reductions along rows, products. What
comes out must be small (numbers of each row, another product's narrow rows) or a sum over rows (a weight's gradient).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import integer, ints

NARROW = 4
"""What comes out of all rows has at most this fraction of the matrix's bytes."""
WIDER = 8
"""The matrix is so many times as large as what it is made from: memory is saved, not just moved."""


@dataclass
class RowRegion:
    """Ops that are done for some rows at a time."""

    rows: int
    dims: dict[SSAValue, int]
    """Values that have the rows, and in which dim."""
    ops: list[Operation]
    sums: dict[SSAValue, Operation] = field(default_factory=dict[SSAValue, Operation])
    """Sums over all rows, each by the op of the region that gives a part of it."""
    outputs: dict[SSAValue, None] = field(default_factory=dict[SSAValue, None])
    """Values with rows that are wanted outside, put together of their pieces."""


def region_of(dot: prim.DotOp, ops: Sequence[Operation]) -> RowRegion | None:
    """Follow the rows of a product through the ops after it; None where it is wanted as a whole."""
    shape = ir.shape_of(dot.y)
    if ints(dot.batch_a.data) or len(ir.shape_of(dot.a)) != 2 or ints(dot.contract_a.data) != (1,):
        return None
    rows, whole, given = shape[0], ir.nbytes(dot.y), ir.nbytes(dot.a)
    if not isinstance(rows, int) or not isinstance(whole, int) or not isinstance(given, int) or whole < WIDER * given:
        return None
    region = RowRegion(rows, {dot.y: 0}, [dot])
    outside: set[SSAValue] = set()
    for op in ops[ops.index(dot) + 1 :]:
        given = ir.operands_of(op)
        found = [v for v in given if v in region.dims]
        waits = any(v in outside for v in given)
        joins = bool(found) and not waits and _join(region, op)
        if not joins:
            region.outputs.update(dict.fromkeys(found))
        if waits or (found and not joins):
            outside.update(op.results)
        if joins:
            outside.update(r for r in op.results if r in region.sums)
    size = {v: ir.nbytes(v) for v in region.outputs}
    small = all(isinstance(n, int) and n * NARROW <= whole for n in size.values())
    return region if small and len(region.ops) > 1 else None


def _join(region: RowRegion, op: Operation) -> bool:
    """Take an op into the region where its results have the rows, or are sums over them."""
    dims, rows = region.dims, region.rows
    found: int | None = None
    if isinstance(op, prim.DotOp):
        return _join_dot(region, op)
    if isinstance(op, (prim.ElementwiseOp, prim.StopGradientOp)):
        at = {dims[v] for v in op.operands if v in dims}
        found = at.pop() if len(at) == 1 else None
    elif isinstance(op, prim.BroadcastOp):
        found = ints(op.dims.data)[dims[op.x]]
    elif isinstance(op, prim.ReshapeOp):
        leading = dims[op.x] == 0 and ir.shape_of(op.y)[:1] == (rows,)
        found = 0 if leading else None
    elif isinstance(op, prim.TransposeOp):
        found = ints(op.perm.data).index(dims[op.x])
    elif isinstance(op, prim.ReduceOp):
        reduced, at = ints(op.dims.data), dims[op.x]
        if at not in reduced:
            found = at - sum(d < at for d in reduced)
        elif op.kind.data == "add" and len(ir.shape_of(op.x)) > 1:  # numbers of each row are summed as ever
            return _add_sum(region, op)
    elif isinstance(op, prim.GatherOp):
        found = 0 if row_index(op, dims) is not None else None
    if found is None:
        return False
    region.ops.append(op)
    dims.update((r, found) for r in op.results)
    return True


def row_index(op: prim.GatherOp, dims: dict[SSAValue, int]) -> int | None:
    """Which index operand of a gather says "my own row", so that a piece of the rows is gathered from itself."""
    if op.x not in dims or any(v in dims for v in op.indices):
        return None
    at = ints(op.dims.data)
    if dims[op.x] not in at:
        return None
    position = at.index(dims[op.x])
    index = op.indices[position].owner
    own = isinstance(index, prim.IotaOp) and integer(index.dim.data) == 0
    return position if own and ir.shape_of(op.y)[0] == ir.shape_of(op.x)[dims[op.x]] else None


def _join_dot(region: RowRegion, op: prim.DotOp) -> bool:
    if ints(op.batch_a.data):
        return False
    rows = region.dims.get(op.a), region.dims.get(op.b)
    pairs = list(zip(ints(op.contract_a.data), ints(op.contract_b.data), strict=True))
    if any(a == rows[0] or b == rows[1] for a, b in pairs):
        together = None in rows or rows in pairs  # rows against columns of the same matrix need all of it
        return together and _add_sum(region, op)
    if op.a in region.dims and op.b not in region.dims and region.dims[op.a] == 0:
        region.ops.append(op)
        region.dims[op.y] = 0
        return True
    return False


def _add_sum(region: RowRegion, op: Operation) -> bool:
    region.ops.append(op)
    region.sums[op.results[0]] = op
    return True
