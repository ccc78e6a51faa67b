"""Differentiation that the program itself asks for: inner gradients, the user's own rules, checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import autodiff, new_context, prim
from isthmus.dialects.signature import Signature
from isthmus.passes.autodiff.differentiate import differentiate, may_have_tangents
from isthmus.passes.autodiff.end_differentiation import end_differentiation
from isthmus.passes.pipelines import parse_pass
from isthmus.runtime.interpret import run
from tests.unit.passes.autodiff.oracle import FALLBACKS, joint_of, verified
from tests.unit.passes.autodiff.sample import F64, numbers


def module(text: str) -> ModuleOp:
    parsed = Parser(new_context(), text).parse_module()
    ir.verify(parsed)
    return parsed


def main(text: str) -> FuncOp:
    func = ir.function(module(text), "main")
    func.detach()
    return func


def finished(func: FuncOp) -> FuncOp:
    end_differentiation(func)
    return verified(func)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=F64)


ASKED = "{autodiff.primal, autodiff.wants_gradient}"

PENALTY = """
func.func @main(%x: tensor<4xf64> ASKED) -> (tensor<f64> {autodiff.output}) {
  %e = prim.exp %x : tensor<4xf64>
  %m = prim.mul %e, %x : tensor<4xf64>
  %y = prim.reduce %m {kind = "add", dims = [0]} : tensor<f64>
  %g = autodiff.vjp %y, %x {outs = 1, ins = 1, seeds = [none], create_graph = CREATE, present = [0]} : tensor<4xf64>
  %q = prim.mul %g, %g : tensor<4xf64>
  %p = prim.reduce %q {kind = "add", dims = [0]} : tensor<f64>
  %r = prim.add %y, %p : tensor<f64>
  func.return %r : tensor<f64>
}
""".replace("ASKED", ASKED)


@pytest.mark.parametrize("create_graph", [True, False])
def test_a_gradient_inside_the_program(create_graph: bool) -> None:
    joint = joint_of(main(PENALTY.replace("CREATE", str(create_graph).lower())))
    x = numbers(4).requires_grad_()
    y = (x.exp() * x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=create_graph, retain_graph=True)
    value = y + (g * g).sum()
    (expected,) = torch.autograd.grad(value, x)
    found = run(joint, [x.detach(), number(1.0)])
    torch.testing.assert_close(found, [value.detach(), expected])
    assert Signature.of(joint).gradients == {0: 1}


@pytest.mark.parametrize("create_graph", [True, False])
@pytest.mark.parametrize("returned", ["p", "r"])
def test_whether_anything_has_a_tangent_is_seen_before_gradients_expand(create_graph: bool, returned: str) -> None:
    text = PENALTY.replace("CREATE", str(create_graph).lower()).replace("func.return %r", f"func.return %{returned}")
    func = main(text)
    has_tangents = bool(Signature.of(joint_of(main(text))).tangents)
    assert may_have_tangents(func) == has_tangents == (create_graph or returned == "r")


def test_a_gradient_inside_a_function_without_gradients() -> None:
    func = verified(
        differentiate(main(PENALTY.replace("CREATE", "false").replace(", autodiff.wants_gradient", "")), FALLBACKS)
    )
    assert func.sym_name.data == "main"
    assert not any(isinstance(op, autodiff.VjpOp) for op in func.walk())


def test_third_order_of_nested_gradients_as_in_a_pde() -> None:
    """u = tanh(x·w); r = (u_xx)²; ∂r/∂w."""
    text = """
    func.func @main(%x: tensor<f64> {autodiff.primal}, %w: tensor<f64> ASKED) -> (tensor<f64> {autodiff.output}) {
      %m = prim.mul %x, %w : tensor<f64>
      %u = prim.tanh %m : tensor<f64>
      %ux = autodiff.vjp %u, %x {outs = 1, ins = 1, seeds = [none], create_graph = true, present = [0]} : tensor<f64>
      %uxx = autodiff.vjp %ux, %x {outs = 1, ins = 1, seeds = [none], create_graph = true, present = [0]} : tensor<f64>
      %r = prim.mul %uxx, %uxx : tensor<f64>
      func.return %r : tensor<f64>
    }
    """.replace("ASKED", ASKED)
    joint = joint_of(main(text))
    x, w = number(0.7).requires_grad_(), number(0.4).requires_grad_()
    u = torch.tanh(x * w)
    (ux,) = torch.autograd.grad(u, x, create_graph=True)
    (uxx,) = torch.autograd.grad(ux, x, create_graph=True)
    (expected,) = torch.autograd.grad(uxx**2, w)
    found = run(joint, [x.detach(), w.detach(), number(1.0)])
    torch.testing.assert_close(found, [(uxx**2).detach(), expected])


def test_by_an_intermediate_value_and_by_what_it_comes_from() -> None:
    text = """
    func.func @main(%x: tensor<4xf64> {autodiff.primal}, %s: tensor<4xf64> {autodiff.primal})
        -> (tensor<4xf64> {autodiff.output}, tensor<4xf64> {autodiff.output}) {
      %h = prim.exp %x : tensor<4xf64>
      %y = prim.mul %h, %x : tensor<4xf64>
      %gh, %gx = autodiff.vjp %y, %h, %x, %s {outs = 1, ins = 2, seeds = [arg3], create_graph = true, present = [0, 1]}
          : tensor<4xf64>, tensor<4xf64>
      func.return %gh, %gx : tensor<4xf64>, tensor<4xf64>
    }
    """
    func = verified(differentiate(main(text), FALLBACKS))
    x, s = numbers(4).requires_grad_(), numbers(4, seed=1)
    h = x.exp()
    torch.testing.assert_close(run(func, [x.detach(), s]), list(torch.autograd.grad(h * x, (h, x), s)))


MY_CUBE = """
func.func @main(%x: tensor<f64> ASKED) -> (tensor<f64> {autodiff.output}) {
  %y, %dx = autodiff.custom %x {saved = 2, gradients = [0]} ({
  ^bb0(%a: tensor<f64>):
    %s = prim.mul %a, %a : tensor<f64>
    %c = prim.mul %s, %a : tensor<f64>
    %three = prim.const {value = 3.0} : tensor<f64>
    %d = prim.mul %three, %s : tensor<f64>
    autodiff.yield %c, %d, %a, %d
  }, {
  ^bb0(%gc: tensor<f64>, %gd: tensor<f64>, %a: tensor<f64>, %d: tensor<f64>):
    %first = prim.mul %gc, %d : tensor<f64>
    %six = prim.const {value = 6.0} : tensor<f64>
    %slope = prim.mul %six, %a : tensor<f64>
    %second = prim.mul %gd, %slope : tensor<f64>
    %sum = prim.add %first, %second : tensor<f64>
    autodiff.yield %sum
  }) : tensor<f64>, tensor<f64>
  func.return %y : tensor<f64>
}
""".replace("ASKED", ASKED)


@pytest.mark.row("C1", "C2")
def test_extra_outputs_of_a_custom_function_make_every_order_right() -> None:
    func = main(MY_CUBE)
    given = [number(2.0)]
    found: list[float] = []
    for _ in range(3):
        func = joint_of(func)
        signature = Signature.of(func)
        given += [number(float(k == 0)) for k in signature.tangents]
        values = run(finished(func.clone()), given)
        if not found:
            found.append(values[0].item())
        found.append(values[signature.gradients[0]].item())
    assert found == [8.0, 12.0, 12.0, 6.0]


def custom(forward: str, backward: str, literals: str, results: str = "tensor<f64>") -> FuncOp:
    names = [f"%y{k}" for k in range(results.count("tensor"))]
    outputs = ", ".join(f"{r} {{autodiff.output}}" for r in results.split(", "))
    return main(f"""
    func.func @main(%x: tensor<f64> {ASKED}, %w: tensor<f64> {ASKED}) -> ({outputs}) {{
      {", ".join(names)} = autodiff.custom %x, %w {literals} ({{
      ^bb0(%a: tensor<f64>, %b: tensor<f64>):
        {forward}
      }}, {{
        {backward}
      }}) : {results}
      func.return {", ".join(names)} : {results}
    }}""")


@pytest.mark.row("C3")
def test_a_custom_rule_overrides_the_derivative() -> None:
    """Twice the true gradient; forward hands on its argument."""
    func = custom(
        "autodiff.yield %a",
        "^bb0(%g: tensor<f64>):\n %d = prim.add %g, %g : tensor<f64>\n autodiff.yield %d",
        "{saved = 0, gradients = [0, -1]}",
    )
    joint = finished(joint_of(func))
    assert [v.item() for v in run(joint, [number(5.0), number(0.0), number(1.5)])[:2]] == [5.0, 3.0]


@pytest.mark.row("C4")
def test_none_gradients_and_outputs_that_are_not_differentiable() -> None:
    func = custom(
        """%c = prim.mul %a, %b : tensor<f64>
        %f = prim.floor %c : tensor<f64>
        autodiff.yield %c, %f, %b""",
        """^bb0(%g: tensor<f64>, %none: tensor<f64>, %b: tensor<f64>):
        %d = prim.mul %g, %b : tensor<f64>
        autodiff.yield %d""",
        "{saved = 1, gradients = [0, -1], non_differentiable = [1]}",
        "tensor<f64>, tensor<f64>",
    )
    joint = joint_of(func)
    signature = Signature.of(joint)
    assert list(signature.tangents) == [0]
    values = run(finished(joint), [number(2.0), number(3.5), number(10.0)])
    assert [v.item() for v in values] == [7.0, 7.0, 35.0, 0.0]


def test_a_saved_intermediate_is_a_constant_when_differentiated_again() -> None:
    """As in eager: forward runs without gradients, so only saved inputs and outputs are followed."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):  # pyright: ignore
            twice = a + a
            ctx.save_for_backward(twice, b)
            return a * a * b

        @staticmethod
        def backward(ctx, g):  # pyright: ignore
            twice, b = ctx.saved_tensors
            return g * twice * b, None

    func = custom(
        """%t = prim.add %a, %a : tensor<f64>
        %s = prim.mul %a, %a : tensor<f64>
        %c = prim.mul %s, %b : tensor<f64>
        autodiff.yield %c, %t, %b""",
        """^bb0(%g: tensor<f64>, %t: tensor<f64>, %b: tensor<f64>):
        %d = prim.mul %g, %t : tensor<f64>
        %e = prim.mul %d, %b : tensor<f64>
        autodiff.yield %e""",
        "{saved = 2, gradients = [0, -1]}",
    )
    x, w, t = (number(v).requires_grad_() for v in (3.0, 0.5, 2.0))
    (first,) = torch.autograd.grad(Square.apply(x, w), x, t, create_graph=True)
    expected = torch.autograd.grad(first, (x, w, t), allow_unused=True)
    joint = joint_of(joint_of(func))
    signature = Signature.of(joint)
    values = run(
        finished(joint), [v.detach() for v in (x, w, t)] + [number(1.0), number(0.0)][: len(signature.tangents)]
    )
    assert values[0].item() == first.item()
    found = [values[signature.gradients[i]].item() if i in signature.gradients else 0.0 for i in range(3)]
    assert found == [0.0 if v is None else v.item() for v in expected]


