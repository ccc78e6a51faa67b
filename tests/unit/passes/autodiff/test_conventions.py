"""Kinks, ties, zeros and special numbers: gradients are torch's, bit by bit or nearly."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isthmus.dialects import prim
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.runtime.interpret import run
from tests.unit.passes.autodiff.oracle import FALLBACKS, Build, program, types_of
from tests.unit.passes.autodiff.sample import F64, numbers
from tests.unit.passes.autodiff.samples import BINARY, UNARY

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.5, math.inf, -math.inf, math.nan], dtype=F64)


def torch_gradients(function: Callable[..., Tensor], inputs: list[Tensor], tangent: Tensor) -> list[Tensor | None]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    return list(torch.autograd.grad(function(*leaves), leaves, tangent, allow_unused=True))


def our_gradients(build: Build, inputs: list[Tensor], tangent: Tensor) -> list[Tensor]:
    joint = differentiate(program(build, types_of(inputs)), FALLBACKS)
    return run(joint, [*inputs, tangent])[1:]


def check(build: Build, function: Callable[..., Tensor], *inputs: Tensor, tangent: Tensor | None = None) -> None:
    tangent = torch.full_like(function(*inputs), 0.75) if tangent is None else tangent
    expected = torch_gradients(function, list(inputs), tangent)
    for found, wanted in zip(our_gradients(build, list(inputs), tangent), expected, strict=True):
        assert wanted is not None
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-12, atol=0)


OWN_WAY = {prim.StopGradientOp, prim.LgammaOp, prim.DigammaOp}


@pytest.mark.parametrize("cls", [c for c in UNARY if c not in OWN_WAY], ids=lambda c: c.name)
def test_special_numbers_of_functions_of_one_variable(cls: type[prim.UnaryOp]) -> None:
    check(lambda e, x: e.unary(cls, x), UNARY[cls][0], SPECIAL)


@pytest.mark.parametrize("cls", [c for c in BINARY if c not in (prim.ComplexOp,)], ids=lambda c: c.name)
def test_special_numbers_of_functions_of_two_variables(cls: type[prim.BinaryOp]) -> None:
    n = len(SPECIAL)
    a, b = SPECIAL.repeat_interleave(n), SPECIAL.repeat(n)
    check(lambda e, a, b: e.binary(cls, a, b), BINARY[cls][0], a, b)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -0.5])
def test_powers_at_zero(exponent: float) -> None:
    check(
        lambda e, x: e.pow(x, e.const_like(exponent, x)),
        lambda x: torch.pow(x, torch.full_like(x, exponent)),  # with a scalar torch takes roots: another function
        SPECIAL,
    )


def test_relu_keeps_negative_zero_and_its_gradient_there_is_zero() -> None:
    joint = differentiate(program(lambda e, x: e.relu(x), types_of([SPECIAL])), FALLBACKS)
    value, gradient = run(joint, [SPECIAL, torch.ones_like(SPECIAL)])
    assert math.copysign(1, value[1].item()) == -1
    assert gradient.tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("kind", "function"), [("max", torch.amax), ("min", torch.amin)])
def test_ties_of_a_reduction_share(kind: str, function: Callable[..., Tensor]) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [math.nan, 1.0, 1.0], [-0.0, 0.0, -1.0]], dtype=F64)
    check(lambda e, x: e.reduce(kind, x, (1,)), lambda x: function(x, 1), x)


def test_ties_of_sorting_are_stable() -> None:
    x = torch.tensor([2.0, 1.0, 2.0, 1.0, math.nan, 2.0], dtype=F64)
    tangent = torch.arange(6, dtype=F64)
    check(lambda e, x: e.sort(x, 0)[0], lambda x: x.sort(stable=True).values, x, tangent=tangent)


def test_a_clamp_made_of_a_selection_passes_at_its_bound() -> None:
    def build(e, x):  # pyright: ignore
        bound = e.const_like(0.0, x)
        return e.select(e.cmp("lt", x, bound), bound, x)

    check(build, lambda x: x.clamp_min(0.0), SPECIAL[:-1])  # at NaN torch's gradient is 0


def test_the_modulus_of_complex_zero() -> None:
    z = torch.tensor([0, 3 + 4j, -1j], dtype=torch.complex128)
    check(lambda e, z: e.abs(z), torch.abs, z)


def test_max_pool_ties_go_to_the_first() -> None:
    x = torch.tensor([[[1.0, 1.0, 0.0, 2.0, 2.0, 2.0]]], dtype=F64)
    check(
        lambda e, x: e.max_pool(x, (2,), (2,), (2,), (0,), (0,), (1,))[0],
        lambda x: torch.nn.functional.max_pool1d(x, 2),
        x,
    )


def test_an_ignored_row_of_a_loss_has_no_gradient_whatever_its_logits() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    target = torch.tensor([-100, 1])
    joint = differentiate(
        program(lambda e, x, t: e.cross_entropy(x, t, -100)[0], types_of([logits, target])), FALLBACKS
    )
    gradient = run(joint, [logits, target, torch.ones(2, dtype=F64)])[1]
    assert gradient[0].tolist() == [0.0, 0.0] and gradient[1].abs().min() > 0


def test_attention_in_bfloat16_has_gradients_within_eagers_own_error() -> None:
    """Log-sums rounded to 8 bits would be magnified by the exponential that backward takes of them."""
    inputs = [2 * numbers(2, 2, 32, 16, low=-1.7, high=1.7, seed=s).to(torch.bfloat16) for s in range(3)]
    tangent = numbers(2, 2, 32, 16, seed=4).to(torch.bfloat16)
    attention = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25)  # noqa: E731
    exact = torch_gradients(attention, [t.double() for t in inputs], tangent.double())
    eager = torch_gradients(attention, inputs, tangent)
    found = our_gradients(lambda e, q, k, v: e.attention(q, k, v, None, 0.25, False)[0], inputs, tangent)
    for truth, theirs, mine in zip(exact, eager, found, strict=True):
        assert truth is not None and theirs is not None
        assert (mine.double() - truth).norm() <= 1.2 * (theirs.double() - truth).norm()
