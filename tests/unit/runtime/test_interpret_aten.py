"""Captured programs interpreted: references exactly as eager, values without mutation, autograd by torch's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import new_context
from isthmus.runtime.interpret import run


def execute(body: str, arguments: Sequence[Tensor | int], signature: str) -> list[Tensor]:
    module = Parser(new_context(), f"builtin.module {{ func.func @main{signature} {{ {body} }} }}").parse_module()
    ir.verify(module)
    return run(ir.function(module, "main"), arguments)


def test_references_are_written_as_eager_writes_them():
    x = torch.arange(4.0)
    (y,) = execute(
        """
  %v = aten.call %x {overload = "slice.Tensor", args = [arg0, 0, 2, none, 1], aliases = [0]}
    : !aten.ref<2xf32, offset = 2>
  %w = aten.call %v {overload = "mul_.Tensor", args = [arg0, 10.0], mutates = [0], aliases = [0]}
    : !aten.ref<2xf32, offset = 2>
  func.return %v : !aten.ref<2xf32, offset = 2>""",
        [x],
        "(%x: !aten.ref<4xf32>) -> !aten.ref<2xf32, offset = 2>",
    )
    assert x.tolist() == [0.0, 1.0, 20.0, 30.0] and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_values_are_never_written():
    x, m, v = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    y, mean, var = execute(
        """
  %y, %n, %u = aten.call %x, %m, %v {overload = "batch_norm.default",
    args = [arg0, none, none, arg1, arg2, true, 0.5, 1.0e-05, false], updates = [1, 2]}
    : tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>
  func.return %y, %n, %u : tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>""",
        [x, m, v],
        """(%x: tensor<4x3xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>)
    -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)""",
    )
    assert m.eq(0).all() and v.eq(1).all()
    torch.testing.assert_close(y, torch.nn.functional.batch_norm(x, m, v, None, None, True, 0.5))
    torch.testing.assert_close((mean, var), (m, v))


@pytest.mark.parametrize("x", [torch.arange(6.0).reshape(3, 2).t(), torch.arange(12.0).reshape(2, 6)[:, ::2]])
def test_views_of_values_are_in_row_major_order(x: Tensor):
    """Whatever the memory of the value is: only its elements count."""
    flat, pairs, put = execute(
        """
  %v = aten.call %x {overload = "view.default", args = [arg0, [6]]} : tensor<6xf32>
  %s = aten.call %x {overload = "as_strided.default", args = [arg0, [2, 2], [3, 1], 1]} : tensor<2x2xf32>
  %p = aten.call %x, %s {overload = "as_strided_scatter.default", args = [arg0, arg1, [2, 2], [1, 2], 0]}
    : tensor<2x3xf32>
  func.return %v, %s, %p : tensor<6xf32>, tensor<2x2xf32>, tensor<2x3xf32>""",
        [x],
        "(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<2x2xf32>, tensor<2x3xf32>)",
    )
    rows = x.contiguous().clone()
    assert torch.equal(flat, rows.view(6)) and torch.equal(pairs, rows.as_strided((2, 2), (3, 1), 1))
    before = x.clone()
    rows.as_strided((2, 2), (1, 2), 0).copy_(pairs)
    assert torch.equal(put, rows) and torch.equal(x, before)


def test_numbers_lists_and_absent_results():
    x = torch.randn(3, 4)
    w = torch.randn(4)
    y, values, index = execute(
        """
  %n = aten.call %x, %w {overload = "native_layer_norm.default", args = [arg0, [4], arg1, none, 1.0e-05],
    present = [0]} : tensor<3x4xf32>
  %s, %i = aten.call %n {overload = "topk.default", args = [arg0, <"k">, 1, true, true]}
    : tensor<3x?xf32, #isthmus.lit<[3, <"k">]>>, tensor<3x?xi64, #isthmus.lit<[3, <"k">]>>
  %d = aten.call %n {overload = "_to_copy.default", args = [arg0, "f64", none, none, none, false, none]}
    : tensor<3x4xf64>
  func.return %d, %s, %i : tensor<3x4xf64>, tensor<3x?xf32, #isthmus.lit<[3, <"k">]>>,
    tensor<3x?xi64, #isthmus.lit<[3, <"k">]>>""",
        [x, w, 2],
        """(%x: tensor<3x4xf32>, %w: tensor<4xf32>, %k: index {isthmus.symbol = "k"})
    -> (tensor<3x4xf64>, tensor<3x?xf32, #isthmus.lit<[3, <"k">]>>, tensor<3x?xi64, #isthmus.lit<[3, <"k">]>>)""",
    )
    expected = torch.nn.functional.layer_norm(x, (4,), w)
    torch.testing.assert_close(y, expected.double())
    torch.testing.assert_close((values, index), tuple(expected.topk(2)))


def test_autograd_goes_through_and_stops_where_it_is_told():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    y, z = execute(
        """
  %s = aten.call %x {overload = "sin.default", args = [arg0]} : tensor<3xf64>
  %d = autodiff.stop_gradient %s : tensor<3xf64>
  %y = aten.call %s, %d {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<3xf64>
  %z = aten.call %s {overload = "exp.default", args = [arg0], grad = false} : tensor<3xf64>
  func.return %y, %z : tensor<3xf64>, tensor<3xf64>""",
        [x],
        "(%x: tensor<3xf64>) -> (tensor<3xf64>, tensor<3xf64>)",
    )
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, x.cos() * x.sin())
    assert not z.requires_grad