def test_equal_values_inside_and_outside_a_custom_function_keep_their_own_derivatives() -> None:
    text = """
    func.func @main(%x: tensor<f64> ASKED) -> (tensor<f64> {autodiff.output}) {
      %o = prim.mul %x, %x : tensor<f64>
      %y = autodiff.custom %x {saved = 0, gradients = [0]} ({
      ^bb0(%a: tensor<f64>):
        %s = prim.mul %a, %a : tensor<f64>
        autodiff.yield %s
      }, {
      ^bb0(%g: tensor<f64>):
        autodiff.yield %g
      }) : tensor<f64>
      %r = prim.mul %o, %y : tensor<f64>
      func.return %r : tensor<f64>
    }
    """.replace("ASKED", ASKED)
    values = run(finished(joint_of(main(text))), [number(3.0), number(1.0)])
    assert [v.item() for v in values] == [81.0, 9.0 * 6.0 + 9.0]


CHECKPOINT = """
func.func @main(%x: tensor<4x4xf64> ASKED, %w: tensor<4x4xf64> ASKED) -> (tensor<4x4xf64> {autodiff.output}) {
  %y = autodiff.checkpoint %x, %w ({
  ^bb0(%a: tensor<4x4xf64>, %b: tensor<4x4xf64>):
    %d = prim.dot %a, %b {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0],
        autodiff.recompute = "must_save"} : tensor<4x4xf64>
    %t = prim.tanh %d : tensor<4x4xf64>
    %z = prim.exp %t : tensor<4x4xf64>
    autodiff.yield %z
  }) : tensor<4x4xf64>
  func.return %y : tensor<4x4xf64>
}
""".replace("ASKED", ASKED)


