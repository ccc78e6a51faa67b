"""Integers and booleans at the edges, against eager."""

from __future__ import annotations

import pytest
import torch

import isthmus
from tests.boundary.numeric_tables import (
    BINARY,
    INTEGERS,
    REMAINDERS,
    Table,
    check,
    pairs,
)


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()


WHOLE: Table = {
    **{
        n: BINARY[n]
        for n in ("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "eq", "lt", "ge", "logical_xor")
    },
    "where": BINARY["where"],
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}
WHOLE_UNARY: Table = {
    "neg": lambda x: -x,
    "abs": torch.abs,
    "sign": torch.sign,
    "square": torch.square,
    "not": torch.bitwise_not,
    "relu": torch.relu,
    "floor": torch.floor,
    "round": torch.round,
    "clamp": lambda x: x.clamp(1, 3),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "sum": lambda x: x.sum(),
    "sum in its dtype": lambda x: x.sum(dtype=x.dtype),
    "prod": lambda x: x.prod(),
    "amax": lambda x: x.amax(),
    "argmin": lambda x: x.argmin(),
    "pow 3": lambda x: x**3,
    "times 1.5": lambda x: x * 1.5,
    "plus true": lambda x: x + True,
    "shift left": lambda x: x << 2,
    "shift right": lambda x: x >> 1,
    "to float": lambda x: x.float(),
    "to bf16": lambda x: x.bfloat16(),
    "to int8": lambda x: x.to(torch.int8),
    "to uint8": lambda x: x.to(torch.uint8),
    "to int32": lambda x: x.to(torch.int32),
    "to bool": lambda x: x.bool(),
    "// 3": lambda x: x // 3,
    "% 3": lambda x: x % 3,
    "fmod 3": lambda x: torch.fmod(x, 3),
    "trunc 3": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "/ 3": lambda x: x / 3,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_two_integers(dtype: torch.dtype):
    check(WHOLE, *pairs(INTEGERS[dtype], dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_one_integer(dtype: torch.dtype):
    check(WHOLE_UNARY, torch.tensor(INTEGERS[dtype], dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_divisions(dtype: torch.dtype):
    """Not by 0 (an error), and not the lowest number by -1, which eager leaves to the machine."""
    a, b = pairs(INTEGERS[dtype], dtype)
    keep = (b != 0) & ~((b == -1) & (a == torch.iinfo(dtype).min))
    division = {n: BINARY[n] for n in ("div", "div floor", "div trunc", "floor_divide")}
    check(division | REMAINDERS, a[keep], b[keep])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_division_by_zero_is_an_error(dtype: torch.dtype, mode: str):
    compiled = isthmus.compile(lambda a, b: torch.div(a, b, rounding_mode=mode))
    with pytest.raises(RuntimeError, match=r"(?i)zero"):
        compiled(torch.tensor([1, 2], dtype=dtype), torch.tensor([1, 0], dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype: torch.dtype):
    bits = torch.iinfo(dtype).bits
    a = torch.tensor(INTEGERS[dtype], dtype=dtype).repeat_interleave(5)
    b = torch.tensor([0, 1, 3, bits - 1, bits - 2], dtype=dtype).repeat(len(INTEGERS[dtype]))
    check({"left": torch.bitwise_left_shift, "right": torch.bitwise_right_shift}, a, b)


def test_booleans():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    table: Table = {
        "add": torch.add,
        "mul": torch.mul,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "not": lambda a, b: ~a,
        "lt": torch.lt,
        "maximum": torch.maximum,
        "sum": lambda a, b: a.sum(),
        "cumsum": lambda a, b: a.cumsum(0),
        "div": torch.div,
        "plus 1": lambda a, b: a + 1,
        "plus 0.5": lambda a, b: a + 0.5,
        "times float": lambda a, b: a * b.float(),
        "mean": lambda a, b: a.float().mean(),
        "any": lambda a, b: a.any(),
        "prod": lambda a, b: a.prod(),
        "pow": lambda a, b: a.int() ** 2,
        "argmax": lambda a, b: a.int().argmax(),
        "to uint8": lambda a, b: a.to(torch.uint8) - b.to(torch.uint8),
    }
    check(table, a, b)
