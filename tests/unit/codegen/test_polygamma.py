"""Derivatives of digamma against mpmath, of all orders and signs."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from run_grid import on_grid
from run_kernel import TORCH, compiled
from test_elementwise import kernel

from isthmus.passes.memory.schedule_gpu import schedule
from isthmus.runtime import cpu


def apply(n: int, x: torch.Tensor, dtype: str, vector: int | None = 0, target=None) -> torch.Tensor:
    text = kernel("prim.polygamma", [dtype], dtype, len(x), f"{{order = {n}}} ")
    return compiled(text, target, vector=vector)(x)[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 20])
def test_error(n, dtype):
    """A few units of the last place; below 0 relative to the larger of the two terms, whose sum has zeros."""
    torch.manual_seed(n)
    x = torch.cat([torch.rand(60) * 5, torch.rand(30) * 100, torch.rand(60) * -6, torch.rand(20) * 1e-3]).to(
        TORCH[dtype]
    )
    digits = {"f32": 24, "f64": 53}[dtype]
    found = [apply(n, x, dtype, target=t) for t in (cpu.host_target(), cpu.baseline_target())]
    for i, given in enumerate(x.tolist()):
        wanted = mpmath.psi(n, given)
        scale = max(abs(wanted), abs(mpmath.psi(n, 1 - given)) if given < 0 else 0)
        largest = torch.finfo(TORCH[dtype]).max
        for result in found:
            if abs(wanted) > largest:
                assert math.isinf(result[i])
                continue
            assert abs(result[i].item() - wanted) <= (8 + 3 * n) * scale * mpmath.mpf(2) ** -digits + 1e-45, given


@pytest.mark.parametrize("n", [1, 2])
def test_edges(n):
    x = torch.tensor([math.inf, math.nan, 0.0, -0.0, -1.0, -7.0, 1e30], dtype=torch.float64)
    result = apply(n, x, "f64")
    pole = math.inf if n == 1 else -math.inf
    assert result.tolist()[2:6] == [pole] * 4
    assert result[0] == 0 and math.isnan(result[1]) and abs(result[6]) <= 1.0000001e-30


def test_lanes_give_the_same_bits():
    x = torch.linspace(-4.3, 30, 100)
    assert torch.equal(apply(3, x, "f32", None), apply(3, x, "f32", 0))


def test_on_a_grid():
    x = torch.linspace(-4.3, 30, 100)
    c = on_grid(kernel("prim.polygamma", ["f32"], "f32", len(x), "{order = 2} "))
    schedule(c.kernel)
    torch.testing.assert_close(c(x)[0], apply(2, x, "f32"), rtol=1e-6, atol=0)
