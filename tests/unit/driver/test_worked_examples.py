"""Small programs whose answers are known by hand: every stage of each gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import isthmus
from isthmus import ir
from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.runtime.interpret import interpreted


@dataclass(frozen=True)
class Example:
    """A program at a point: its value and its gradients (None: not asked for)."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    value: object
    gradients: tuple[object, ...]


def _at(*values: float) -> Tensor:
    """A float64 leaf: 0-d for one number, else a vector."""
    return torch.tensor(values, dtype=torch.float64).squeeze().requires_grad_()


EXAMPLES = {
    "cos_cos": Example(lambda x: x.cos().cos(), (_at(1.0),), 0.8575532158, (0.4328486848,)),
    "matmul_relu_sum": Example(
        lambda x, w: (x @ w).relu().sum(),
        (torch.tensor([[1.0, -1.0], [2.0, 0.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)),
        6.0,
        (None, [[2.0, 2.0], [0.0, 0.0]]),
    ),
    "clamp_times_three": Example(lambda a: a.clamp_min(0) * 3, (_at(0.4, -0.2),), [1.2, 0.0], ([3.0, 0.0],)),
    "square_of_double": Example(lambda x: (2 * x) ** 2, (_at(2.0),), 16.0, (16.0,)),
    "baydin": Example(lambda x, y: x.log() + x * y - y.sin(), (_at(2.0), _at(5.0)), 11.652071455, (5.5, 1.7163378145)),
    "floor_ceil": Example(lambda x: x.floor() + x.ceil(), (_at(0.5, 2.0),), [1.0, 4.0], ([0.0, 0.0],)),
}


def _stages(example: Example) -> tuple[Session, Tensor]:
    session = Session(Options(fullgraph=True))
    compiled, _ = compile_in(session, example.function, "dynamo")
    return session, compiled(*example.inputs)


def _run(module: ModuleOp, name: str, arguments: list[Tensor]) -> list[Tensor]:
    return interpreted(ir.function(module, name), module=module)(list(arguments))


def _agrees(found: Tensor, expected: object) -> None:
    torch.testing.assert_close(found.detach().double(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.row("T8", "A1", "A2", "T6", "T10", "T11")
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_stage_gives_the_answer(name: str) -> None:
    example = EXAMPLES[name]
    session, output = _stages(example)
    _agrees(output, example.value)
    gradients = torch.autograd.grad(output.sum(), [x for x in example.inputs if x.requires_grad])
    wanted = [g for g in example.gradients if g is not None]
    for found, expected in zip(gradients, wanted, strict=True):
        _agrees(found, expected)

    stages = session.programs[0].stages
    inputs = [x.detach() for x in example.inputs]
    tangent = torch.ones_like(output)
    for stage in ("graph", "prim"):
        _agrees(_run(stages[stage], "main", inputs)[0], example.value)
    value, *found = _run(stages["joint"], "joint", [*inputs, tangent])
    _agrees(value, example.value)
    for one, expected in zip(found, wanted, strict=True):
        _agrees(one, expected)
    value, *saved = _run(stages["forward"], "forward", inputs)
    _agrees(value, example.value)
    for one, expected in zip(_run(stages["backward"], "backward", [*saved, tangent]), wanted, strict=True):
        _agrees(one, expected)


@pytest.mark.row("D8", "T18")
def test_a_branch_on_data_has_a_graph_for_each_way() -> None:
    def toy(a: Tensor, b: Tensor) -> Tensor:
        x = a / (a.abs() + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    session = Session(Options())
    compiled, _ = compile_in(session, toy, "dynamo")
    for sign, graphs in ((1.0, 2), (-1.0, 3)):
        a, b = torch.tensor([1.0, -3.0], requires_grad=True), torch.tensor([sign * 2, sign * 4], requires_grad=True)
        output = compiled(a, b)
        assert output.tolist() == [1.0, -3.0]
        output.sum().backward()
        assert a.grad is not None and b.grad is not None
        assert a.grad.tolist() == [0.5, 0.25]
        assert b.grad.tolist() == [sign * 0.5, sign * -0.75]
        assert len(session.programs) == graphs
    isthmus.reset()
