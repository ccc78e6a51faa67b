"""Gradients that forward computes beside a loss."""

from __future__ import annotations

import pytest
import torch
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.partition.prepay import prepay
from isthmus.runtime.interpret import run
from tests.unit.passes.partition.joints import CONSTANT, OUTPUT, PRIMAL, Built, check, gradient, joint, tangent

X = ir.tensor((6, 9), "bf16")
NUMBER = ir.tensor((), "f32")


def loss(e: Emitter, x: SSAValue, k: SSAValue, t: SSAValue) -> Built:
    """Σ exp x·k, whose gradient reads what it reads."""
    wide = e.convert(x, "f32")
    p = e.mul(e.exp(wide), k)
    g = e.mul(e.exp(wide), e.mul(k, e.broadcast(t, (6, 9), ())))
    return [e.reduce("add", p, (0, 1)), e.convert(g, "bf16")], [OUTPUT, gradient()]


def test_forward_keeps_the_gradient_for_the_tangent_one() -> None:
    roles = [PRIMAL, CONSTANT, tangent()]
    func = joint([X, ir.tensor((6, 9), "f32"), NUMBER], roles, loss)
    whole = func.clone()
    prepay(func, 0)
    x, k = torch.randn(6, 9).bfloat16(), torch.randn(6, 9)
    for t in (1.0, -0.25):
        for found, wanted in zip(run(func, [x, k, torch.tensor(t)]), run(whole, [x, k, torch.tensor(t)]), strict=True):
            torch.testing.assert_close(found, wanted)
    _, halves = check(func)
    (saved,) = halves.saved
    assert saved.type is X and len(halves.backward.body.block.args) == 2  # pyright: ignore
    assert not halves.recomputed


def squares_of_a_product(e: Emitter, x: SSAValue, k: SSAValue, t: SSAValue) -> Built:
    """A product comes between the tangent and the gradient."""
    y = e.dot(x, k, ((1,), (0,)))
    g = e.mul(e.add(y, y), e.broadcast(t, ir.shape_of(y), ()))
    return [e.reduce("add", e.mul(y, y), (0, 1)), e.dot(g, k, ((1,), (1,)))], [OUTPUT, gradient()]


def a_sum(e: Emitter, x: SSAValue, k: SSAValue, t: SSAValue) -> Built:
    """The gradient reads nothing."""
    return [e.reduce("add", x, (0, 1)), e.broadcast(t, (6, 9), ())], [OUTPUT, gradient()]


def of_another(e: Emitter, x: SSAValue, k: SSAValue, t: SSAValue) -> Built:
    """The gradient reads what forward does not read."""
    g = e.mul(e.exp(k), e.broadcast(t, (6, 9), ()))
    return [e.reduce("add", x, (0, 1)), g], [OUTPUT, gradient()]


def of_a_tensor(e: Emitter, x: SSAValue, k: SSAValue, t: SSAValue) -> Built:
    """The tangent is no number."""
    return [e.sin(x), e.mul(e.cos(x), e.broadcast(t, (6, 9), (1,)))], [OUTPUT, gradient()]


@pytest.mark.parametrize(
    "build,shape",
    [(squares_of_a_product, (9, 4)), (a_sum, (6, 9)), (of_another, (6, 9)), (of_a_tensor, (6, 9))],
)
def test_others_stay_as_they_are(build: object, shape: tuple[int, ...]) -> None:
    number = ir.tensor((9,), "f32") if build is of_a_tensor else NUMBER
    func = joint([ir.tensor((6, 9), "f32"), ir.tensor(shape, "f32"), number], [PRIMAL, CONSTANT, tangent()], build)  # pyright: ignore
    before = str(func)
    prepay(func, 0)
    assert str(func) == before


def test_half_precision_does_not_wait() -> None:
    """Its losses are scaled because it would underflow."""

    def build(e: Emitter, x: SSAValue, t: SSAValue) -> Built:
        g = e.mul(e.exp(e.convert(x, "f32")), e.broadcast(t, (6, 9), ()))
        return [e.reduce("add", e.exp(e.convert(x, "f32")), (0, 1)), e.convert(g, "f16")], [OUTPUT, gradient()]

    func = joint([ir.tensor((6, 9), "f16"), NUMBER], [PRIMAL, tangent()], build)
    before = str(func)
    prepay(func, 0)
    assert str(func) == before
