"""Derivatives through branches, loops and library calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.dialects.signature import Signature
from isthmus.ir import Literal
from isthmus.passes import elementary_form
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.passes.autodiff.rules.scan import make_scan
from isthmus.passes.autodiff.table import Fallbacks, Needs
from isthmus.runtime.interpret import run
from tests.unit.passes.autodiff.oracle import check_orders, joint_of, program, types_of
from tests.unit.passes.autodiff.sample import F64, numbers


def cond(e: Emitter, p: SSAValue, xs: Sequence[SSAValue], branches: Sequence[object]) -> Sequence[SSAValue]:
    regions = []
    types: list[ir.Attribute] = []
    for branch in branches:
        region, inner, arguments = e.region([x.type for x in xs])
        values = branch(inner, *arguments)  # pyright: ignore
        inner.yield_(values)
        types = [v.type for v in values]
        regions.append(region)
    op = ir.create_op(prim.CondOp, [p, *xs], types, regions=regions)
    e.block.add_op(op)
    return op.results


@pytest.mark.row("D16")
@pytest.mark.parametrize("p", [True, False])
def test_a_branch(p: bool) -> None:
    def build(e: Emitter, p: SSAValue, x: SSAValue, w: SSAValue) -> SSAValue:
        then = lambda e, x, w: [e.mul(e.sin(x), w), e.exp(w)]  # noqa: E731
        otherwise = lambda e, x, w: [e.cos(x), e.square(x)]  # noqa: E731
        a, b = cond(e, p, [e.mul(x, x), w], [then, otherwise])
        return e.mul(a, b)

    def reference(p: Tensor, x: Tensor, w: Tensor) -> Tensor:
        x = x * x
        return x.sin() * w * w.exp() if p else x.cos() * x**2 + 0 * w

    check_orders(build, [torch.tensor(p), numbers(4), numbers(4, seed=1)], reference, orders=3)


def test_the_gradient_of_the_cosine_branch() -> None:
    """x.sum() > 0 ? sin : cos at x = 2."""

    def build(e: Emitter, x: SSAValue) -> SSAValue:
        p = e.cmp("gt", e.sum(x, (0,)), e.const(0.0, (), "f64"))
        (y,) = cond(e, p, [x], [lambda e, x: [e.sin(x)], lambda e, x: [e.cos(x)]])
        return y

    joint = joint_of(program(build, [ir.tensor((1,), "f64")]))
    assert run(joint, [torch.tensor([2.0], dtype=F64), torch.ones(1, dtype=F64)])[1].item() == pytest.approx(
        -0.4161, abs=1e-4
    )


def test_a_branch_through_which_nothing_flows() -> None:
    def build(e: Emitter, p: SSAValue, x: SSAValue) -> SSAValue:
        (y,) = cond(e, p, [x], [lambda e, x: [e.stop_gradient(x)], lambda e, x: [e.floor(x)]])
        return e.mul(y, x)

    check_orders(build, [torch.tensor(True), numbers(4)], lambda p, x: x.detach() * x)


def recurrent(reverse: bool) -> object:
    def build(e: Emitter, h: SSAValue, xs: SSAValue, w: SSAValue) -> list[SSAValue]:
        count = e.const(0, (), "i64")

        def step(e: Emitter, carry: list[SSAValue], now: list[SSAValue], rest: list[SSAValue]):
            following = e.tanh(e.add(e.matmul(carry[0], rest[0]), now[0]))
            scaled = e.mul(following, e.broadcast(e.convert(carry[1], "f64"), (2, 3), ()))
            return [following, e.add(carry[1], e.const(1, (), "i64"))], [scaled]

        (last, _), (stacked,) = make_scan(e, [h, count], [xs], [w], step, reverse)
        return [last, stacked]

    return build


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("wanted", [[0, 1, 2], [2], [1], [0]])
def test_a_loop_over_a_sequence(reverse: bool, wanted: list[int]) -> None:
    def reference(h: Tensor, xs: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        stacked: list[Tensor] = []
        for count, x in enumerate(xs.flip(0) if reverse else xs):
            h = torch.tanh(h @ w + x)
            stacked.append(h * count)
        values = torch.stack(stacked)
        return h, values.flip(0) if reverse else values

    inputs = [numbers(2, 3), numbers(4, 2, 3), numbers(3, 3)]
    check_orders(recurrent(reverse), inputs, reference, orders=2, wanted=wanted)  # pyright: ignore[reportArgumentType]


def test_the_tape_of_a_loop_is_made_once() -> None:
    joint = joint_of(program(recurrent(False), types_of([numbers(2, 3), numbers(4, 2, 3), numbers(3, 3)])))  # pyright: ignore
    forward, backward = (op for op in joint.body.block.ops if isinstance(op, prim.ScanOp))
    assert len(forward.results) == 3 + 2  # the last carries, what it stacks, and each carry at each step
    again = joint_of(joint)
    first = next(op for op in again.body.block.ops if isinstance(op, prim.ScanOp))
    assert len(first.results) == len(forward.results)
    assert len(backward.results) == 3


@pytest.mark.parametrize("start", [0.0, 1.01, 1.2, 7.0, 9.5])
def test_a_loop_whose_end_only_data_tells(start: float) -> None:
    def build(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        condition, inner, (a, _) = e.region([x.type, x.type])
        small = inner.cmp("lt", a, inner.const_like(9.0, a))
        inner.yield_([inner.binary(prim.AndOp, small, inner.cmp("gt", a, inner.const_like(0.5, a)))])
        body, inner, (a, b) = e.region([x.type, x.type])
        inner.yield_([inner.mul(inner.mul(a, a), b)])
        carried = {"carried": Literal.of(1)}
        op = ir.create_op(prim.WhileOp, [x, w], [x.type], carried, regions=[condition, body])
        e.block.add_op(op)
        return e.mul(op.results[0], x)

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = x
        while 0.5 < a < 9:
            a = a * a * w
        return a * x + 0 * w

    inputs = [torch.tensor(start, dtype=torch.float64), torch.tensor(1.1, dtype=torch.float64)]
    check_orders(build, inputs, reference, orders=2)


def exponential_derivative(op: PrimOp, needs: Needs) -> FuncOp | None:
    """As a traced derivative comes: operands, results, cotangents in; a gradient out."""
    assert list(needs) == [True]
    x = op.operands[0].type
    return program(lambda e, x, y, g: e.mul(g, y), [x, x, x])


def test_a_library_call_has_the_derivative_that_is_handed_in() -> None:
    def build(e: Emitter, x: SSAValue) -> SSAValue:
        y = e.mul(x, x)
        return e.opaque("exp", (y,), (ir.Operand(0),), (y.type,))[0]

    fallbacks = Fallbacks(elementary_form, exponential_derivative)
    func = program(build, [ir.tensor((4,), "f64")])
    x, t, u = (numbers(4, seed=s) for s in range(3))
    leaf, tangent = x.clone().requires_grad_(), t.clone().requires_grad_()
    (first,) = torch.autograd.grad((leaf * leaf).exp(), leaf, tangent, create_graph=True)
    joint = differentiate(func, fallbacks)
    torch.testing.assert_close(run(joint, [x, t])[1], first.detach())
    second = differentiate(joint, fallbacks)
    expected = torch.autograd.grad(first, (leaf, tangent), u)
    torch.testing.assert_close(run(second, [x, t, u])[1:], list(expected))
    assert len(Signature.of(second).gradients) == 2


def test_trigamma_and_further_are_library_calls() -> None:
    check_orders(
        lambda e, x: e.unary(prim.LgammaOp, x), [numbers(4, low=0.5, high=3)], torch.lgamma, orders=4, rtol=1e-7
    )


def test_equal_library_calls_are_not_shared() -> None:
    def build(e: Emitter, x: SSAValue) -> SSAValue:
        return e.mul(*(e.opaque("exp", (x,), (ir.Operand(0),), (x.type,))[0] for _ in range(2)))

    joint = differentiate(program(build, [ir.tensor((4,), "f64")]), Fallbacks(elementary_form, exponential_derivative))
    assert sum(isinstance(op, prim.OpaqueOp) for op in joint.body.block.ops) == 2
