"""Values at the edges of every dtype: natively the bits of eager, the sign of zero included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus
from tests.boundary.numeric_tables import (
    BINARY,
    EDGES,
    FLOATS,
    REMAINDERS,
    Table,
    check,
    inf,
    nan,
    pairs,
)


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()


UNARY: Table = {
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "relu": torch.relu,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "frac": torch.frac,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0),
    "clamp_max": lambda x: x.clamp(max=0),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "logical_not": torch.logical_not,
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "bool": lambda x: x.bool(),
    "nan_to_num": torch.nan_to_num,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh from 0": lambda x: F.hardtanh(x, 0, 1),
    "hardtanh to 0": lambda x: F.hardtanh(x, -2, 0),
    "pow 0.5 with signs": lambda x: x**0.5,
    "threshold": lambda x: F.threshold(x, 0.5, -2.0),
    "heaviside": lambda x: torch.heaviside(x, torch.full_like(x, 0.5)),
    "pow 2": lambda x: x**2,
    "pow 0": lambda x: x**0,
    "pow 0.5": lambda x: x.abs() ** 0.5,
    "pow -1": lambda x: x**-1,
    "cumsum": lambda x: x.cumsum(0),
    "where": lambda x: torch.where(x > 0, x, -x),
    "masked_fill": lambda x: x.masked_fill(x > 1, -inf),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(0),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(0).indices,
    "any": lambda x: x.any(),
    "all": lambda x: x.all(),
    "plus a number": lambda x: x + 1,
    "minus from a number": lambda x: 1 - x,
    "times a number": lambda x: x * 0.1,
    "over a number": lambda x: x / 3,
    "floor over a number": lambda x: x // 2,
    "remainder of a number": lambda x: x % 2,
}

ROUNDED: Table = {
    "pow -0.5": lambda x: x**-0.5,
    "log": torch.log,
    "exp": torch.exp,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": lambda x: torch.sin(x.clamp(-100, 100)),
    "silu": F.silu,
    "softplus": F.softplus,
    "asin": torch.asin,
    "acosh": torch.acosh,
    "atan": torch.atan,
    "erf": torch.erf,
    "log2": torch.log2,
    "exp2": torch.exp2,
}
BINARY_ROUNDED: Table = {
    "hypot": torch.hypot,
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_float(dtype: torch.dtype):
    check(UNARY, torch.tensor(EDGES, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_float_up_to_the_last_bits(dtype: torch.dtype):
    check(
        ROUNDED,
        torch.tensor(EDGES, dtype=dtype),
        tolerance={torch.float64: 1e-14, torch.float32: 1e-6}.get(dtype, 1e-2),
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_floats(dtype: torch.dtype):
    check(BINARY, *pairs(EDGES, dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_floats_up_to_the_last_bits(dtype: torch.dtype):
    """The sign of a zero and what is infinite are eager's all the same."""
    a, b = pairs(EDGES, dtype)
    check(BINARY_ROUNDED, a, b, tolerance={torch.float64: 1e-14, torch.float32: 1e-6}.get(dtype, 2e-2))
    compiled = isthmus.compile(lambda a, b: tuple(f(a, b) for f in BINARY_ROUNDED.values()), fullgraph=True)
    for got, function in zip(compiled(a, b), BINARY_ROUNDED.values(), strict=True):
        want = function(a, b)
        zero = want == 0
        assert torch.equal(torch.signbit(got[zero]), torch.signbit(want[zero]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_next_numbers(dtype: torch.dtype):
    check({"nextafter": torch.nextafter}, *pairs(EDGES, dtype))


@pytest.mark.parametrize("count", [2, 3, 5, 9, 17, 33, 100])
def test_of_two_zeros_the_first_is_the_extremum(count: int):
    table: Table = {
        "amax": lambda x: x.amax(),
        "amin": lambda x: x.amin(),
        "amax of rows": lambda x: x.expand(3, -1).amax(1),
        "amin of columns": lambda x: x[:, None].expand(-1, 20).contiguous().amin(0),
    }
    for first in (0.0, -0.0):
        check(table, torch.tensor([first, -first] * count)[:count])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_remainders(dtype: torch.dtype):
    """Of numbers whose quotient fits: for 1 mod 1e-40 eager's vector code gives NaN, the exact remainder is known."""
    check(REMAINDERS, *pairs(EDGES[:15], dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers(dtype: torch.dtype):
    check({"pow": torch.pow}, *pairs(EDGES, dtype), tolerance=1e-12 if dtype is torch.float64 else 1e-2)


KINDS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
)


@pytest.mark.parametrize("scalar", [False, True], ids=["tensors", "with a 0-d tensor"])
def test_promotion(scalar: bool):
    """Every pair of dtypes."""
    values = [torch.tensor([0, 1, 2, 3]).to(k) for k in KINDS]
    table: Table = {}
    for i, first in enumerate(KINDS):
        for j, second in enumerate(KINDS):
            other = (lambda t: t[1]) if scalar else (lambda t: t)
            table[f"{first} + {second}"] = lambda *t, i=i, j=j, other=other: t[i] + other(t[j])
            table[f"{first} / {second}"] = lambda *t, i=i, j=j, other=other: t[i] / (other(t[j]) + 1)
    for i, kind in enumerate(KINDS):
        table[f"{kind} and numbers"] = lambda *t, i=i: t[i] * 2 + True
        table[f"{kind} and 0.3"] = lambda *t, i=i: t[i] * 0.3
    check(table, *values)


def test_floats_to_integers_in_range():
    x = torch.tensor([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 2.5, 100.7, -100.7, 1e-30])
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8)
    check({f"{k}": lambda x, k=k: x.to(k) for k in kinds}, x)
    check({f"{k}": lambda x, k=k: x.to(k) for k in kinds}, x.double())
    check({f"{k}": lambda x, k=k: x.to(k) for k in kinds}, x.bfloat16())


def test_wide_floats_out_of_range():
    """NaN and what is too large: what this machine's conversion gives."""
    x = torch.tensor([nan, inf, -inf, 1e30, -1e30, 3e9, -3e9, 2.0**31, 2.0**62])
    check({"i64": lambda x: x.to(torch.int64), "i32": lambda x: x.to(torch.int32)}, x)
    check({"i64": lambda x: x.to(torch.int64), "i32": lambda x: x.to(torch.int32)}, x.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_step_of_a_half_rounds(dtype: torch.dtype):
    x = torch.linspace(-3, 3, 97).to(dtype)
    y = torch.linspace(0.1, 7, 97).to(dtype)
    table: Table = {
        "mul add": lambda x, y: x * y + x,
        "three sums": lambda x, y: x + y + x + y,
        "sub square": lambda x, y: (x - y) * (x - y),
        "number": lambda x, y: x * 0.1 + 0.3,
        "quotient": lambda x, y: x / y * y,
        "float detour": lambda x, y: (x.float() * y.float() + x.float()).to(x.dtype),
        "compare": lambda x, y: (x * y) > (x + y),
        "to double": lambda x, y: (x * y).double(),
        "sqrt": lambda x, y: y.sqrt() * y,
    }
    check(table, x, y)


EMPTY: Table = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(0),
    "sum of columns": lambda x: x.sum(1),
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(0),
    "prod": lambda x: x.prod(),
    "any": lambda x: x.any(),
    "all": lambda x: x.all(),
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(0),
    "sin": lambda x: x.sin(),
    "cat": lambda x: torch.cat([x, x]),
    "matmul": lambda x: x.t() @ x,
    "norm": lambda x: x.norm(),
}


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, ...]):
    check(EMPTY, torch.zeros(shape))


