"""Recomputing as little as a budget allows: against brute force, and the budget is kept."""

from __future__ import annotations

import itertools

import pytest
from scipy.optimize import milp
from xdsl.dialects.func import FuncOp

from isthmus.diagnostics import IRError
from isthmus.dialects import prim
from isthmus.passes.partition import optimal
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.memory import peak
from isthmus.passes.partition.network import plan_min_cut, price_values
from isthmus.passes.partition.optimal import _Program, measure, pareto, plan_optimal
from isthmus.passes.partition.recompute import NEVER
from tests.unit.passes.partition.joints import PRIMAL, check, gradient, joint, tangent
from tests.unit.passes.partition.test_models import differentiated, gpt, total
from tests.unit.passes.partition.test_partition import SQUARE, VECTOR, cos_of_cos, tagged


def mlp() -> FuncOp:
    """x -> sum of sin(sin(tanh(x w) w) w): contractions that a small budget makes run again."""

    def program(e, x, w):
        for step in (e.tanh, e.sin, e.sin):
            x = step(e.matmul(x, w))
        return total(e, x)

    return differentiated([SQUARE, SQUARE], [PRIMAL, PRIMAL], program)


@pytest.mark.parametrize("saved_bytes", [0, 64, 100, 130, 192, 300])
def test_no_choice_of_saved_values_is_quicker(saved_bytes: int) -> None:
    program = _Program(Joint.of(mlp()))
    best = program.solve(saved_bytes)
    assert best.saved <= saved_bytes
    free = [v for v in program.values if program.priced.prices[v].keep == 0]
    priced = [v for v in program.values if program.priced.prices[v].keep != 0]
    assert len(priced) <= 12
    for count in range(saved_bytes // 64 + 1):
        for chosen in itertools.combinations(priced, count):
            point = measure(type(program.priced)(program.joint, (*free, *chosen), *_numbers(program)), 0.0)
            if point.saved <= saved_bytes:
                assert best.time <= point.time


def _numbers(program: _Program):
    return program.priced.prices, program.priced.cones


@pytest.mark.parametrize("part", [0.2, 1.0, 1.4])
def test_a_budget_is_kept_and_the_bits_are_the_same(part: float) -> None:
    """Budgets between the lowest peak that any cut has and beyond that of the cheapest one."""
    func = gpt(1)
    lowest, reference = pareto(Joint.of(func), 4)[0].peak, measure(plan_min_cut(Joint.of(func)), 0.0)
    limit = lowest + part * (reference.peak - lowest)
    plan, _ = check(func, "optimal", budget=limit)
    point = measure(plan, 0.0)
    assert point.peak <= limit
    assert point.time <= reference.time or part < 1


def test_a_budget_that_no_cut_keeps_gives_the_lowest_peak_that_was_found() -> None:
    func = gpt(1)
    plan, _ = check(func, "optimal", budget=1000.0)
    assert 1000 < measure(plan, 0.0).peak <= measure(plan_min_cut(Joint.of(func)), 0.0).peak


def test_a_search_ends_after_steps_and_not_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy finds the same cut."""
    found = []

    def slow(*arguments: object, options: dict[str, float], **settings: object) -> object:
        result = milp(*arguments, options={**options, "time_limit": 1e9}, **settings)  # type: ignore[arg-type]
        found.append(result)
        return result

    monkeypatch.setattr(optimal, "milp", slow)
    monkeypatch.setattr(optimal, "NODES", 1)
    monkeypatch.setattr(optimal, "GAP", 0.0)
    program = _Program(Joint.of(gpt(2)))
    bounds = [program.all_bytes * k // 48 for k in (1, 2, 8)]
    first, second = ([program.solve(b).plan.kept for b in bounds] for _ in range(2))
    assert first == second
    assert any(r.mip_gap > 0 for r in found), "no search was ended"


def test_with_room_for_all_nothing_is_recomputed() -> None:
    plan, halves = check(gpt(1), "optimal", budget=1e12)
    assert measure(plan, 0.0).time == 0
    assert not [op for op in halves.recomputed if not isinstance(op, (prim.ViewOp, prim.SourceOp))]


def test_the_curve_falls() -> None:
    points = pareto(Joint.of(gpt(2)), 9)
    assert len(points) >= 3
    for a, b in itertools.pairwise(points):
        assert a.peak < b.peak and a.time > b.time


def test_what_a_policy_keeps_and_library_calls_do_not_run_again() -> None:
    _, halves = check(joint(*tagged("must_save")), "optimal", budget=0)
    assert not [op for op in halves.recomputed if isinstance(op, (prim.ContractionOp, *NEVER))]
    _, halves = check(joint(*tagged("must_recompute")), "optimal", budget=1e12)
    assert sum(isinstance(op, prim.ContractionOp) for op in halves.recomputed) == 2


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(IRError, match="must not be negative"):
        plan_optimal(Joint.of(joint([VECTOR, VECTOR], [PRIMAL, tangent()], cos_of_cos)), -1)


def test_the_peak_counts_what_is_written_until_it_is_read_for_the_last_time() -> None:
    """A contraction reads sin(x) and t from memory and writes y; the last multiplication writes its result only."""

    def build(e, x, t):
        y = e.matmul(e.sin(x), t)
        return [e.mul(e.cos(y), e.transpose(t, (1, 0)))], [gradient()]

    func = joint([SQUARE, SQUARE], [PRIMAL, tangent()], build)
    x, t = func.body.block.args
    sizes = Joint.of(func).nbytes
    assert peak(func, [x], sizes) == 2 * 64  # sin(x) beside x, then beside y, then y beside the result
    assert peak(func, [x, t], sizes) == 3 * 64  # t is read to the end, through a view


def test_the_prices_are_those_of_the_cut() -> None:
    func = mlp()
    assert price_values(Joint.of(func)).prices.keys() == plan_min_cut(Joint.of(func)).prices.keys()
