"""Planned memory: values that are alive together never overlap, and schedules keep results."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prim_programs import Case, apply, check, programs

from isthmus import ir
from isthmus.passes.memory.arena import Interval, pack
from isthmus.passes.memory.plan_memory import Lifetimes
from isthmus.sizes import Size, evaluate

intervals = st.tuples(st.integers(1, 900), st.integers(0, 12), st.integers(0, 6)).map(
    lambda t: Interval(t[0], t[1], t[1] + t[2])
)


def overlaps(placed: list[tuple[int, int, Interval]]) -> bool:
    pairs = itertools.combinations(placed, 2)
    return any(a[2].meets(b[2]) and a[0] < b[1] and b[0] < a[1] for a, b in pairs)


@given(st.lists(intervals, max_size=20))
def test_intervals_that_meet_do_not_overlap(buffers: list[Interval]) -> None:
    offsets, total = pack(buffers)
    placed = [(int(o), int(o) + int(b.nbytes), b) for o, b in zip(offsets, buffers, strict=True)]  # pyright: ignore
    assert not overlaps(placed)
    assert all(o % 64 == 0 for o, _, _ in placed)
    assert max((end for _, end, _ in placed), default=0) <= total  # pyright: ignore[reportOperatorIssue]


@given(st.lists(intervals, min_size=1, max_size=20))
def test_the_arena_is_not_larger_than_all_buffers_apart(buffers: list[Interval]) -> None:
    _, total = pack(buffers)
    assert total <= sum((int(b.nbytes) + 63) // 64 * 64 for b in buffers)  # pyright: ignore[reportOperatorIssue]


@given(st.lists(st.tuples(intervals, st.sampled_from([0, 1, 2])), max_size=12), st.integers(1, 40), st.integers(1, 40))
def test_symbolic_intervals_do_not_overlap_at_any_size(buffers: list[tuple[Interval, int]], s: int, t: int) -> None:
    symbols = [1, Size.symbol("s0"), Size.symbol("s0") * Size.symbol("s1") + 3]
    sized = [Interval(b.nbytes * symbols[k], b.first, b.last) for b, k in buffers]
    offsets, total = pack(sized)
    values = {"s0": s, "s1": t}
    placed = [
        (evaluate(o, values), evaluate(o, values) + evaluate(b.nbytes, values), b)
        for o, b in zip(offsets, sized, strict=True)
    ]
    assert not overlaps(placed)
    assert max((end for _, end, _ in placed), default=0) <= evaluate(total, values)


def test_a_chain_needs_two_buffers() -> None:
    _, total = pack([Interval(640, k, k + 1) for k in range(10)])
    assert total == 1280


def test_random_order_does_not_matter_for_safety() -> None:
    rng = random.Random(0)
    buffers = [Interval(64 * rng.randint(1, 9), k, k + rng.randint(0, 5)) for k in range(30)]
    rng.shuffle(buffers)
    offsets, _ = pack(buffers)
    assert not overlaps([(int(o), int(o) + int(b.nbytes), b) for o, b in zip(offsets, buffers, strict=True)])  # pyright: ignore


@given(programs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_schedule_and_plan_keep_results(case: Case) -> None:
    module = check(case.module, case.arguments, ["fuse", "schedule{vector-bits=256}", "plan-memory"])
    lives = Lifetimes(ir.function(module, "main"))
    placed: list[tuple[int, int, Interval]] = []
    for buffer in dict.fromkeys(lives.buffers.values()):
        op = buffer.values[0].owner
        places = (op.properties.get("places") or op.attributes.get("places")).data  # pyright: ignore
        kind, offset = places[op.results.index(buffer.values[0])]  # pyright: ignore
        if kind == "temporary":
            end = offset + int(buffer.nbytes)  # pyright: ignore
            placed.append((offset, end, Interval(buffer.nbytes, buffer.first, buffer.last)))
            assert end <= ir.literal(ir.function(module, "main"), "isthmus.temporary_bytes")  # pyright: ignore
    assert not overlaps(placed)


@pytest.mark.parametrize("passes", [["fuse", "schedule"], ["fuse", "plan-memory"]])
def test_passes_are_independent(passes: list[str]) -> None:
    import torch
    from prim_programs import Program

    p = Program([torch.randn(8, 4, dtype=torch.float64)])
    module = p.module([p.e.exp(p.args[0])])
    apply(module, passes)
