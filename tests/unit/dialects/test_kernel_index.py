"""Index expressions: every operation against evaluation at all points of a small space."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.dialects import kernel
from isthmus.dialects.kernel import Expr, Map, constant, dim, sizes_as_bounds
from isthmus.sizes import Size

SIZES = (3, 4, 5)
BOUNDS = sizes_as_bounds(SIZES)
POINTS = list(itertools.product(*map(range, SIZES)))

leaves = st.one_of(st.integers(-4, 12).map(constant), st.integers(0, 2).map(dim))


def compound(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    factors = st.integers(-3, 12)
    divisors = st.integers(1, 12)
    return st.one_of(
        st.tuples(children, children).map(lambda p: p[0] + p[1]),
        st.tuples(children, factors).map(lambda p: p[0] * p[1]),
        st.tuples(children, divisors).map(lambda p: p[0].floordiv(p[1], BOUNDS)),
        st.tuples(children, divisors).map(lambda p: p[0].mod(p[1], BOUNDS)),
    )


exprs = st.recursive(leaves, compound, max_leaves=6)


def values(expr: Expr) -> list[int]:
    return [expr.evaluate(p) for p in POINTS]


@given(exprs, exprs)
def test_sums_and_differences(a: Expr, b: Expr) -> None:
    assert values(a + b) == [x + y for x, y in zip(values(a), values(b), strict=True)]
    assert values(a - b) == [x - y for x, y in zip(values(a), values(b), strict=True)]


@given(exprs, st.integers(1, 20))
def test_quotient_and_remainder(a: Expr, by: int) -> None:
    assert values(a.floordiv(by, BOUNDS)) == [x // by for x in values(a)]
    assert values(a.mod(by, BOUNDS)) == [x % by for x in values(a)]
    assert a.floordiv(by, BOUNDS) * by + a.mod(by, BOUNDS) is a


@given(exprs)
def test_range_holds(a: Expr) -> None:
    reach = a.range(BOUNDS)
    if reach is not None:
        low, high = reach
        assert low <= min(values(a)) and max(values(a)) <= high  # pyright: ignore[reportOperatorIssue]
        if a.is_affine():
            assert {low, high} <= set(values(a))


@given(exprs, st.lists(leaves, min_size=3, max_size=3))
def test_substitute(a: Expr, new: list[Expr]) -> None:
    expected = [a.evaluate([n.evaluate(p) for n in new]) for p in POINTS]
    assert values(a.substitute(new)) == expected


@given(exprs, st.integers(1, 12))
def test_split(a: Expr, by: int) -> None:
    quotient, rest = a.split(by)
    assert quotient * by + rest is a


@given(exprs)
@settings(max_examples=50)
def test_text_reads_back(a: Expr) -> None:
    from xdsl.context import Context
    from xdsl.parser import Parser

    from isthmus.dialects.kernel.map import parse_exprs

    (read,) = parse_exprs(Parser(Context(), f"[{a}]"))
    assert values(read) == values(a)


def test_equal_expressions_are_one_object() -> None:
    assert dim(0) * 4 + dim(1) is dim(1) + dim(0) * 2 + dim(0) * 2
    assert Map.of([dim(0)]) is Map.of([dim(0)])


def test_a_reshape_there_and_back_is_the_identity() -> None:
    """[12] -> [3, 4] -> [12]: 4·⌊d0 / 4⌋ + d0 mod 4 = d0."""
    bounds = sizes_as_bounds([12])
    split = Map.of([dim(0).floordiv(4, bounds), dim(0).mod(4, bounds)])
    assert not split.is_affine()
    assert split.linear([4, 1]) is dim(0)


def test_three_way_split_recombines() -> None:
    bounds = sizes_as_bounds([24])
    c, h, w = (
        dim(0).floordiv(12, bounds),
        dim(0).floordiv(4, bounds).mod(3, bounds),
        dim(0).mod(4, bounds),
    )
    assert Map.of([c, h, w]).linear([12, 4, 1]) is dim(0)


def test_merged_dims_come_apart() -> None:
    """[3, 4] -> [12] -> [3, 4] within a space of 3 x 4: no quotient is left."""
    bounds = sizes_as_bounds([3, 4])
    flat = dim(0) * 4 + dim(1)
    assert flat.floordiv(4, bounds) is dim(0)
    assert flat.mod(4, bounds) is dim(1)


def test_symbolic_sizes_come_apart() -> None:
    b, t = Size.symbol("s0"), Size.symbol("s1")
    bounds = sizes_as_bounds([b, t, 8])
    flat = dim(0) * (t * 8) + dim(1) * 8 + dim(2)
    assert flat.floordiv(t * 8, bounds) is dim(0)
    assert flat.mod(t * 8, bounds) is dim(1) * 8 + dim(2)
    assert flat.mod(t * 8, bounds).floordiv(8, bounds) is dim(1)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(Size.symbol("s0") - 1, True), (Size.symbol("s0") - 2, False), (Size.symbol("s0") * -1 + 5, False), (0, True)],
)
def test_is_nonnegative(size: Size | int, expected: bool) -> None:
    assert kernel.is_nonnegative(size) is expected


def test_positions_that_dims_separate():
    sizes = (3, 12, 64)

    def separates(map_: Map, *dims: int) -> bool:
        return map_.separates(frozenset(dims), sizes)

    linear = dim(0) * 768 + dim(1) * 64 + dim(2)
    assert separates(Map.of([linear]), 2) and separates(Map.of([linear]), 1, 2) and separates(Map.of([linear]), 0, 1, 2)
    assert not separates(Map.of([linear]), 1)  # (0, 64) is (1, 0)
    assert separates(Map.of([dim(0), dim(1) * 64 + dim(2)]), 0, 1, 2)
    assert separates(Map.of([dim(2) * 2 + constant(5)]), 2)
    assert not separates(Map.of([dim(1) * 63 + dim(2)]), 2)
    assert not separates(Map.of([dim(1) * 63 + dim(2)]), 1, 2)
    assert not separates(Map.of([dim(1) * 64]), 2)
    assert not separates(Map.of([dim(2).floordiv(2)]), 2)
    n = Size.symbol("n")
    assert Map.of([dim(0) * n + dim(1)]).separates(frozenset({1}), (3, n))
    assert not Map.of([dim(0) * 4 + dim(1)]).separates(frozenset({1}), (3, n))


@given(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.sets(st.integers(0, 2), min_size=1))
def test_separated_positions_differ(coefficients, dims):
    sizes = (2, 3, 4)
    expr = sum((dim(k) * c for k, c in enumerate(coefficients)), constant(0))
    if not Map.of([expr]).separates(frozenset(dims), sizes):
        return
    seen: dict[int, tuple[int, ...]] = {}
    for position in itertools.product(*map(range, sizes)):
        key = tuple(position[d] for d in sorted(dims))
        assert seen.setdefault(expr.evaluate(position), key) == key