def test_the_ops_of_a_checkpoint_say_what_to_do_with_their_values() -> None:
    joint = joint_of(main(CHECKPOINT))
    tags = {
        op.name: ir.literal(op, autodiff.RECOMPUTE)
        for op in joint.body.block.ops
        if autodiff.RECOMPUTE in op.attributes
    }
    assert tags == {"prim.dot": "must_save", "prim.tanh": "must_recompute", "prim.exp": "must_save"}
    x, w, t = (numbers(4, 4, seed=s) for s in range(3))
    x.requires_grad_(), w.requires_grad_()
    value = (x @ w).tanh().exp()
    expected = torch.autograd.grad(value, (x, w), t)
    torch.testing.assert_close(run(joint, [x.detach(), w.detach(), t]), [value.detach(), *expected])


def test_captured_ops_are_refused_with_the_cure() -> None:
    text = """
    func.func @main(%x: tensor<4xf64> ASKED) -> (tensor<4xf64> {autodiff.output}) {
      %y = func.call @main(%x) : (tensor<4xf64>) -> tensor<4xf64>
      func.return %y : tensor<4xf64>
    }
    """.replace("ASKED", ASKED)
    with pytest.raises(IRError, match=r"'func.call': differentiation knows primitives only\n *run functionalize"):
        joint_of(main(text))


