"""Where formulas go wrong: kinks, ties, signed zeros, NaN and infinities, nothing at all, integers at their ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.decomposed import check_gradients, check_values, decomposed, of_arguments

pytestmark = pytest.mark.filterwarnings("ignore")

POINTS = torch.tensor(
    [-math.inf, -1e30, -200.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 200.0, 1e30, math.inf]
).double()

KINKED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "elu": lambda x: F.elu(x, alpha=2.0),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "abs": torch.abs,
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "floor": torch.floor,
    "round": torch.round,
    "sinc": torch.sinc,
}

SINGLE_PRECISION = ("hardsigmoid", "celu")
"""torch's derivative holds their coefficients in single precision, for double precision too."""

INNER = POINTS[(POINTS.abs() < 1e10)]


@pytest.mark.parametrize("name", KINKED)
def test_kinks(name: str) -> None:
    """Value everywhere, derivative at every finite point, the kinks among them."""
    call, tensors = of_arguments(KINKED[name], [POINTS], {})
    program = decomposed(call, tensors)
    with torch.no_grad():
        check_values(program, call, tensors, 1e-10)
    call, tensors = of_arguments(KINKED[name], [INNER], {})
    leaves = [t.clone().requires_grad_() for t in tensors]
    check_gradients(decomposed(call, leaves), call, leaves, 1e-7 if name in SINGLE_PRECISION else 1e-10)


@pytest.mark.parametrize("name", ["relu", "hardswish", "leaky_relu", "abs", "sign", "clamp_min", "floor"])
def test_signed_zeros_and_nan(name: str) -> None:
    function = KINKED.get(name) or getattr(F, name)
    x = torch.tensor([-0.0, 0.0, math.nan, -1.0])
    call, tensors = of_arguments(function, [x], {})
    (actual,) = decomposed(call, tensors).run(tensors)
    expected = function(x)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(torch.signbit(actual)[:2], torch.signbit(expected)[:2])


TIES = torch.tensor([[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0]]).double()

TIED: dict[str, Callable[[Tensor], object]] = {
    "amax": lambda x: x.amax(1),
    "max over all": lambda x: x.max(),
    "max with index": lambda x: x.max(1),
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "median": lambda x: x.median(),
    "cummax": lambda x: x.cummax(1),
    "prod with zeros": lambda x: x.prod(1),
    "norm of zeros": lambda x: x.norm(dim=1),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "norm of order infinity": lambda x: torch.linalg.vector_norm(x, math.inf, dim=1),
    "std of equals": lambda x: x.std(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "max_pool": lambda x: F.max_pool1d(x, 2, 1),
    "normalize": lambda x: F.normalize(x, dim=1),
}


@pytest.mark.parametrize("name", TIED)
def test_ties_and_zeros(name: str) -> None:
    call, tensors = of_arguments(TIED[name], [TIES], {})
    leaves = [t.clone().requires_grad_() for t in tensors]
    program = decomposed(call, leaves)
    with torch.no_grad():
        check_values(program, call, tensors, 1e-10)
    assert check_gradients(program, call, leaves, 1e-10)


WITH_NAN = torch.tensor([[1.0, math.nan, 3.0], [math.inf, -math.inf, 0.0], [-math.inf] * 3])

INFECTED: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x.sum(1),
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x.argmax(1),
    "max with index": lambda x: x.max(1),
    "maximum": lambda x: torch.maximum(x, torch.zeros(3)),
    "fmax": lambda x: torch.fmax(x, torch.zeros(3)),
    "fmin": lambda x: torch.fmin(x, torch.zeros(3)),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp by NaN": lambda x: x.clamp(min=torch.tensor(math.nan)),
    "sort": lambda x: torch.sort(x, dim=1, stable=True),
    "sort descending": lambda x: torch.sort(x, dim=1, descending=True, stable=True),
    "median": lambda x: x.median(1)[0],
    "nanmedian": lambda x: x.nanmedian(1)[0],
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(1),
    "nan_to_num": lambda x: x.nan_to_num(),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cummax": lambda x: x.cummax(1),
    "isclose": lambda x: torch.isclose(x, x, equal_nan=True),
    "logaddexp": lambda x: torch.logaddexp(x, x),
    "hypot": lambda x: torch.hypot(x, x),
    "xlogy": lambda x: torch.xlogy(torch.zeros(3), x),
    "floor_divide": lambda x: x // torch.tensor([0.0, 2.0, -2.0]),
    "remainder": lambda x: x % torch.tensor([0.0, 2.0, -2.0]),
    "max_pool": lambda x: F.max_pool1d(x, 2, 1),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([0.0, 1.0, 2.0]), x),
}


@pytest.mark.parametrize("name", INFECTED)
def test_nan_and_infinities(name: str) -> None:
    call, tensors = of_arguments(INFECTED[name], [WITH_NAN], {})
    check_values(decomposed(call, tensors), call, tensors, 1e-6)


EMPTY: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "prod": lambda x: x.prod(0),
    "var": lambda x: x.var(0),
    "all": lambda x: x.bool().all(0),
    "softmax": lambda x: x.softmax(1),
    "matmul": lambda x: x.t() @ x,
    "linear": lambda x: F.linear(x, torch.ones(2, 4)),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "cat": lambda x: torch.cat([x, torch.ones(2, 4)]),
    "index": lambda x: torch.ones(5, 4)[torch.zeros(0, dtype=torch.long)],
    "gather": lambda x: torch.ones(5, 4).gather(0, torch.zeros(0, 4, dtype=torch.long)),
    "scatter_add": lambda x: torch.ones(5, 4).scatter_add(0, torch.zeros(0, 4, dtype=torch.long), x),
    "cumsum": lambda x: x.cumsum(0),
    "roll": lambda x: x.roll(1, 0),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "chunk": lambda x: x.chunk(2, 1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_compute(name: str) -> None:
    call, tensors = of_arguments(EMPTY[name], [torch.zeros(0, 4)], {})
    check_values(decomposed(call, tensors), call, tensors, 1e-6)


ENDS = torch.tensor([-(2**31), -7, -1, 1, 7, 2**31 - 1], dtype=torch.int32)

WRAPPING: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + x,
    "mul": lambda x: x * 3,
    "neg": lambda x: -x,
    "square": lambda x: x**2,
    "floor": lambda x: x // 2,
    "floor by a negative": lambda x: torch.div(x, -2, rounding_mode="floor"),
    "trunc": lambda x: torch.div(x, 2, rounding_mode="trunc"),
    "remainder": lambda x: x % -3,
    "fmod": lambda x: torch.fmod(x, -3),
    "true division": lambda x: x / 2,
    "sum": lambda x: x.sum(),
    "shift": lambda x: x << 3,
    "to u8": lambda x: x.clamp(-3, 300).to(torch.uint8),
    "with a float": lambda x: x * 0.5,
}


@pytest.mark.parametrize("name", WRAPPING)
def test_integers(name: str) -> None:
    call, tensors = of_arguments(WRAPPING[name], [ENDS], {})
    check_values(decomposed(call, tensors), call, tensors, 1e-6)
