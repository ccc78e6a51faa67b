"""Determinants to the third derivative, where singular values are equal and where one of them is 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev

from tests.boundary.harness import compiled_by, f64

TURN = torch.tensor([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]], dtype=torch.float64)
MATRICES = {
    "any": f64(3, 3, grad=False) + torch.eye(3, dtype=torch.float64),
    "singular but for rounding": f64(3, 3, grad=False),
    "identity": torch.eye(3, dtype=torch.float64),
    "rotation": TURN,
    "rank 2": torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 1.0, 5.0]], dtype=torch.float64),
    "several": torch.stack([TURN, -torch.eye(3, dtype=torch.float64), f64(3, 3, grad=False)]),
}


def by_permutations(a: Tensor) -> Tensor:
    """Σ over permutations p of sign(p)·Πᵢ a[i, p(i)], a polynomial."""
    total = torch.zeros_like(a[..., 0, 0])
    for p in itertools.permutations(range(a.shape[-1])):
        inversions = sum(p[j] > p[i] for i in range(len(p)) for j in range(i))
        term = torch.ones_like(total) * (-1) ** inversions
        for row, column in enumerate(p):
            term = term * a[..., row, column]
        total = total + term
    return total


Scalar = Callable[[Tensor], Tensor]


def derivative(order: int, f: Scalar) -> Callable[[Tensor], Tensor]:
    """The derivative of Σ f², contracted with fixed weights below the last order."""
    function: Scalar = lambda a: f(a).pow(2).sum() + f(a).sum()  # noqa: E731
    for _ in range(order - 1):
        inner = grad(function)
        function = lambda a, g=inner: (g(a) * torch.arange(9.0, dtype=a.dtype).view(3, 3).cos()).sum()  # noqa: E731
    return grad(function)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("name", "capture"), [*((name, "trace") for name in MATRICES), ("identity", "dynamo")])
def test_derivatives(name: str, order: int, capture: str):
    compiled = compiled_by(derivative(order, torch.linalg.det), capture, "native")
    a = MATRICES[name]
    torch.testing.assert_close(compiled(a), derivative(order, by_permutations)(a), rtol=1e-9, atol=1e-9)


def test_the_hessian_at_the_identity_by_the_tape():
    compiled = compiled_by(torch.linalg.det, "trace", "native")
    a = torch.eye(3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(a), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    torch.testing.assert_close(second, 3 * torch.eye(3, dtype=torch.float64) - 1)


def test_a_jacobian_over_examples():
    a = MATRICES["several"]
    compiled = compiled_by(jacrev(torch.linalg.det), "trace", "native")
    torch.testing.assert_close(compiled(a), jacrev(by_permutations)(a))


def test_the_gradient_of_a_number_does_not_depend_on_it():
    compiled = compiled_by(torch.linalg.det, "trace", "native")
    a = f64(2, 1, 1)
    (first,) = torch.autograd.grad(compiled(a).sin().sum(), a, create_graph=True)
    torch.testing.assert_close(first, a.cos())
    t = f64(2)
    (first,) = torch.autograd.grad(compiled(a), a, t, create_graph=True)
    assert torch.autograd.grad(first.sum(), a, allow_unused=True) == (None,)
