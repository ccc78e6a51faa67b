"""Random programs: the halves give the bits of the joint function, and no strategy beats the cut at its own prices."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.autodiff import RECOMPUTE, RECOMPUTE_TAGS
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Result
from isthmus.ir import Literal
from isthmus.passes.autodiff.differentiate import DifferentiatePass, differentiate
from isthmus.passes.partition.network import Plan
from isthmus.passes.partition.recompute import NEVER, tag_of
from isthmus.passes.partition.split import Halves
from tests.unit.passes.partition.joints import CONSTANT, KEY, OUTPUT, PRIMAL, Built, check, joint

N = 4
SQUARE = ir.tensor((N, N), "f32")
ROW = ir.tensor((N,), "f32")


def unary(e: Emitter, choose: random.Random, x: SSAValue) -> SSAValue:
    steps: list[Callable[[SSAValue], SSAValue]] = [
        e.sin, e.tanh, e.relu, e.logistic, e.neg, e.square,
        lambda v: e.scaled(v, 0.5),
        lambda v: e.transpose(v, (1, 0)),
        lambda v: e.softmax(v, 1),
        lambda v: e.reshape(e.reshape(v, (N * N,)), (N, N)),
        lambda v: e.reverse(v, (0,)),
        lambda v: e.broadcast(e.sum(v, (1,)), (N, N), (0,)),
        lambda v: e.broadcast(e.sum(v, (0,)), (N, N), (1,)),
        lambda v: e.sub(v, e.broadcast(e.moments(v, (1,))[0], (N, N), (0,))),
        lambda v: e.mul(v, e.broadcast(e.rsqrt(e.shifted(e.moments(v, (1,))[1], 0.1)), (N, N), (0,))),
        lambda v: e.pad(e.slice(v, 0, 1, N), 0, 1, 0),
        lambda v: e.concat([e.slice(v, 1, 2, N), e.slice(v, 1, 0, 2)], 1),
        lambda v: e.select(e.cmp("lt", v, e.const_like(0.2, v)), e.const_like(0.2, v), v),
    ]  # fmt: skip
    return choose.choice(steps)(x)


def binary(e: Emitter, choose: random.Random, x: SSAValue, y: SSAValue) -> SSAValue:
    steps: list[Callable[[SSAValue, SSAValue], SSAValue]] = [e.add, e.sub, e.mul, e.max, e.matmul]
    return choose.choice(steps)(x, y)


def program(seed: int) -> FuncOp:
    """Ten to thirty ops on square matrices, two outputs, an overwritten argument, random masks; then the derivative."""
    choose = random.Random(seed)

    def build(e: Emitter, x: SSAValue, y: SSAValue, z: SSAValue, key: SSAValue) -> Built:
        values = [x, y, z]
        for _ in range(choose.randrange(10, 30)):
            kind = choose.random()
            if kind < 0.5:
                made = unary(e, choose, choose.choice(values[-6:]))
            elif kind < 0.9:
                made = binary(e, choose, choose.choice(values[-6:]), choose.choice(values))
            else:
                mask = e.cmp("lt", e.rng(key, "uniform", 16 * len(values), (N, N), "f32"), e.const(0.7, (N, N)))
                made = e.select(mask, values[-1], e.const(0.0, (N, N)))
            if choose.random() < 0.15 and isinstance(made.owner, prim.PrimOp):
                made.owner.attributes[RECOMPUTE] = Literal.of(choose.choice(RECOMPUTE_TAGS))
            values.append(made)
        outputs = [values[-1], e.sum(choose.choice(values[3:]), (0, 1))]
        return [*outputs, e.scaled(choose.choice(values), 0.5)], [OUTPUT, OUTPUT, Result(mutated=choose.choice((0, 1)))]

    main = joint([SQUARE] * 3 + [ir.tensor((), "i64")], [PRIMAL, PRIMAL, CONSTANT, KEY], build, "main")
    made = differentiate(main, DifferentiatePass().fallbacks)
    parent = main.parent_op()
    assert parent is not None
    parent.regions[0].block.add_op(made)
    return made


def price(plan: Plan, halves: Halves) -> float:
    keeps = [plan.prices[v].keep for v in halves.saved]
    return sum(float("inf") if k is None else k for k in keeps)


@pytest.mark.parametrize("seed", range(150))
def test_random_programs_keep_their_bits_and_the_cut_is_cheapest(seed: int) -> None:
    func = program(seed)
    plan, halves = check(func, seed=seed)
    plain, plain_halves = check(func, "default", seed=seed)
    assert price(plan, halves) <= price(plain, plain_halves)
    for op in halves.recomputed:
        assert not isinstance(op, NEVER)
        told = tag_of(op) in ("must_recompute", "prefer_recompute")
        assert told or not isinstance(op, (prim.ContractionOp, prim.StructuredOp))


@pytest.mark.parametrize("seed", range(150, 180))
def test_the_cut_of_fewest_moved_bytes_keeps_the_bits_too(seed: int) -> None:
    plan, halves = check(program(seed), "min-traffic", seed=seed)
    for op in halves.recomputed:
        told = tag_of(op) in ("must_recompute", "prefer_recompute")
        assert told or plan.prices[op.results[0]].why_once is None


@pytest.mark.row("T29")
def test_the_same_program_gives_the_same_text() -> None:
    first, second = (check(program(7))[1] for _ in range(2))
    assert (str(first.forward), str(first.backward)) == (str(second.forward), str(second.backward))
