"""Masks made of positions are known as two numbers and a diagonal, exactly where evaluating them gives that."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.analysis.steps import step_of
from isthmus.runtime.interpret import interpreted

N = 6
SHAPE = (N, N)


def difference(e: Emitter) -> SSAValue:
    return e.sub(e.iota(SHAPE, 1), e.iota(SHAPE, 0))


def compared(predicate: str, offset: int) -> Callable[[Emitter], SSAValue]:
    return lambda e: e.cmp(predicate, difference(e), e.const(offset, SHAPE, "i64"))


def rows_first(e: Emitter) -> SSAValue:
    row, column = (e.broadcast(e.iota((N,), 0), SHAPE, (d,)) for d in (0, 1))
    return e.cmp("ge", row, e.add(column, e.const(1, SHAPE, "i64")))


def filled(e: Emitter) -> SSAValue:
    inside = e.const(0.0, SHAPE, "f32")
    return e.select(compared("ge", 1)(e), e.const(-math.inf, SHAPE, "f32"), inside)


def multiplied(e: Emitter) -> SSAValue:
    lower = e.convert(compared("le", 0)(e), "f32")
    return e.mul(e.sub(e.const(1.0, SHAPE, "f32"), lower), e.const(-1e9, SHAPE, "f32"))


def lifted(e: Emitter) -> SSAValue:
    return e.broadcast(e.reshape(filled(e), (1, N, N)), (3, 1, N, N), (1, 2, 3))


KNOWN: dict[str, Callable[[Emitter], SSAValue]] = {
    **{f"{p} {o}": compared(p, o) for p in ("le", "lt", "ge", "gt") for o in (-2, 0, 3)},
    "rows first": rows_first,
    "contrary": lambda e: e.not_(compared("le", 0)(e)),
    "filled": filled,
    "multiplied": multiplied,
    "lifted": lifted,
    "turned": lambda e: e.broadcast(filled(e), SHAPE, (1, 0)),
    "is nothing": lambda e: e.cmp("eq", filled(e), e.const(0.0, SHAPE, "f32")),
    "a number": lambda e: e.const(2.5, SHAPE, "f32"),
}


def value_of(build: Callable[[Emitter], SSAValue]) -> tuple[SSAValue, torch.Tensor]:
    block = Block()
    made = build(Emitter(block))
    block.add_op(ReturnOp(made))
    func = FuncOp("main", FunctionType.from_lists([], [made.type]), Region(block))
    ModuleOp([func])
    return made, interpreted(func)([])[0]


@pytest.mark.parametrize("name", KNOWN)
def test_a_step_is_what_evaluation_gives(name: str) -> None:
    made, value = value_of(KNOWN[name])
    step = step_of(made)
    assert step is not None
    if step.row is None:
        assert torch.equal(value, torch.full_like(value, step.inside))
        return
    assert step.column is not None and step.row < step.column
    where = torch.meshgrid(*(torch.arange(n) for n in value.shape), indexing="ij")
    inside = where[step.column] - where[step.row] <= step.offset
    wanted = torch.where(inside, torch.tensor(step.inside), torch.tensor(step.outside)).to(value.dtype)
    assert torch.equal(value, wanted)


UNKNOWN: dict[str, Callable[[Emitter], SSAValue]] = {
    "only a row": lambda e: e.cmp("le", e.iota(SHAPE, 0), e.const(3, SHAPE, "i64")),
    "on the diagonal": compared("eq", 0),
    "two diagonals": lambda e: e.and_(compared("le", 0)(e), compared("ge", -2)(e)),
    "a slope": lambda e: e.cmp("le", e.mul(difference(e), e.const(2, SHAPE, "i64")), e.const(1, SHAPE, "i64")),
    "positions": difference,
    "a function": lambda e: e.exp(filled(e)),
    "differences that begin anew": lambda e: e.cmp(
        "le", e.sub(e.iota(SHAPE, 1, "u8"), e.iota(SHAPE, 0, "u8")), e.sub(*[e.iota(SHAPE, 1, "u8")] * 2)
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_no_step_is_not_taken_for_one(name: str) -> None:
    block = Block()
    assert step_of(UNKNOWN[name](Emitter(block))) is None


def test_dims_that_are_cut_are_another_matter() -> None:
    block = Block()
    e = Emitter(block)
    assert step_of(e.reshape(filled(e), (N * N,))) is None
    assert isinstance(filled(e).owner, prim.SelectOp)
