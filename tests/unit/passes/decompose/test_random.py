"""Random numbers: the distributions asked for, the same under a key, different from draw to draw."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus import ir
from isthmus.dialects import prim
from isthmus.passes.pipelines import run_passes
from isthmus.runtime.interpret import run
from tests.conformance.decomposed import CONTEXT, captured, decomposed

N = 40000


def draw(function: Callable[..., object], *tensors: Tensor) -> list[Tensor]:
    return [t for t in decomposed(function, tensors).run(tensors)]


def moments(x: Tensor) -> tuple[float, float]:
    return x.double().mean().item(), x.double().var().item()


DISTRIBUTIONS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "rand": (lambda x: torch.rand_like(x), 0.5, 1 / 12),
    "randn": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "uniform": (lambda x: x.clone().uniform_(-1, 3), 1.0, 16 / 12),
    "normal": (lambda x: x.clone().normal_(2, 3), 2.0, 9.0),
    "exponential": (lambda x: x.clone().exponential_(2.0), 0.5, 0.25),
    "bernoulli": (lambda x: x.clone().bernoulli_(0.3), 0.3, 0.21),
    "geometric": (lambda x: x.clone().geometric_(0.25), 4.0, 12.0),
    "randint": (lambda x: torch.randint_like(x, 2, 12), 6.5, 99 / 12),
    "dropout": (lambda x: torch.dropout(torch.ones_like(x), 0.2, True), 1.0, 0.25),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_and_variance(name: str) -> None:
    function, mean, variance = DISTRIBUTIONS[name]
    found = moments(draw(function, torch.zeros(N))[0])
    assert found[0] == pytest.approx(mean, abs=6 * math.sqrt(variance / N))
    assert found[1] == pytest.approx(variance, rel=0.1)


def test_two_draws_differ_and_a_key_repeats_them() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.rand_like(x), torch.rand_like(x)

    program = decomposed(function, [torch.zeros(100)])
    a, b = program.run([torch.zeros(100)])
    again = program.run([torch.zeros(100)])
    assert not torch.any(a == b)
    assert torch.equal(a, again[0]) and torch.equal(b, again[1])


def test_a_program_takes_one_key_whatever_it_draws() -> None:
    program = decomposed(lambda x: (torch.rand_like(x), torch.randn_like(x), torch.randperm(7)), [torch.zeros(3)])
    assert [a.key for a in program.signature.arguments] == [False, True]
    assert sorted(program.run([torch.zeros(3)])[2].tolist()) == list(range(7))


def test_a_program_without_random_numbers_takes_no_key() -> None:
    assert not decomposed(lambda x: torch.dropout(x, 0.5, False) + 1, [torch.zeros(3)]).random


def test_dropped_elements_are_zero_and_others_scaled() -> None:
    (y,) = draw(lambda x: torch.dropout(x, 0.25, True), torch.full((1000,), 3.0))
    assert set(y.tolist()) == {0.0, 4.0}


def test_library_random_numbers_stay_calls() -> None:
    module, _ = captured(lambda x: torch.dropout(x, 0.5, True) + torch.rand_like(x), [torch.zeros(3)])
    run_passes(CONTEXT, module, ["functionalize", "decompose{random=library}"])
    callees = [op.callee.data for op in module.walk() if isinstance(op, prim.OpaqueOp)]
    assert callees == ["bernoulli.p", "rand_like.default"]
    assert run(ir.function(module, "main"), [torch.zeros(3)])[0].shape == (3,)


def test_attention_draws_the_numbers_of_eager() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    parts = [torch.randn(2, 3, 8, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    torch.manual_seed(0)
    expected = attend(*parts)
    gradients = torch.autograd.grad(expected.sin().sum(), parts)
    compiled = isthmus.compile(attend, fullgraph=True)
    torch.manual_seed(0)
    found = compiled(*parts)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), parts), gradients)
