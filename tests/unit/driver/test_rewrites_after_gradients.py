"""Rewrites of what is left after gradients: in forward and backward, whoever wrote what they compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.diagnostics import CompileError
from isthmus.driver.rules import registered


@torch.library.custom_op("isthmus_after::fma", mutates_args=())
def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


@fma.register_fake
def _(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    isthmus.reset()
    torch.manual_seed(0)
    yield
    assert not registered(), "a test left a rule behind"


@pytest.fixture(params=["dynamo", "trace"])
def capture(request: pytest.FixtureRequest) -> str:
    return request.param


def pattern(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.row("X5")
@pytest.mark.row("I2")
def test_an_operator_without_a_gradient_serves_where_gradients_are_taken_already(capture: str) -> None:
    def model(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.sin(z + y * x)  # exchanged

    x, y, z = leaf(3, 4), leaf(3, 4), leaf(3, 4)
    expected = model(x, y, z)
    wanted = torch.autograd.grad(expected.sum(), (x, y, z))
    with isthmus.register_rewrite(pattern, lambda x, y, z: fma(x, y, z), stage="post-grad"):
        f = isthmus.compile(model, fullgraph=True, capture=capture)
        found = f(x, y, z)
        grads = torch.autograd.grad(found.sum(), (x, y, z))
        report = isthmus.explain(model, capture=capture)(x, y, z)
    assert sum(report.graphs[0].rules.values()) >= 1
    assert report.graphs[0].directions[0].library_calls["aten.isthmus_after::fma.default"] == 1 or "fma" in str(report)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grads, wanted)


@pytest.mark.row("X5")
def test_what_the_compiler_wrote_in_the_backward_is_matched() -> None:
    """The gradient of tanh is g * (1 - y * y), which no user wrote."""

    def gradient_of_tanh(g: Tensor, y: Tensor) -> Tensor:
        return g * (1 - y * y)

    x = leaf(5)
    wanted = torch.autograd.grad(x.tanh().sum(), x)
    with isthmus.register_rewrite(gradient_of_tanh, lambda g, y: g * (1 - y * y) * 2, stage="post-grad"):
        f = isthmus.compile(lambda x: x.tanh(), fullgraph=True)
        (found,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(found, 2 * wanted[0])
    with isthmus.register_rewrite(gradient_of_tanh, lambda g, y: g * (1 - y * y) * 2):
        f = isthmus.compile(lambda x: x.tanh(), fullgraph=True)
        (found,) = torch.autograd.grad(f(x).sum(), x)  # before gradients there is no such product
    torch.testing.assert_close(found, wanted[0])


def test_programs_without_gradients_and_other_shapes_are_rewritten(capture: str) -> None:
    with isthmus.register_rewrite(pattern, lambda x, y, z: x - y - z, stage="post-grad"):
        f = isthmus.compile(lambda x, y, z: x * y + z, fullgraph=True, capture=capture)
        for shape in ((7,), (2, 3, 5), ()):
            x, y, z = (torch.randn(shape) for _ in range(3))
            torch.testing.assert_close(f(x, y, z), x - y - z)


def test_symbolic_sizes_are_matched(capture: str) -> None:
    with isthmus.register_rewrite(pattern, lambda x, y, z: x - y - z, stage="post-grad"):
        f = isthmus.compile(lambda x, y, z: x * y + z, fullgraph=True, capture=capture, dynamic=True)
        for n in (5, 9):
            x, y, z = (torch.randn(n, 4) for _ in range(3))
            torch.testing.assert_close(f(x, y, z), x - y - z)


def test_numbers_are_part_of_a_pattern_and_broadcasts_follow_the_examples() -> None:
    examples = [torch.empty(4, 4), torch.empty(4)]
    with isthmus.register_rewrite(
        lambda x, b: x * 2.0 + b, lambda x, b: x * 0 + b, stage="post-grad", examples=examples, name="double"
    ):
        x, b, full = torch.randn(3, 6), torch.randn(6), torch.randn(3, 6)
        torch.testing.assert_close(isthmus.compile(lambda x, b: x * 2.0 + b)(x, b), 0 * x + b)
        for other in (lambda x, b: x * 3.0 + b, lambda x, b: x * 2.0 - b):
            torch.testing.assert_close(isthmus.compile(other)(x, b), other(x, b))
        torch.testing.assert_close(isthmus.compile(lambda x, b: x * 2.0 + b)(x, full), x * 2.0 + full)


def test_a_value_that_others_read_stays() -> None:
    def model(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        product = x * y
        return product, product + z

    x, y, z = (torch.randn(4) for _ in range(3))
    with isthmus.register_rewrite(pattern, lambda x, y, z: x - y - z, stage="post-grad"):
        product, found = isthmus.compile(model)(x, y, z)
    torch.testing.assert_close(product, x * y)
    torch.testing.assert_close(found, x - y - z)


def test_when_decides_on_the_tensors_that_were_found() -> None:
    x = torch.randn(4)
    with isthmus.register_rewrite(
        pattern, lambda x, y, z: x - y - z, stage="post-grad", when=lambda x, y, z: x.shape[0] > 4
    ):
        f = isthmus.compile(lambda x, y, z: x * y + z, dynamic=False)
        torch.testing.assert_close(f(x, x, x), x * x + x)
        x = torch.randn(8)
        torch.testing.assert_close(f(x, x, x), -x)


def test_a_replacement_of_another_shape_names_the_rule() -> None:
    x = torch.randn(4)
    with isthmus.register_rewrite(pattern, lambda x, y, z: x.sum(), stage="post-grad", name="wrong"):
        with pytest.raises(CompileError, match="rewrite of wrong"):
            isthmus.compile(lambda x, y, z: x * y + z, capture="trace")(x, x, x)


def test_there_are_two_stages() -> None:
    with pytest.raises(ValueError, match="'post-grad'"):
        isthmus.register_rewrite(pattern, pattern, stage="late")
