"""A module compiled by tracing stands for the module that it was made of."""

import copy

import pytest
import torch
from torch import nn

import isthmus

X = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64).reshape(2, 3)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), nn.Dropout(0.5))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor


def test_the_mode_is_the_originals_from_the_start():
    module = Scaled().eval()
    compiled = isthmus.compile(module, capture="trace")
    assert not compiled.training
    torch.testing.assert_close(compiled(X), module(X))
    module.train()
    assert compiled.training
    compiled.eval()
    assert not module.training and not module.inner[1].training
    nn.ModuleList([compiled]).train()
    assert module.training and module.inner[1].training


def test_attributes_are_assigned_to_the_original():
    module = Scaled().eval()
    compiled = isthmus.compile(module, capture="trace")
    for factor in (2.0, 5.0):
        compiled.factor = factor
        assert module.factor == factor
        torch.testing.assert_close(compiled(X), module.inner(X) * factor)
    compiled.inner[0] = nn.Identity()
    torch.testing.assert_close(compiled(X), X * 5.0)
    assert "factor" in dir(compiled)
    del compiled.factor
    assert not hasattr(module, "factor")
    with pytest.raises(AttributeError, match="factor"):
        _ = compiled.factor


def test_a_copy_has_an_original_of_its_own():
    compiled = isthmus.compile(Scaled().eval(), capture="trace")
    other = copy.deepcopy(compiled)
    other.factor = 0.0
    assert compiled.factor == 2.0 and not other(X).any() and compiled(X).any()
