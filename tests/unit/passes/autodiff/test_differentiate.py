"""What the joint function takes and gives: roles, pruning, absent cotangents, order, errors."""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError, IRError, SourceLocation
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Result, Signature
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.passes.simplify.dce import erase_dead
from isthmus.runtime.interpret import run
from tests.unit.passes.autodiff.oracle import FALLBACKS, check_orders, joint_of, program, verified
from tests.unit.passes.autodiff.sample import F64, numbers

VECTOR, SQUARE, NUMBER = ir.tensor((4,), "f64"), ir.tensor((4, 4), "f64"), ir.tensor((), "f64")


def count(func: FuncOp, cls: type) -> int:
    return sum(isinstance(op, cls) for op in func.walk())


def gradients(func: FuncOp) -> list[int]:
    return list(Signature.of(func).gradients)


@pytest.mark.row("A1")
def test_adjoints_add_up_over_all_paths() -> None:
    def baydin(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
        return e.sub(e.add(e.log(a), e.mul(a, b)), e.sin(b))

    joint = joint_of(program(baydin, [NUMBER, NUMBER]))
    given = [torch.tensor(v, dtype=F64) for v in (2.0, 5.0, 1.0)]
    value, of_a, of_b = (v.item() for v in run(joint, given))
    assert (round(value, 3), of_a, round(of_b, 4)) == (11.652, 5.5, 1.7163)


@pytest.mark.row("T2", "T12", "A3")
def test_arguments_are_primals_then_tangents_and_only_asked_gradients_come_out() -> None:
    def loss(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        return e.sum(e.relu(e.matmul(x, w)), (0, 1))

    joint = joint_of(program(loss, [SQUARE, SQUARE], wanted=[1]))
    signature = Signature.of(joint)
    assert [(a.primal, a.wants_gradient, a.tangent) for a in signature.arguments] == [
        (True, False, None),
        (True, True, None),
        (False, False, 0),
    ]
    assert signature.results == (Result(output=True), Result(gradient=1))


@pytest.mark.row("A15", "A6")
def test_a_frozen_layer_has_no_gradient_work() -> None:
    def layers(e: Emitter, x: SSAValue, w1: SSAValue, w2: SSAValue) -> SSAValue:
        return e.matmul(e.tanh(e.matmul(x, w1)), w2)

    everything = joint_of(program(layers, [SQUARE] * 3, wanted=[1, 2]))
    frozen = joint_of(program(layers, [SQUARE] * 3, wanted=[2]))
    assert (count(everything, prim.DotOp), count(frozen, prim.DotOp)) == (2 + 3, 2 + 1)
    assert not count(frozen, prim.SubOp)  # nor tanh's derivative


@pytest.mark.row("A6")
def test_gradients_can_be_asked_of_some_arguments_only() -> None:
    func = program(lambda e, a, b: e.mul(e.exp(a), e.sin(b)), [VECTOR, VECTOR])
    joint = verified(differentiate(func, FALLBACKS, [0]))
    assert gradients(joint) == [0]
    assert not count(joint, prim.CosOp)


@pytest.mark.row("A4", "A5")
def test_a_rule_reads_only_what_a_needed_cotangent_wants() -> None:
    summed = joint_of(program(lambda e, a, b: e.add(a, b), [VECTOR, VECTOR]))
    product = joint_of(program(lambda e, a, b: e.mul(a, b), [VECTOR, VECTOR], wanted=[1]))
    assert [op.name for op in summed.body.block.ops] == ["prim.add", "func.return"]
    (multiplied,) = (op for op in list(product.body.block.ops)[1:] if isinstance(op, prim.MulOp))
    assert multiplied.b is product.body.block.args[0]


@pytest.mark.row("A10")
def test_absent_cotangents_stay_absent() -> None:
    def build(e: Emitter, x: SSAValue) -> list[SSAValue]:
        _y, index = e.sort(e.exp(x), 0)
        return [index, e.floor(x)]

    joint = joint_of(program(build, [VECTOR]))
    assert not count(joint, prim.ScatterOp)  # sort's values are not used
    assert not count(joint, prim.MulOp)
    assert list(Signature.of(joint).tangents) == [1]
    *_, gradient = run(joint, [torch.ones(4, dtype=F64)] * 2)
    assert gradient.tolist() == [0.0] * 4  # as torch: floor is connected, its gradient is zero


def test_an_argument_that_no_result_depends_on_has_no_gradient() -> None:
    def build(e: Emitter, x: SSAValue, y: SSAValue, z: SSAValue) -> SSAValue:
        return e.mul(x, e.convert(e.cmp("lt", y, z), "f64"))

    assert gradients(joint_of(program(build, [VECTOR] * 3))) == [0]


@pytest.mark.row("A9")
def test_a_real_operand_of_a_complex_op_has_a_real_gradient() -> None:
    z = numbers(4, dtype=torch.complex128)

    def build(e: Emitter, x: SSAValue, z: SSAValue) -> SSAValue:
        return e.mul(e.convert(x, "c128"), z)

    joint = check_orders(build, (numbers(4), z), lambda x, z: x * z)
    assert ir.dtype_of(joint.body.block.last_op.operands[1]) == "f64"  # pyright: ignore


def test_mutated_arguments_have_tangents() -> None:
    func = program(lambda e, x, w: [e.sum(x, (0,)), e.mul(x, w)], [VECTOR, VECTOR])
    signature = Signature.of(func)
    Signature(signature.arguments, (Result(output=True), Result(mutated=0))).attach(func)
    joint = joint_of(func)
    assert Signature.of(joint).tangents == {0: 2, 1: 3}
    x, w, of_sum, of_new = (numbers(4, seed=s) for s in range(4))
    *_, of_x, of_w = run(joint, [x, w, of_sum[0], of_new])
    torch.testing.assert_close(of_x, of_new * w + of_sum[0])
    torch.testing.assert_close(of_w, of_new * x)


def test_a_value_returned_twice_has_two_tangents_and_an_argument_may_be_a_result() -> None:
    check_orders(lambda e, x: [e.exp(x), e.exp(x), x], [numbers(4)], lambda x: (x.exp(), x.exp(), x.clone()))


def test_a_function_of_which_no_gradient_is_asked_keeps_its_name() -> None:
    func = verified(differentiate(program(lambda e, x: e.exp(x), [VECTOR], wanted=[]), FALLBACKS))
    assert func.sym_name.data == "main"
    assert not Signature.of(func).tangents


def test_integers_have_no_gradient() -> None:
    func = program(lambda e, n: n, [ir.tensor((4,), "i64")])
    with pytest.raises(IRError, match="argument 0 of @main is tensor<4xi64>"):
        differentiate(func, FALLBACKS, [0])


def test_the_pieces_of_a_split_are_joined_once() -> None:
    def attend(e: Emitter, x: SSAValue) -> SSAValue:
        q, k, v = (e.slice(x, 1, start, start + 2) for start in (0, 2, 4))
        return e.mul(e.mul(q, k), v)

    joint = check_orders(attend, [numbers(3, 6)])
    erase_dead(joint.body.block)
    assert count(joint, prim.ConcatOp) == 1
    assert not count(joint, prim.PadOp) and not count(joint, prim.AddOp)


def test_pieces_that_overlap_or_leave_gaps_are_added() -> None:
    def build(e: Emitter, x: SSAValue, *bounds: tuple[int, int]) -> SSAValue:
        total = e.const(0.0, (), "f64")
        for start, limit in bounds:
            total = e.add(total, e.sum(e.exp(e.slice(x, 0, start, limit)), (0,)))
        return total

    for bounds in (((0, 3), (2, 6)), ((0, 2), (4, 6)), ((0, 3), (0, 3), (3, 6)), ((0, 6), (0, 3), (3, 6))):
        check_orders(lambda e, x, bounds=bounds: build(e, x, *bounds), [numbers(6)])


def test_derived_ops_carry_the_line_they_derive_from() -> None:
    def build(e: Emitter, x: SSAValue) -> SSAValue:
        for line, cls in enumerate((prim.SinOp, prim.ExpOp), 1):
            with e.at(ir.location_attr(SourceLocation("model.py", line))):
                x = e.unary(cls, x)
        return x

    lines = {}
    for op in joint_of(program(build, [VECTOR])).body.block.ops:
        location = ir.source_location(op)
        lines.setdefault(None if location is None else location.line, []).append(op.name)
    assert lines == {1: ["prim.sin", "prim.cos", "prim.mul"], 2: ["prim.exp", "prim.mul"], None: ["func.return"]}


@pytest.mark.row("B1")
@pytest.mark.parametrize(
    ("build", "second"),
    [
        (lambda e, t: e.mul(t, e.exp(t)), 6 * math.exp(4)),
        (lambda e, t: e.add(e.mul(t, t), e.sqrt(t)), 1.96875),
        (lambda e, t: e.mul(e.sin(t), e.tanh(t)), 0.7565699),
        (lambda e, t: e.mul(e.mul(t, t), t), 24.0),
        (lambda e, t: e.logistic(t), -0.01702734),
    ],
)
def test_second_derivatives_go_on_through_the_results_that_rules_read(build: object, second: float) -> None:
    joint = joint_of(joint_of(program(build, [NUMBER])))  # pyright: ignore[reportArgumentType]
    given = [torch.tensor(v, dtype=F64) for v in (4.0, 1.0, 1.0)]
    _, by_t, _by_tangent = run(joint, given)
    assert by_t.item() == pytest.approx(second, rel=1e-6)


def test_the_bits_do_not_depend_on_what_else_is_asked() -> None:
    def build(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        return e.mul(e.tanh(e.matmul(x, w)), e.exp(x))

    inputs = [numbers(4, 4, seed=s, dtype=torch.float32) for s in range(3)]
    types = [ir.tensor((4, 4), "f32")] * 2
    both, one = (joint_of(program(build, types, wanted)) for wanted in ([0, 1], [0]))
    assert torch.equal(run(both, inputs)[1], run(one, inputs)[1])


def test_sizes_may_be_unknown() -> None:
    n, m = ir.Size.symbol("n"), ir.Size.symbol("m")

    def build(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        mean, var = e.moments(x, (1,))
        centred = e.sub(x, e.broadcast(mean, (n, m), (0,)))
        y = e.matmul(e.mul(centred, e.broadcast(e.rsqrt(var), (n, m), (0,))), w)
        y = e.add(e.slice(y, 0, 0, n - 1), e.slice(y, 0, 1, n))
        return e.sum(e.softmax(e.cumulative("mul", y, 0), 1), (0,))

    types = [ir.tensor((n, m), "f64"), ir.tensor((m, 3), "f64")]
    joint = joint_of(program(build, types))
    for rows, columns in ((2, 5), (4, 3)):
        x, w, t = numbers(rows, columns), numbers(columns, 3, seed=1), numbers(3, seed=2)

        def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = (x - x.mean(1, True)) * x.var(1, correction=0, keepdim=True).rsqrt() @ w
            return (y[:-1] + y[1:]).cumprod(0).softmax(1).sum(0)

        leaves = [v.clone().requires_grad_() for v in (x, w)]
        value = reference(*leaves)
        expected = torch.autograd.grad(value, leaves, t)
        for found, wanted in zip(run(joint, [x, w, t]), (value.detach(), *expected), strict=True):
            torch.testing.assert_close(found, wanted)


def test_an_op_without_a_derivative_is_named_with_its_line() -> None:
    def build(e: Emitter, x: SSAValue) -> SSAValue:
        with e.at(ir.location_attr(SourceLocation("model.py", 12, 9))):
            return e.opaque("mylib::scale", (x,), (ir.Operand(0),), (x.type,))[0]

    with pytest.raises(CompileError, match=r"model.py:12:9: 'mylib::scale': has no derivative\n    register one"):
        joint_of(program(build, [VECTOR]))
    assert gradients(joint_of(program(lambda e, x: e.add(x, e.stop_gradient(build(e, x))), [VECTOR]))) == [0]
