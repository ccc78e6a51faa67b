"""Functions that GPU code has instead of a C library, against mpmath: huge angles, remainders of huge quotients."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from run_grid import on_grid
from run_kernel import TORCH
from test_elementwise import kernel

from isthmus.passes.memory.schedule_gpu import schedule

# 6381956970095103·2^797 is the double that is nearest to a multiple of π/2.
ANGLES = [1.7e6, 5e6, 1e7, 1e9, 1e15, 3.3e22, 7e30, 2e37, 1e80, 3e200, 1.7e308, math.ldexp(6381956970095103, 797)]


def run(op: str, dtype: str, *inputs: torch.Tensor) -> torch.Tensor:
    c = on_grid(kernel(op, [dtype] * len(inputs), dtype, len(inputs[0])))
    schedule(c.kernel)
    return c(*inputs)[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles(name, dtype):
    torch.manual_seed(0)
    x = torch.tensor([*ANGLES, *(-a for a in ANGLES), math.inf, -math.inf, math.nan], dtype=torch.float64)
    x = torch.cat([x, torch.randn(100, dtype=torch.float64) * 1e8]).to(TORCH[dtype])
    digits = {"f32": 24, "f64": 53}[dtype]
    with mpmath.workprec(1400):
        for given, result in zip(x.tolist(), run(f"prim.{name}", dtype, x).tolist(), strict=True):
            if not math.isfinite(given):
                assert math.isnan(result)
                continue
            wanted = getattr(mpmath, name)(mpmath.mpf(given))
            assert abs(result - wanted) <= abs(wanted) * mpmath.mpf(2) ** (2 - digits), given
