"""Forward mode: J·u against torch's, the tangent dead, and both orders of mixing modes equal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Signature
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.passes.autodiff.jvp import jvp
from isthmus.passes.autodiff.table import PULLBACKS
from isthmus.runtime.interpret import run
from tests.unit.passes.autodiff.oracle import FALLBACKS, interpreted, joint_of, program, types_of, verified
from tests.unit.passes.autodiff.sample import Sample, numbers
from tests.unit.passes.autodiff.samples import SAMPLES


def double_backward(
    function: object, inputs: list[Tensor], moving: list[int], directions: list[Tensor]
) -> list[Tensor]:
    """J·u by torch, in reverse mode twice: every op has that."""
    leaves = [t.clone().requires_grad_(i in moving) for i, t in enumerate(inputs)]
    values = function(*leaves)  # pyright: ignore
    values = [values] if isinstance(values, Tensor) else list(values)
    found: list[Tensor] = []
    for value in values:
        if not value.requires_grad:
            found.append(torch.zeros_like(value))
            continue
        t = torch.zeros_like(value).requires_grad_()
        gradients = torch.autograd.grad(value, [leaves[i] for i in moving], t, create_graph=True, allow_unused=True)
        pairs = [(g, u) for g, u in zip(gradients, directions, strict=True) if g is not None and g.requires_grad]
        if not pairs:
            found.append(torch.zeros_like(value))
            continue
        (j_u,) = torch.autograd.grad([g for g, _ in pairs], t, [u for _, u in pairs], allow_unused=True)
        found.append(torch.zeros_like(value) if j_u is None else j_u)
    return found


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.cls.name}-{s.name}")
def test_agrees_with_torch_and_its_tangent_is_dead(sample: Sample) -> None:
    inputs = list(sample.inputs)
    func = program(sample.build, types_of(inputs))
    forward = verified(jvp(func, FALLBACKS))
    moving = Signature.of(func).arguments_where(wants_gradient=True)
    directions = [numbers(*inputs[i].shape, seed=40 + i, dtype=inputs[i].dtype) for i in moving]
    values = run(forward, [*inputs, *directions])
    count = len(func.function_type.outputs)
    function = sample.function or interpreted(func)
    expected = double_backward(function, inputs, moving, directions)
    differentiable = [v for v in expected if v.is_floating_point() or v.is_complex()]
    torch.testing.assert_close(values[count:], differentiable)


def energy(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
    h = e.tanh(e.matmul(x, w))
    return e.sum(e.mul(e.exp(h), e.sin(x)), (0, 1))


SQUARE = ir.tensor((4, 4), "f64")


def test_modes_mix_in_either_order() -> None:
    """Hessian times direction: forward over reverse and reverse over forward."""
    x, w, u, t = (numbers(4, 4, seed=s) for s in range(4))
    one = torch.ones((), dtype=torch.float64)
    func = program(energy, [SQUARE, SQUARE], wanted=[0])
    joint = joint_of(func)
    forward_over_reverse = verified(jvp(joint, FALLBACKS, arguments=[0]))
    *_, of_gradient = run(forward_over_reverse, [x, w, one, u])

    forward = verified(jvp(func, FALLBACKS, arguments=[0]))
    reverse_over_forward = verified(differentiate(forward, FALLBACKS, arguments=[0]))
    signature = Signature.of(reverse_over_forward)
    tangents = [one * 0, one] if len(signature.tangents) == 2 else [one]
    again = run(reverse_over_forward, [x, w, u, *tangents])[signature.gradients[0]]

    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(((leaf @ w).tanh().exp() * leaf.sin()).sum(), leaf, create_graph=True)
    (expected,) = torch.autograd.grad(first, leaf, u)
    torch.testing.assert_close(of_gradient, expected)
    torch.testing.assert_close(again, expected)
    assert t.shape == u.shape


def test_outputs_come_first_then_derivatives_then_mutated_values() -> None:
    func = program(lambda e, x, n: [e.exp(x), n, e.mul(x, x)], [SQUARE, ir.tensor((2,), "i64")])
    signature = Signature.of(func)
    results = (signature.results[0], signature.results[1], type(signature.results[2])(mutated=0))
    Signature(signature.arguments, results, (("value", 0, ()), ("alias", 2, ()), ("argument", 0, ()))).attach(func)
    forward = verified(jvp(func, FALLBACKS))
    made = Signature.of(forward)
    assert [r.output for r in made.results] == [True, True, True, False]
    assert made.results[3].mutated == 0
    assert [str(a.extra.get("autodiff.direction")) for a in made.arguments] == ["None", "None", "0 : i64"]
    assert [str(r.extra.get("autodiff.derivative")) for r in made.results] == ["None", "None", "0 : i64", "None"]
    assert made.user_outputs == (("value", 0, ()), ("alias", 3, ()), ("argument", 0, ()), ("value", 2))


def test_a_pullback_that_is_not_linear_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    PULLBACKS[prim.SinOp]  # the rules are loaded
    monkeypatch.setitem(PULLBACKS, prim.SinOp, lambda e, op, cts, needs: (e.mul(cts[0], cts[0]),))
    with pytest.raises(IRError, match="not linear in its cotangent"):
        jvp(program(lambda e, x: e.unary(prim.SinOp, x), [SQUARE]), FALLBACKS)
