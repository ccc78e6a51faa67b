"""What backward keeps turns out, late, to be a result that the caller gets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.boundary.harness import CAPTURES, agree, compiled_by, f64

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "mean and variance": lambda x: (x.mean(0), x.var(0, unbiased=False)),
    "mean and variance of rows": lambda x: (x.mean(1), x.var(1), x.std(1, keepdim=True)),
    "with the mean kept as it is": lambda x: (x.mean(0, keepdim=True), x.var(0)),
    "beside more that is kept": lambda x: (x.sin().mean(0), x.sin().var(0), (x.sin() * x.exp()).tanh()),
    "softmax and its sum": lambda x: (x.exp().sum(1), x.softmax(1), x.logsumexp(1)),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, capture: str):
    agree(PROGRAMS[name], f64(3, 4), capture=capture)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_change(name: str):
    compiled = compiled_by(PROGRAMS[name], "trace", "native")
    for rows in (3, 5, 2, 1, 0, 7):
        found: list[Tensor] = []
        for function in (compiled, PROGRAMS[name]):
            x = f64(rows, 4)
            results = function(x)
            assert isinstance(results, tuple)
            sum((t * t).sum() for t in results).backward()
            assert x.grad is not None
            found.append(x.grad)
        torch.testing.assert_close(*found, equal_nan=True)


def test_the_caller_may_write_the_result():
    compiled = compiled_by(PROGRAMS["mean and variance"], "trace", "native")
    x, y = f64(3, 4), f64(3, 4)
    for function, leaf in ((compiled, x), (PROGRAMS["mean and variance"], y)):
        results = function(leaf)
        assert isinstance(results, tuple)
        mean, variance = results
        mean.mul_(2)
        (variance.sum() + mean.sin().sum()).backward()
    torch.testing.assert_close(x.grad, y.grad)
