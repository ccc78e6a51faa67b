"""Positions in ordered rows."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import wide
from isthmus.passes.decompose.rules.reductions import take_along
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition


@decomposition("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    e: Emitter,
    call: Call,
    ordered: SSAValue,
    x: Scalar,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: SSAValue | None,
) -> SSAValue:
    """The number of elements of the row that are less than x (right: not greater)"""
    if not isinstance(x, SSAValue):
        x = e.full(x, (), ir.dtype_of(ordered))
    if sorter is not None:
        ordered = take_along(e, ordered, sorter, len(ir.shape_of(ordered)) - 1)
    values = wide(e, x)
    row = e.convert(ordered, ir.dtype_of(values))
    lead = len(ir.shape_of(row)) - 1
    if lead > 0 and not ir.shape_of(values):
        raise Refusal("a number searched in many rows is left to the library")
    shape = (*ir.shape_of(values), ir.shape_of(row)[-1])
    last = len(shape) - 1
    table = e.broadcast(row, shape, (last,)) if lead == 0 else e.broadcast(row, shape, (*range(lead), last))
    wanted = e.broadcast(values, shape, range(last))
    goes_right = right or side == "right"
    before = e.not_(e.cmp("gt" if goes_right else "ge", table, wanted))  # NaN is greater than every number
    return e.convert(e.sum(e.convert(before, "i64"), (last,)), call.dtype())


@decomposition("bucketize.Tensor", "bucketize.Scalar")
def bucketize(e: Emitter, call: Call, x: Scalar, boundaries: SSAValue, out_int32: bool, right: bool) -> SSAValue:
    return searchsorted(e, call, boundaries, x, out_int32, right, None, None)
