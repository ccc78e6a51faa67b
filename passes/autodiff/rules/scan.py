"""Making loops over a leading dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal

Step = Callable[
    [Emitter, list[SSAValue], list[SSAValue], list[SSAValue]], tuple[Sequence[SSAValue], Sequence[SSAValue]]
]
"""`step(e, carries, slices, rest)` gives the next carries and what this step adds to the stacked results."""


def make_scan(
    e: Emitter,
    carries: Sequence[SSAValue],
    scanned: Sequence[SSAValue],
    rest: Sequence[SSAValue],
    step: Step,
    reverse: bool,
) -> tuple[list[SSAValue], list[SSAValue]]:
    """Give the last carries and the stacked values of a loop along dimension 0 of `scanned`."""
    length = ir.shape_of(scanned[0])[0]
    slices = [ir.tensor(ir.shape_of(v)[1:], ir.dtype_of(v)) for v in scanned]
    types = [*(v.type for v in carries), *slices, *(v.type for v in rest)]
    region, inner, arguments = e.region(types)
    inner.location = e.location
    first, second = len(carries), len(carries) + len(scanned)
    following, values = step(inner, list(arguments[:first]), list(arguments[first:second]), list(arguments[second:]))
    inner.yield_([*following, *values])
    stacked = [ir.tensor((length, *ir.shape_of(v)), ir.dtype_of(v)) for v in values]
    op = ir.create_op(
        prim.ScanOp,
        [*carries, *scanned, *rest],
        [*(v.type for v in carries), *stacked],
        {"carried": Literal.of(first), "scanned": Literal.of(len(scanned)), "reverse": Literal.of(reverse)},
        location=e.location,
        regions=[region],
    )
    e.block.add_op(op)
    return list(op.results[:first]), list(op.results[first:])
