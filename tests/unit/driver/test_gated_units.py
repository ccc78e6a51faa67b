"""gelu and silu where they are tiny: values, first and second derivatives to a few units of the last place."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus


def tanh_gate(x: Tensor) -> Tensor:
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


UNITS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], float]] = {
    "gelu": (F.gelu, lambda x: x * torch.special.erfc(x * -math.sqrt(0.5)) / 2, -12.5),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: x * tanh_gate(x), -9.8),
    "silu": (F.silu, lambda x: x * torch.sigmoid(x), -85.0),
}
"""The function, a formula that loses nothing in float64, and where the derivative begins to be a denormal."""


def orders(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [y.detach(), first.detach(), second]


@pytest.mark.parametrize("name", UNITS)
def test_small_values_and_derivatives(name: str) -> None:
    """In float32 relative to the value; -2.5 and below lie beyond the zeros of the derivatives."""
    function, exact, low = UNITS[name]
    x = torch.linspace(low, -2.5, 1001)
    limits = (2.0, 8.0, 16.0)  # the derivatives are sums of terms some ten times as large
    for found, wanted, limit in zip(
        orders(isthmus.compile(function), x), orders(exact, x.double()), limits, strict=True
    ):
        error = (found.double() - wanted).abs() / wanted.abs() / 2.0**-23
        assert error.max() <= limit, (x[error.argmax()].item(), error.max().item())


@pytest.mark.parametrize("name", UNITS)
def test_special_values(name: str) -> None:
    """As eager's, but for the sign of gelu(-0), which is that of -0·½."""
    function = UNITS[name][0]
    x = torch.tensor(
        [0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-40, -1e-40, 700.0, -700.0], dtype=torch.float32
    )
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype)
        found, wanted = isthmus.compile(function)(given), function(given.double()).to(dtype)
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-6, atol=1e-45)
