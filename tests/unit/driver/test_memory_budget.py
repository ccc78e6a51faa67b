"""Strategies and budgets of the partition, from the user's side."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isthmus


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2)))


def gradients(module: nn.Module, run, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    run(x).square().sum().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("options", [{"strategy": "default"}, {"memory_budget": 0.5}, {"memory_budget": 1e9}])
def test_gradients_do_not_depend_on_what_is_kept(options) -> None:
    torch._dynamo.reset()
    module, x = model(), torch.randn(32, 16)
    expected = gradients(module, isthmus.compile(module, backend="interpret"), x)
    found = gradients(module, isthmus.compile(module, backend="interpret", options=options), x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_large_budget_recomputes_nothing_and_explain_says_so() -> None:
    torch._dynamo.reset()
    module, x = model(), torch.randn(32, 16)
    cut = isthmus.explain(module, backend="interpret", memory_budget=1e9)(x).graphs[0].cut
    assert cut is not None and cut.strategy == "optimal" and not cut.recomputed
    torch._dynamo.reset()
    fewest = isthmus.explain(module, backend="interpret")(x).graphs[0].cut
    assert fewest is not None and fewest.recomputed and fewest.saved_bytes < cut.saved_bytes


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        isthmus.compile(model(), options={"memory_budget": -1})
