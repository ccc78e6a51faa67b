"""What forward computes of backward ahead of it, so that less is kept."""

from __future__ import annotations

import pytest
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.partition import early
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.work import operations
from tests.unit.passes.partition.joints import (
    CONSTANT,
    OUTPUT,
    PRIMAL,
    Built,
    check,
    gradient,
    joint,
    kinds,
    saved_bytes,
    tangent,
)
from tests.unit.passes.partition.test_models import differentiated, f32, gpt, total

ROWS, INPUTS, WIDTH, CLASSES = 64, 512, 4, 256


def program(e: Emitter, x: SSAValue, v: SSAValue, w: SSAValue) -> SSAValue:
    return total(e, e.sin(e.dot(e.dot(x, v, ((1,), (0,))), w, ((1,), (0,)))))


def loss_of_a_head() -> FuncOp:
    types = [f32(ROWS, INPUTS), f32(INPUTS, WIDTH), f32(WIDTH, CLASSES)]
    return differentiated(types, [CONSTANT, PRIMAL, PRIMAL], program)


@pytest.mark.row("M6")
def test_the_gradients_of_a_wide_head_are_kept_instead_of_its_result() -> None:
    plan, halves = check(loss_of_a_head())
    assert halves.backward is not None
    assert saved_bytes(plan, halves) == 4 * (ROWS * WIDTH + WIDTH * CLASSES)
    assert kinds(halves.forward).count(prim.DotOp) == 4
    assert kinds(halves.backward).count(prim.DotOp) == 1


def test_late_leaves_them_to_backward() -> None:
    plan, halves = check(loss_of_a_head(), "min-cut-late")
    assert saved_bytes(plan, halves) == 4 * ROWS * (CLASSES + WIDTH)
    assert kinds(halves.forward).count(prim.DotOp) == 2


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_forward_computes_at_most_twice_as_much_and_nothing_dear_twice(layers: int) -> None:
    func = gpt(layers)
    plan, halves = check(func)
    late = Joint.of(func)
    own = sum(operations(late, op) for op in late.forward_ops)
    forward = [op for op in halves.forward.body.block.ops if isinstance(op, prim.PrimOp)]
    assert own <= sum(operations(plan.joint, op) for op in forward) <= 2 * own
    assert not [op for op in halves.recomputed if isinstance(op, (prim.ContractionOp, prim.StructuredOp))]
    assert saved_bytes(plan, halves) <= saved_bytes(*check(func, "min-cut-late"))


def by_hand(dtype: str, bend: bool) -> FuncOp:
    """A loss with something like a gradient, which may bend the cotangent: sin of it is not linear."""
    x_type, w_type = ir.tensor((ROWS, WIDTH), dtype), ir.tensor((WIDTH, CLASSES), dtype)

    def build(e: Emitter, x: SSAValue, w: SSAValue, t: SSAValue) -> Built:
        h = e.dot(x, w, ((1,), (0,)))
        y = e.sum(e.convert(e.tanh(e.sin(h)), "f32"), (0, 1))
        g = e.mul(e.broadcast(e.convert(t, dtype), ir.shape_of(h), ()), e.cos(h))
        g = e.sin(g) if bend else g
        return [y, e.dot(x, g, ((0,), (0,)))], [OUTPUT, gradient(1)]

    return joint([x_type, w_type, f32()], [CONSTANT, PRIMAL, tangent()], build)


@pytest.mark.parametrize(
    ("dtype", "bend", "moves"), [("f32", False, True), ("f32", True, False), ("f16", False, False)]
)
def test_only_what_is_linear_and_cannot_underflow_waits_for_its_factor(dtype: str, bend: bool, moves: bool) -> None:
    _, halves = check(by_hand(dtype, bend))
    assert kinds(halves.forward).count(prim.DotOp) == (2 if moves else 1)


def test_bfloat16_is_scaled_in_the_width_of_the_tangent() -> None:
    _, halves = check(by_hand("bf16", False))
    assert halves.backward is not None
    assert kinds(halves.backward) == [prim.BroadcastOp, prim.ConvertOp, prim.MulOp, prim.ConvertOp]


def test_a_value_that_two_losses_share_does_not_wait_for_one_factor() -> None:
    def build(e: Emitter, x: SSAValue, w: SSAValue, t: SSAValue, s: SSAValue) -> Built:
        h = e.dot(x, w, ((1,), (0,)))
        shape = ir.shape_of(h)
        one, two = e.sum(e.sin(h), (0, 1)), e.sum(e.cos(h), (0, 1))
        g = e.sub(e.mul(e.broadcast(t, shape, ()), e.cos(h)), e.mul(e.broadcast(s, shape, ()), e.sin(h)))
        return [one, two, e.dot(x, g, ((0,), (0,)))], [OUTPUT, OUTPUT, gradient(1)]

    types = [f32(ROWS, WIDTH), f32(WIDTH, CLASSES), f32(), f32()]
    _, halves = check(joint(types, [CONSTANT, PRIMAL, tangent(), tangent(1)], build))
    assert kinds(halves.forward).count(prim.DotOp) == 1


def test_a_tangent_of_many_numbers_is_no_factor() -> None:
    def program(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        return e.sum(e.sin(e.dot(x, w, ((1,), (0,)))), (1,))

    _, halves = check(differentiated([f32(ROWS, WIDTH), f32(WIDTH, CLASSES)], [PRIMAL, PRIMAL], program))
    assert kinds(halves.forward).count(prim.DotOp) == 1


def one_product(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
    return total(e, e.sin(e.dot(x, w, ((1,), (0,)))))


@pytest.mark.row("M6")
@pytest.mark.parametrize("large", [False, True])
def test_a_program_that_is_one_large_product_makes_both_gradients_at_once(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Both products with the matrix's gradient move, though that is twice the arithmetic of forward."""
    monkeypatch.setattr(early, "is_large_product", lambda op: large and isinstance(op, prim.DotOp))
    func = differentiated([f32(ROWS, 32), f32(32, CLASSES)], [PRIMAL, PRIMAL], one_product)
    plan, halves = check(func)
    assert halves.backward is not None
    assert kinds(halves.forward).count(prim.DotOp) == (3 if large else 1)
    kept = 4 * (ROWS * 32 + 32 * CLASSES) if large else 4 * ROWS * CLASSES
    assert saved_bytes(plan, halves) == kept