def test_rows_without_a_finite_number():
    x = torch.tensor([[-inf] * 3, [inf, 0.0, 1.0], [nan, 0.0, 1.0], [-inf, 0.0, -inf]])
    table: Table = {
        "softmax": lambda x: x.softmax(-1),
        "log_softmax": lambda x: x.log_softmax(-1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "argmax": lambda x: x.argmax(-1),
        "argmin": lambda x: x.argmin(-1),
        "amax": lambda x: x.amax(-1),
        "max": lambda x: x.max(-1).values,
        "max at": lambda x: x.max(-1).indices,
        "mean": lambda x: x.mean(-1),
        "cummax": lambda x: x.cummax(-1).values,
        "sort": lambda x: x.sort(-1).values,
    }
    check(table, x, tolerance=1e-6)


def test_the_sign_of_zero():
    x = torch.tensor([[-0.0, -0.0], [0.0, -0.0], [-0.0, 0.0]])
    table: Table = {
        "prod": lambda x: x.prod(-1),
        "sum": lambda x: x.sum(-1) + 0.0,
        "copy": lambda x: x * 1,
        "plus 0": lambda x: x + 0.0,
        "minus 0": lambda x: x - 0.0,
        "0 minus": lambda x: 0.0 - x,
        "times 0": lambda x: x * 0.0,
        "times -1": lambda x: x * -1,
    }
    check(table, x)


NARROW = {
    "attention of 3 dimensions": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [torch.full((4, 3, 8), 3.0), *(torch.linspace(-8, 8, 192).reshape(4, 6, 8).roll(n) for n in (0, 5))],
    ),
    "a norm's gradient cancels": (lambda x: F.normalize(x, p=1.2, dim=1), [torch.linspace(-2, 2, 8)[:, None]]),
}


@pytest.mark.parametrize("name", NARROW)
def test_gradients_of_bfloat16_are_about_as_near_as_eagers(name: str):
    """At most three times eager's own distance from the gradients in float64, and nearly nothing where that is 0."""
    function, values = NARROW[name]

    def gradients(f: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [v.bfloat16().to(dtype).requires_grad_() for v in values]
        y = f(*leaves)
        tangent = torch.linspace(-3, 3, y.numel(), dtype=torch.float64).reshape(y.shape).to(torch.bfloat16).to(dtype)
        return [g.double() for g in torch.autograd.grad(y, leaves, tangent)]

    true, theirs = gradients(function, torch.float64), gradients(function, torch.bfloat16)
    mine = gradients(isthmus.compile(function), torch.bfloat16)
    for want, eager, got in zip(true, theirs, mine, strict=True):
        allowed = 3 * (eager - want).abs().max() + 1e-4
        assert (got - want).abs().max() <= allowed
