"""Regions, the user's own rules and gradients asked for inside, as Dynamo captures them; dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isthmus.dialects import autodiff
from isthmus.frontend.capture_dynamo import compile_with_dynamo
from isthmus.frontend.captured import Captured
from tests.unit.passes.functionalize.harness import (
    Functional,
    compare,
    compare_gradients,
    copies,
    functionalized,
    writable,
)


def agree(
    function: Callable[..., object], *arguments: Tensor, dynamic: bool | None = None, leaves: bool = False
) -> Functional:
    """Compare eager with the program that Dynamo captures, made functional; on the leaves themselves where asked."""
    programs: list[Functional] = []

    def compiled(captured: Captured) -> Callable[[list[Any]], Sequence[Any]]:
        programs.append(functionalized(captured))
        return lambda given: programs[-1](*given)

    torch._dynamo.reset()
    mine, theirs = copies(arguments), copies(arguments)
    inner, outer = (mine, theirs) if leaves else (writable(mine), writable(theirs))
    flat = torch.utils._pytree.tree_leaves
    want = flat(function(*outer))
    got = flat(compile_with_dynamo(function, compiled, fullgraph=True, dynamic=dynamic)(*inner))
    compare(got, want, inner, outer)
    compare_gradients([*got, *inner], [*want, *outer], mine, theirs)
    return programs[-1]


def square() -> Tensor:
    return torch.randn(3, 3, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * x
        ctx.save_for_backward(x)
        z = y.clone()
        z.mul_(3)
        return y * x, z

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out = 3 * x * x * g
        out += 6 * x * h
        return out


class SevenTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 7


def test_rules_of_the_user():
    program = agree(lambda x: Cube.apply(x.sin()), square())
    (custom,) = (op for op in program.func.walk() if isinstance(op, autodiff.CustomOp))
    assert all(op.properties.get("mutates") is None for op in custom.walk())
    agree(lambda x: SevenTimes.apply(x * 2) * 3, square())


def test_checkpoint_with_writes_inside():
    def body(a: Tensor, b: Tensor) -> Tensor:
        c = a @ b
        c.mul_(2)
        c[0].add_(1)
        return c

    agree(lambda x, w: checkpoint(body, x * 2, w, use_reentrant=False).sin(), square(), square())


@pytest.mark.row("D16")
@pytest.mark.parametrize("sign", [1, -1])
def test_branches(sign: int):
    def f(x: Tensor) -> Tensor:
        def then(a: Tensor) -> Tensor:
            b = a.sin()
            b.mul_(2)
            return b

        return torch.cond(x.sum() * sign > 0, then, lambda a: a.cos(), (x,))

    agree(f, square())


def test_gradients_inside_the_program():
    def penalty(x: Tensor, w: Tensor) -> Tensor:
        y = (x * w).sin().sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        g.mul_(2)
        return g.pow(2).sum() + y

    agree(penalty, square(), square(), leaves=True)


def test_a_gradient_by_one_alias_alone():
    def f(x: Tensor) -> Tensor:
        return torch.func.grad(lambda a: (a * x).sin().sum())(x)

    agree(f, square())


def test_a_gradient_by_one_of_two_equal_values():
    def f(x: Tensor) -> Tensor:
        a, b = x.sin(), x.sin()
        (g,) = torch.autograd.grad((a * b).sum(), a, create_graph=True)
        return g

    agree(f, square(), leaves=True)


def test_a_training_step_in_one_program():
    def step(x: Tensor, w: Tensor) -> Tensor:
        loss = (x @ w).pow(2).sum()
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w.sub_(g * 0.1)
        return loss.detach()

    agree(step, square().detach(), square(), leaves=True)


@pytest.mark.parametrize("rows", [3, 5])
def test_dynamic_shapes(rows: int):
    def f(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        y[1:] += 1
        y.t()[0].mul_(3)
        y.view(-1)[: y.shape[0]].zero_()
        _, second = y.split(y.shape[1] // 2 + 1, 1)
        with torch.no_grad():
            second.add_(1)
        z[:, :1].expand(-1, 4).fill_(2)
        z[:, 1].copy_(z[:, 0])
        return y.view(-1), y[..., 1:], x.flatten(), z[1:]

    x = torch.randn(rows, rows + 1, dtype=torch.float64, requires_grad=True)
    agree(f, x, torch.randn(rows, 2, dtype=torch.float64), dynamic=True)
