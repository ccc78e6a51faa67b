"""What only direct tracing must see by itself: hooks on gradients, and the history of user rules and of rare writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import isthmus
from tests.boundary.harness import CAPTURES, agree, f64


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y.sum()


def retained(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    return y


class HookedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).double()
        self.linear.register_full_backward_hook(lambda module, given, got: (given[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.parametrize("function", [hooked, retained, HookedModule()], ids=["hook", "retain", "module"])
def test_what_waits_for_a_gradient_is_refused_at_its_line(function: Callable[..., Tensor]):
    with pytest.raises(isthmus.UnsupportedError, match=r"test_what_tracing_meets.py:\d+") as error:
        isthmus.compile(function, capture="trace")(f64(3, 4))
    assert "capture='dynamo'" in (error.value.cure or "")


def test_the_history_of_an_argument_is_not_ended_in_place():
    with pytest.raises(isthmus.UnsupportedError, match=r"test_what_tracing_meets.py:\d+.*detach_"):
        isthmus.compile(lambda x: x.detach_() * 2, capture="trace")(f64(3, 4))


def test_a_gradient_inside_reaches_through_a_user_rule_to_the_second_order():
    def second(x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return first * again

    agree(second, f64(3, 4), capture="trace")


def fills_a_diagonal(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    z.fill_diagonal_(3.0)
    return z * y


def writes_lists(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    torch._foreach_mul_([x], [y])
    roots = [x * x, y * y]
    torch._foreach_sqrt_(roots)
    parts = [x.sin(), y.sin()]
    torch._foreach_div_(parts, [y.exp(), x.exp()])
    return (*roots, *parts, x + y)


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("function", [fills_a_diagonal, writes_lists])
def test_writes_of_operators_that_have_no_other_form_are_differentiated(function: Callable[..., object], capture: str):
    options = {"fullgraph": False} if capture == "dynamo" else {}
    agree(function, f64(3, 4), f64(3, 4) + 1, capture=capture, **options)


class Registry(dict[str, float]):
    """A dictionary whose methods ask for something else."""

    def get(self, key: str) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self[key]

    def update(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise NotImplementedError


def test_dictionaries_with_methods_of_their_own():
    registry = Registry(scale=2.0)
    compiled = isthmus.compile(lambda x: x * registry.get("scale"), capture="trace")
    x = f64(3)
    assert torch.equal(compiled(x), x * 2)
    registry["scale"] = 3.0
    assert torch.equal(compiled(x), x * 3)
