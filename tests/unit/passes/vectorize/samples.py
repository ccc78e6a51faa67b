"""Samples of what differentiation tests elsewhere: control flow, random numbers, library calls, attention's parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from tests.unit.passes.autodiff.sample import Sample, numbers

Body = Callable[..., Sequence[SSAValue]]


def _regions(e: Emitter, types: Sequence[ir.Attribute], *bodies: Body):
    regions = []
    for body in bodies:
        region, inner, arguments = e.region(types)
        inner.yield_(body(inner, *arguments))
        regions.append(region)
    return regions


def cond(e: Emitter, p: SSAValue, x: SSAValue, w: SSAValue) -> Sequence[SSAValue]:
    """p ? (sin(x)·w, w) : (x, x)"""
    regions = _regions(
        e, [x.type, w.type], lambda e, x, w: [e.mul(e.unary(prim.SinOp, x), w), w], lambda e, x, w: [x, x]
    )
    op = ir.create_op(prim.CondOp, [p, x, w], [x.type, x.type], regions=regions)
    e.block.add_op(op)
    return op.results


def predicated(e: Emitter, x: SSAValue, w: SSAValue) -> Sequence[SSAValue]:
    """The predicate is Σx > 0."""
    total = e.reduce("add", x, (0,))
    return cond(e, e.cmp("gt", total, e.const_like(0, total)), x, w)


def while_(e: Emitter, i: SSAValue, x: SSAValue, w: SSAValue) -> Sequence[SSAValue]:
    """while i < 4: i, x = i + 1, x·w + x"""
    types = [i.type, x.type, w.type]
    step = lambda e, i, x, w: [e.add(i, e.const_like(1, i)), e.add(e.mul(x, w), x)]  # noqa: E731
    going = lambda e, i, x, w: [e.cmp("lt", i, e.const_like(4, i))]  # noqa: E731
    literals = {"carried": Literal.of(2)}
    op = ir.create_op(prim.WhileOp, [i, x, w], [i.type, x.type], literals, regions=_regions(e, types, going, step))
    e.block.add_op(op)
    return op.results


def counted(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
    return while_(e, e.const(0, (), "i64"), x, w)[1]


def until_large(e: Emitter, x: SSAValue, w: SSAValue) -> Sequence[SSAValue]:
    """while Σx² < 9 and i < 6: as often as each example needs"""

    def going(e: Emitter, i: SSAValue, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        total = e.reduce("add", e.mul(x, x), (0,))
        small = e.cmp("lt", total, e.const_like(9, total))
        return [e.binary(prim.AndOp, small, e.cmp("lt", i, e.const_like(6, i)))]

    step = lambda e, i, x, w: [e.add(i, e.const_like(1, i)), e.add(e.mul(x, e.mul(w, w)), x)]  # noqa: E731
    start = e.stop_gradient(e.const(0, (), "i64"))
    types = [start.type, x.type, w.type]
    literals = {"carried": Literal.of(2)}
    regions = _regions(e, types, going, step)
    op = ir.create_op(prim.WhileOp, [start, x, w], [start.type, x.type], literals, regions=regions)
    e.block.add_op(op)
    return op.results


def scan(reverse: bool) -> Callable[..., Sequence[SSAValue]]:
    """c, y[t] = c·x[t] + w, c·w"""

    def build(e: Emitter, c: SSAValue, x: SSAValue, w: SSAValue) -> Sequence[SSAValue]:
        step = lambda e, c, x, w: [e.add(e.mul(c, x), w), e.mul(c, w)]  # noqa: E731
        row = ir.tensor(ir.shape_of(x)[1:], ir.dtype_of(x))
        regions = _regions(e, [c.type, row, w.type], step)
        literals = {"carried": Literal.of(1), "scanned": Literal.of(1), "reverse": Literal.of(reverse)}
        op = ir.create_op(prim.ScanOp, [c, x, w], [c.type, x.type], literals, regions=regions)
        e.block.add_op(op)
        return op.results

    return build


MORE_SAMPLES: list[Sample] = [
    Sample(prim.ArgReduceOp, "", lambda e, x: e.arg_reduce("max", x, 1), (numbers(3, 4),)),
    Sample(prim.CondOp, "of data", predicated, (numbers(4), numbers(4, seed=1))),
    Sample(prim.CondOp, "given", cond, (torch.tensor(True), numbers(4), numbers(4, seed=1))),
    Sample(prim.WhileOp, "counted", counted, (numbers(4), numbers(4, seed=1))),
    Sample(prim.WhileOp, "until large", until_large, (numbers(4, low=0.5), numbers(4, low=0.5, seed=1))),
    Sample(prim.ScanOp, "", scan(False), (numbers(4), numbers(3, 4, seed=1), numbers(4, seed=2))),
    Sample(prim.ScanOp, "reverse", scan(True), (numbers(4), numbers(3, 4, seed=1), numbers(4, seed=2))),
]
