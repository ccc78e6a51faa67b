"""Symbolic sizes: arithmetic agrees with integers, text round-trips, equal means identical."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.sizes import Dim, Size, bounds, evaluate, exact_quotient, may_be_negative, size_max, size_min

A = Size.symbol("a")
SYMBOLS = ("s0", "s1", "s2")
VALUES = st.fixed_dictionaries({s: st.integers(1, 50) for s in SYMBOLS})


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3):
    """A size and a function that computes it from plain integers."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(SYMBOLS))
            return Size.symbol(name), lambda env, name=name: env[name]
        n = draw(st.integers(-3, 9))
        return n, lambda env, n=n: n
    left, f = draw(expressions(depth=depth - 1))
    right, g = draw(expressions(depth=depth - 1))
    name = draw(st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]))
    if name in ("//", "%"):
        n = draw(st.integers(1, 7))
        op = operator.floordiv if name == "//" else operator.mod
        return op(left, n), lambda env: op(f(env), n)
    mine = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": size_max, "min": size_min}[name]
    plain = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": max, "min": min}[name]
    return mine(left, right), lambda env: plain(f(env), g(env))


@given(expressions(), VALUES)
def test_arithmetic_agrees_with_integers(expression, values):
    size, plain = expression
    assert evaluate(size, values) == plain(values)


@given(expressions())
def test_text_round_trips_to_the_same_object(expression):
    size, _ = expression
    parsed = Size.parse(str(size))
    assert parsed is size or parsed == size


def test_equal_polynomials_are_one_object():
    s, t = Size.symbol("s0"), Size.symbol("s1")
    assert (s + 1) * t is t * s + t
    assert s - s == 0 and isinstance(s - s, int)
    assert (4 * s * t) // (2 * s) is 2 * t


@pytest.mark.parametrize(
    ("dim", "by", "quotient"),
    [
        (12, 4, 3),
        (12, 5, None),
        (0, 5, 0),
        (Size.symbol("a") * 6, 3, Size.symbol("a") * 2),
        (Size.symbol("a") + 1, 2, None),
    ],
)
def test_exact_quotient(dim: Dim, by: Dim, quotient: Dim | None):
    assert exact_quotient(dim, by) == quotient


@pytest.mark.parametrize("text", ["", "s0 +", "s0 ? 1", "(s0", "max(s0)", "s0 s1"])
def test_malformed_text_is_refused(text: str):
    with pytest.raises(ValueError, match="size"):
        Size.parse(text)


@given(expressions(), VALUES)
def test_what_is_said_not_to_be_negative_is_not(expression, values):
    size, _ = expression
    assert may_be_negative(size) or evaluate(size, values) >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s0*s1 + 1", False),
        ("s0 - 1", True),
        ("min(s0 - 1, 3)", True),
        ("max(s0 - 1, 3)", False),
        ("((s0 - 1) // (s1))", True),
        ("((s0 - 1) % (s1))", False),
    ],
)
def test_what_may_be_negative(text: str, expected: bool):
    assert may_be_negative(Size.parse(text)) == expected


@given(expressions(), st.fixed_dictionaries({s: st.integers(-60, 60) for s in SYMBOLS}))
def test_bounds_hold_for_any_integers(expression, values):
    size, plain = expression
    low, high = bounds(size)
    assert low <= plain(values) <= high
    assert evaluate(size, values) == plain(values)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("(64*s0 + 63)//64", "s0"),
        ("(64*s0 + 3) % 64", "3"),
        ("(3072*max(1, min(s0//32, 16)) + 3072)//131072", "0"),
        ("max(1, min(64, min((12288*max(1, min(s0//32, 16)) + 12288)//131072, 3072)))", "1"),
        ("min(s0 % 7, 6)", "s0 % 7"),
        ("max(s0 + 1, s0)", "s0 + 1"),
        ("((s0 + 1)//2 + 1)//2", "(s0 + 3)//4"),
        ("((s0 - 1)//3 + 2*s1 - 5)//4", "(s0 + 6*s1 - 16)//12"),
        ("(s0//2//2 + s1)//2//2", "(s0 + 4*s1)//16"),
    ],
)
def test_what_bounds_decide_is_decided(text: str, same: str):
    assert Size.parse(text) == Size.parse(same)


@pytest.mark.parametrize(
    "text", ["max(0, s0)", "(s0 + 3)//4", "min(s0 % 7, 5)", "max(1, min(s0, 16))", "min(s0*s1, 4)"]
)
def test_what_bounds_do_not_decide_stays(text: str):
    assert isinstance(Size.parse(text), Size)
    assert str(Size.parse(str(Size.parse(text)))) == str(Size.parse(text))
