"""The flow algorithm against brute force, and its behaviour at the edges."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.passes.partition.min_cut import Capacity, FlowNetwork, UnboundedCutError

Edge = tuple[int, int, Capacity]


def network(nodes: int, edges: list[Edge]) -> FlowNetwork:
    net = FlowNetwork()
    for _ in range(nodes):
        net.node()
    for edge in edges:
        net.edge(*edge)
    return net


def price(edges: list[Edge], before: tuple[bool, ...]) -> int | None:
    crossing = [c for a, b, c in edges if before[a] and not before[b]]
    return None if any(c is None for c in crossing) else sum(c for c in crossing if c is not None)


def all_minimum_cuts(nodes: int, edges: list[Edge]) -> tuple[int | None, list[tuple[bool, ...]]]:
    """Try every division of the nodes with node 0 before and the last one behind."""
    divisions = [(True, *middle, False) for middle in itertools.product((False, True), repeat=nodes - 2)]
    prices = {d: p for d in divisions if (p := price(edges, d)) is not None}
    best = min(prices.values(), default=None)
    return best, [d for d, p in prices.items() if p == best]


@st.composite
def small_networks(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    nodes = draw(st.integers(2, 7))
    node = st.integers(0, nodes - 1)
    capacity = st.one_of(st.integers(0, 6), st.none())
    return nodes, draw(st.lists(st.tuples(node, node, capacity), max_size=14))


@settings(max_examples=400, deadline=None)
@given(small_networks())
def test_cut_is_a_minimum_and_the_one_nearest_to_the_sink(case: tuple[int, list[Edge]]) -> None:
    nodes, edges = case
    best, cuts = all_minimum_cuts(nodes, edges)
    if best is None:
        with pytest.raises(UnboundedCutError) as raised:
            network(nodes, edges).minimum_cut(0, nodes - 1)
        path = raised.value.path
        assert (path[0], path[-1]) == (0, nodes - 1)
        assert all((a, b, None) in edges for a, b in itertools.pairwise(path))
        return
    cut = network(nodes, edges).minimum_cut(0, nodes - 1)
    assert cut.value == best
    assert price(edges, tuple(cut.before)) == best
    assert all(not b or mine for other in cuts for mine, b in zip(cut.before, other, strict=True))


def test_large_random_networks_are_cut_where_the_flow_says() -> None:
    """The value of the flow equals the price of the division: both bound the optimum from two sides."""
    choose = random.Random(0)
    for _ in range(20):
        edges = [(choose.randrange(80), choose.randrange(80), choose.randrange(50)) for _ in range(600)]
        cut = network(80, edges).minimum_cut(0, 79)
        assert price(edges, tuple(cut.before)) == cut.value


def test_capacities_are_exact_beyond_64_bits() -> None:
    huge = 2**80
    cut = network(4, [(0, 1, huge + 1), (1, 2, huge), (2, 3, None)]).minimum_cut(0, 3)
    assert cut.value == huge
    assert cut.before == [True, True, False, False]


def test_source_that_is_the_sink_has_no_cut() -> None:
    with pytest.raises(UnboundedCutError):
        network(1, []).minimum_cut(0, 0)


def test_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        network(2, [(0, 1, -1)])


def ladder(length: int) -> tuple[FlowNetwork, int, int]:
    """A chain of values, each of which the sink reads too: the shape of a deep network."""
    net = FlowNetwork()
    source, sink = net.node(), net.node()
    choose = random.Random(1)
    before = source
    for _ in range(length):
        inner, outer = net.node(), net.node()
        net.edge(before, inner, None)
        net.edge(inner, outer, choose.randrange(1, 1000))
        net.edge(outer, sink, choose.randrange(1, 1000))
        before = outer
    return net, source, sink


def test_time_grows_about_linearly_and_depth_is_no_limit() -> None:
    def seconds(length: int) -> float:
        net, source, sink = ladder(length)
        start = time.perf_counter()
        net.minimum_cut(source, sink)
        return time.perf_counter() - start

    short, long = min(seconds(2_000) for _ in range(3)), min(seconds(16_000) for _ in range(3))
    assert long < short * 8 * 6