def test_what_nobody_differentiates_only_expands() -> None:
    for text in (PENALTY.replace("CREATE", "true"), MY_CUBE, CHECKPOINT):
        parsed = module(text)
        parse_pass("end-differentiation").apply(new_context(), parsed)
        ir.verify(parsed)
        func = ir.function(parsed, "main")
        assert not any(op.name.startswith("autodiff.") for op in func.walk())
        assert Signature.of(func) == Signature.of(main(text))
        func.detach()
        checked = finished(joint_of(main(text)))
        inputs = [numbers(*ir.shape_of(a), seed=7) for a in func.body.block.args]  # pyright: ignore
        tangent = numbers(*ir.shape_of(func.body.block.last_op.operands[0]))  # pyright: ignore
        torch.testing.assert_close(run(func, inputs)[0], run(checked, [*inputs, tangent])[0])


def test_end_differentiation_leaves_no_marks_in_regions_either() -> None:
    text = """
    func.func @main(%p: tensor<i1> {autodiff.primal}, %x: tensor<4xf64> ASKED) -> (tensor<4xf64> {autodiff.output}) {
      %y = prim.cond %p, %x ({
      ^bb0(%a: tensor<4xf64>):
        %s = prim.stop_gradient %a : tensor<4xf64>
        %e = prim.mul %s, %a : tensor<4xf64>
        prim.yield %e
      }, {
      ^bb0(%a: tensor<4xf64>):
        prim.yield %a
      }) : tensor<4xf64>
      func.return %y : tensor<4xf64>
    }
    """.replace("ASKED", ASKED)
    parsed = module(text)
    for name in ("differentiate", "end-differentiation"):
        parse_pass(name).apply(new_context(), parsed)
        ir.verify(parsed)
    joint = ir.function(parsed, "joint")
    assert not any(isinstance(op, prim.StopGradientOp) for op in joint.walk())
    x, t = numbers(4), numbers(4, seed=1)
    for p in (True, False):
        value, gradient = run(joint, [torch.tensor(p), x, t])
        torch.testing.assert_close(value, x * x if p else x)
        torch.testing.assert_close(gradient, t * x if p else t)