VJP = """
  %s = aten.call %x {overload = "sin.default", args = [arg0]} : tensor<3xf64>
  %m = aten.call %s, %x {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<3xf64>
  %l = aten.call %m {overload = "sum.default", args = [arg0, none]} : tensor<f64>
  %g, %h = autodiff.vjp %l, %x, %s {outs = 1, ins = 2, seeds = [none], create_graph = true, present = [0, 1]}
    : tensor<3xf64>, tensor<3xf64>
  func.return %g, %h : tensor<3xf64>, tensor<3xf64>"""


@pytest.mark.parametrize("wanted", [True, False])
def test_gradients_asked_for_inside(wanted: bool):
    x = torch.randn(3, dtype=torch.float64, requires_grad=wanted)
    g, h = execute(VJP, [x], "(%x: tensor<3xf64>) -> (tensor<3xf64>, tensor<3xf64>)")
    torch.testing.assert_close((g.detach(), h.detach()), ((x.cos() * x + x.sin()).detach(), x.detach()))
    with torch.no_grad():
        g, h = execute(VJP, [x], "(%x: tensor<3xf64>) -> (tensor<3xf64>, tensor<3xf64>)")
    assert not g.requires_grad and not h.requires_grad and not (x.requires_grad and not wanted)


CUSTOM = """
  %y = autodiff.custom %x, %w {saved = 1, gradients = [0, -1]} ({
  ^bb0(%a: tensor<3xf64>, %b: tensor<3xf64>):
    %p = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<3xf64>
    autodiff.yield %p, %a
  }, {
  ^bb0(%g: tensor<3xf64>, %a: tensor<3xf64>):
    %q = aten.call %g, %a {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<3xf64>
    autodiff.yield %q
  }) : tensor<3xf64>
  %c = autodiff.checkpoint %y ({
  ^bb0(%a: tensor<3xf64>):
    %e = aten.call %a {overload = "exp.default", args = [arg0]} : tensor<3xf64>
    autodiff.yield %e
  }) : tensor<3xf64>
  func.return %c : tensor<3xf64>"""


def test_rules_of_the_user_and_checkpoints():
    x, w = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    (y,) = execute(CUSTOM, [x, w], "(%x: tensor<3xf64>, %w: tensor<3xf64>) -> tensor<3xf64>")
    torch.testing.assert_close(y, (x * w).exp())
    found = torch.autograd.grad(y.sum(), (x, w), allow_unused=True, create_graph=True)
    torch.testing.assert_close(found[0], y * x)  # the rule's own gradient, not the true one
    assert found[1] is None
    (second,) = torch.autograd.grad(found[0].sum(), x)
    torch.testing.assert_close(second, (y + y * x * x).detach())


CONTROL = """
  %r = aten.cond %p, %x ({
  ^bb0(%a: tensor<2x3xf32>):
    %s = aten.call %a {overload = "sin.default", args = [arg0]} : tensor<2x3xf32>
    aten.yield %s
  }, {
  ^bb0(%a: tensor<2x3xf32>):
    aten.yield %a
  }) : tensor<2x3xf32>
  %last, %all = aten.scan %i, %r, %i {inits = 1, xs = 1} ({
  ^bb0(%carry: tensor<3xf32>, %row: tensor<3xf32>, %rest: tensor<3xf32>):
    %t = aten.call %carry, %row {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<3xf32>
    %u = aten.call %t, %rest {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<3xf32>
    aten.yield %u, %t
  }) : tensor<3xf32>, tensor<2x3xf32>
  %m = aten.map %x, %i {xs = 1} ({
  ^bb0(%row: tensor<3xf32>, %rest: tensor<3xf32>):
    %u = aten.call %row, %rest {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<3xf32>
    aten.yield %u
  }) : tensor<2x3xf32>
  %n = aten.while_loop %i {carried = 1} ({
  ^bb0(%a: tensor<3xf32>):
    %t = aten.call %a {overload = "sum.default", args = [arg0, none]} : tensor<f32>
    %c = aten.call %t {overload = "lt.Scalar", args = [arg0, 100.0]} : tensor<i1>
    aten.yield %c
  }, {
  ^bb0(%a: tensor<3xf32>):
    %b = aten.call %a {overload = "mul.Tensor", args = [arg0, 2.0]} : tensor<3xf32>
    aten.yield %b
  }) : tensor<3xf32>
  func.return %last, %all, %m, %n : tensor<3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<3xf32>"""


@pytest.mark.parametrize("predicate", [True, False])
def test_control_flow(predicate: bool):
    x, i = torch.randn(2, 3), torch.rand(3) + 0.5
    last, stacked, mapped, doubled = execute(
        CONTROL,
        [torch.tensor(predicate), x, i],
        """(%p: tensor<i1>, %x: tensor<2x3xf32>, %i: tensor<3xf32>)
    -> (tensor<3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<3xf32>)""",
    )
    rows, carry = [], i
    for row in x.sin() if predicate else x:
        rows.append(carry + row)
        carry = rows[-1] * i
    torch.testing.assert_close((last, stacked, mapped), (carry, torch.stack(rows), x * i))
    assert doubled.sum() >= 100 > doubled.sum() / 2


def test_errors_keep_eagers_type_and_name_the_op():
    with pytest.raises(RuntimeError, match="must match the size") as error:
        execute(
            """
  %y = aten.call %x, %z {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<3xf32>
  func.return %y : tensor<3xf32>""",
            [torch.zeros(3), torch.zeros(2)],
            "(%x: tensor<3xf32>, %z: tensor<2xf32>) -> tensor<3xf32>",
        )
    assert any("aten.call" in note for note in error.value.__notes__)
    with pytest.raises(IRError, match="its type says"):
        execute(
            """
  %y = aten.call %x {overload = "sum.default", args = [arg0, none]} : tensor<3xf32>
  func.return %y : tensor<3xf32>""",
            [torch.zeros(3)],
            "(%x: tensor<3xf32>) -> tensor<3xf32>",
        )
