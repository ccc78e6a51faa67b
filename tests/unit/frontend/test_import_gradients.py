"""Gradients inside a captured program, grad modes, rules of the user's, checkpoints."""

from __future__ import annotations

import functools

import pytest
import torch
from same_as_eager import check, square
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.frontend.capture_dynamo import compile_with_dynamo


@pytest.mark.row("A3", "A13")
def test_grad_mode_is_a_fact_per_call(captures):
    def f(x, w):
        with torch.no_grad():
            y = x * w
            with torch.enable_grad():
                z = y * w
        return z * w, y

    check(captures, f, square(), square(True))
    assert [c.grad for c in captures.calls] == [False, True, True]


@pytest.mark.row("A13", "T13")
def test_under_no_grad_nothing_wants_a_gradient(captures):
    with torch.no_grad():
        compile_with_dynamo(lambda x, w: (x @ w).relu().sum(), captures, fullgraph=True)(square(), square(True))
    assert not captures.all[0].training
    assert all(not c.grad for c in captures.calls)
    with torch.inference_mode():
        compile_with_dynamo(lambda x, w: (x @ w).sum(), captures, fullgraph=True)(square(), square())
    assert not captures.all[1].training


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class CubeWithSlope(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx, g, dg):
        x, slope = ctx.saved_tensors
        return g * slope + dg * 6 * x


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k, y):
        ctx.save_for_backward(x)
        ctx.k = k
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        return x * k, y * 2, sign

    @staticmethod
    def backward(ctx, g, h, _):
        (x,) = ctx.saved_tensors
        return g * ctx.k * x, None, None


@pytest.mark.row("C1")
def test_custom_gradients_keep_their_rule(captures):
    check(captures, lambda x: Cube.apply(x) * 2, square(True))
    (custom,) = captures.ops(autodiff.CustomOp)
    assert (custom.saved, custom.gradients) == (1, (0,))
    check(captures, lambda x: CubeWithSlope.apply(x)[0] * 2, square(True))
    check(captures, lambda x: CubeWithSlope.apply(x), torch.tensor(2.0, requires_grad=True))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * 2


@pytest.mark.row("C3")
def test_a_rule_may_differ_from_the_formula(captures):
    x = torch.tensor(0.3, requires_grad=True)
    compile_with_dynamo(lambda x: Doubled.apply(x), captures, fullgraph=True)(x).backward()
    assert x.grad is not None and x.grad.item() == 2.0


@pytest.mark.row("C4")
def test_several_outputs_absent_gradients_plain_arguments(captures):
    check(captures, lambda x, y: Several.apply(x, 3.0, y), square(True), square(True))
    (custom,) = captures.ops(autodiff.CustomOp)
    assert custom.gradients == (0, -1)
    assert custom.non_differentiable == (2,)


@pytest.mark.row("C2")
def test_the_rule_is_differentiable_again(captures):
    check(captures, lambda x: CubeWithSlope.apply(x), square(True))
    backward = captures.ops(autodiff.CustomOp)[0].backward.block
    assert all(op.grad for op in backward.ops if isinstance(op, aten.CallOp))


def test_gradients_inside_the_program(captures):
    def penalty(x, w):
        (d,) = torch.autograd.grad((x * w).sin().sum(), w, create_graph=True)
        return d.pow(2).sum()

    check(captures, penalty, square(), square(True))
    (vjp,) = captures.ops(autodiff.VjpOp)
    assert vjp.create_graph and vjp.seeds == [None]


def test_unused_and_seeded_gradients(captures):
    def f(x, w, v):
        gx, gv = torch.autograd.grad([x * w, x.sin()], [x, v], [w, x], allow_unused=True, create_graph=True)
        return gx if gv is None else gv

    check(captures, f, square(True), square(True), square(True))
    (vjp,) = captures.ops(autodiff.VjpOp)
    assert (len(vjp.outs), len(vjp.ins), vjp.present) == (2, 2, (0,))


def test_third_order_inside(captures):
    def f(x):
        (d,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
        (dd,) = torch.autograd.grad(d.sum(), x, create_graph=True)
        return dd.sin().sum()

    check(captures, f, square(True))
    assert len(captures.ops(autodiff.VjpOp)) == 2


def test_functorch_gradients(captures):
    check(captures, lambda x, w: torch.func.grad(lambda a: (a * w * x).sin().sum())(x), square(), square(True))
    (vjp,) = captures.ops(autodiff.VjpOp)
    assert isinstance(vjp.ins[0].owner, aten.CallOp) and vjp.ins[0].owner.overload == "alias.default"


def test_vmap_is_one_op(captures):
    check(captures, lambda x, w: torch.func.vmap(lambda a: (a * w).sin().sum(), 1, 0)(x), square(), square(True))
    (batch,) = captures.ops(autodiff.BatchOp)
    assert (batch.mapped, batch.size) == ((1, None), 4)
    both = torch.func.grad(lambda a, w: torch.func.vmap(lambda b: (b * w).sin().sum())(a).sum())
    check(captures, lambda x, w: both(x, w), square(), square(True))
    assert len(captures.ops(autodiff.BatchOp)) == 1


def block(a, w):
    return torch.dropout((a @ w).relu(), 0.0, True)


def test_checkpoint_regions(captures):
    check(captures, lambda x, w: checkpoint(block, x, w, use_reentrant=False) * 2, square(), square(True))
    (region,) = captures.ops(autodiff.CheckpointOp)
    assert [op.name for op in region.body.block.ops][-1] == "autodiff.yield"


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.row("M5")
def test_selective_policies_become_tags(captures):
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    f = lambda x, w: checkpoint(lambda a: (a @ w).relu(), x, use_reentrant=False, context_fn=contexts) * 2  # noqa: E731
    check(captures, f, square(), square(True))
    assert [ir.literal(c, autodiff.RECOMPUTE) for c in captures.calls] == ["must_save", "prefer_recompute", None]
