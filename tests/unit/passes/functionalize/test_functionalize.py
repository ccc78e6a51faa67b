"""Views and writes of every kind become values; what the caller must see is replayed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.diagnostics import CompileError, UnsupportedError
from tests.unit.passes.functionalize.harness import agree, functional


def tensor(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.row("T4")
def test_no_in_place_op_is_left():
    def f(x: Tensor) -> Tensor:
        y = x + 1
        y.mul_(2)
        return y.sin()

    program = agree(f, tensor(4))
    assert program.overloads == ["add.Tensor", "mul_.Tensor", "sin.default"]
    assert program.calls[1].updates == (0,) and not any(
        c.mutates or any(a >= 0 for a in c.aliases) for c in program.calls
    )


@pytest.mark.row("T21")
def test_a_written_argument_is_copied_back():
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return (a * b).sum()

    agree(f, tensor(4), tensor(4))


@pytest.mark.row("T22", "T23")
def test_outputs_that_alias():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.t(), x.mul(2).view(-1)

    program = agree(f, tensor(2, 3))
    x = tensor(2, 3, grad=False)
    first, second = program(x)
    assert first._base is x and second._base is not None
