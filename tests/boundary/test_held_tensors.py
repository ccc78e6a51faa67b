"""Tensors that a function reaches by itself: parameters and closures that want gradients, or look different, later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.boundary.harness import CAPTURES, compiled_by, f64


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base, self.adapter = nn.Linear(4, 4).double().requires_grad_(False), nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.adapter(x)


def backward(result: Any) -> None:
    result.sum().backward()


@pytest.mark.row("A15", "D4")
@pytest.mark.parametrize("reached_by", ["the module itself", "a closure", "an argument"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_what_was_frozen_is_thawed(capture: str, reached_by: str):
    model = Adapted()
    run: Callable[[Tensor], Any]
    if reached_by == "the module itself":
        run = compiled_by(model, capture, "native")
    elif reached_by == "a closure":
        run = compiled_by(lambda x: model(x), capture, "native")
    else:
        compiled = compiled_by(lambda m, x: m(x), capture, "native")
        run = lambda x: compiled(model, x)  # noqa: E731
    x = f64(3, 4, grad=False)
    backward(run(x))
    assert model.base.weight.grad is None
    model.base.weight.requires_grad_(True)
    backward(run(x))
    torch.testing.assert_close(model.base.weight.grad, x.sum(0).expand(4, 4))
    assert model.base.bias.grad is None


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_closure_tensor_that_wants_a_gradient_later(capture: str):
    w = f64(4, grad=False)
    compiled: Callable[[Tensor], Any] = compiled_by(lambda x: x * w, capture, "native")
    assert not compiled(f64(4, grad=False)).requires_grad
    w.requires_grad_(True)
    compiled(f64(4, grad=False)).sum().backward()
    torch.testing.assert_close(w.grad, f64(4, grad=False))


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_held_tensor_of_another_shape_or_dtype(capture: str):
    w = f64(4, 4, grad=False)
    compiled = compiled_by(lambda x: x @ w, capture, "native")
    x = f64(3, 4, grad=False)
    for change in (lambda: setattr(w, "data", f64(4, 6, grad=False)), lambda: setattr(w, "data", w[:, ::2])):
        compiled(x)
        change()
        torch.testing.assert_close(compiled(x), x @ w)
    w.data = w.float()
    torch.testing.assert_close(compiled(x.float()), x.float() @ w)
