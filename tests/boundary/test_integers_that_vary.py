"""Python integers that change between calls: those below 0 are no sizes, and divisors may be negative."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.boundary.harness import CAPTURES, compiled_by

PROGRAMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "a factor": lambda x, n: x * n,
    "a bound": lambda x, n: x[:n],
    "a start": lambda x, n: x[n - 5 :],
    "a turn": lambda x, n: x.roll(n),
    "a turn by less": lambda x, n: x.roll(n - 5),
    "quotient and remainder": lambda x, n: x + n // 2 + n % 3,
    "of a difference": lambda x, n: x + (n - 5) // 2 + (n - 5) % 3,
    "by a negative number": lambda x, n: x + (n - 5) // -2 + n % -3,
    "of a difference by a sum": lambda x, n: x + (n - 5) // (n + 1) + (n - 5) % (n + 1) if n >= 0 else x,
    "of an extremum": lambda x, n: x + min(n - 5, 3) // 2 + max(1 - n, -7) % 3,
    "by an extremum": lambda x, n: x + 7 // min(n - 6, -1) + n % min(n - 6, -1),
    "cut to an integer": lambda x, n: x + int((n - 5) / 2) + math.trunc((n - 5) / 3) + int(n / -2),
    "extrema": lambda x, n: x * max(n, 0) + abs(n) + min(n - 5, 2),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_positive_ones_and_others(name: str, capture: str):
    compiled = compiled_by(PROGRAMS[name], capture, "native", fullgraph=False)
    x = torch.arange(6.0)
    for n in (2, 3, 4, 7, -5, 0, 1, -1, -2, 10):
        torch.testing.assert_close(compiled(x, n), PROGRAMS[name](x, n), msg=lambda m, n=n: f"n = {n}: {m}")
