"""The pass itself: tables, library calls, broken rules, regions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import CompileError, IRError
from isthmus.dialects import aten, autodiff, prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Signature
from isthmus.passes.decompose.table import DEFAULT, TABLES, Call, Refusal, Table, decomposition, load_rules
from isthmus.passes.pipelines import run_passes
from isthmus.runtime.interpret import run


def parsed(text: str, *passes: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, ir.ISTHMUS, aten.ATEN, prim.PRIM, autodiff.AUTODIFF):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    run_passes(context, module, passes)
    ir.verify(module)
    return module


def names(module: ModuleOp) -> list[str]:
    return [op.name for op in module.walk() if op.name.split(".")[0] in ("aten", "prim", "autodiff")]


def unary(overload: str, *rest: str) -> str:
    args = ", ".join(("arg0", *rest))
    return f"""
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {{
  %y = aten.call %x {{overload = "{overload}", args = [{args}]}} : tensor<4xf32>
  func.return %y : tensor<4xf32>
}}"""


@pytest.fixture
def table() -> Iterator[Table]:
    """A table of its own over the default one."""
    load_rules()
    TABLES["mine"] = Table(base=DEFAULT)
    yield TABLES["mine"]
    del TABLES["mine"]


@pytest.mark.row("P6")
def test_without_a_table_every_call_stays() -> None:
    module = parsed(unary("relu.default"), "decompose{table=none}")
    assert names(module) == ["prim.opaque"]


@pytest.mark.row("P6")
def test_a_backend_replaces_single_rules(table: Table) -> None:
    @decomposition("relu.default", table=table)
    def relu(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
        return e.max(x, e.zeros_like(x))

    assert names(parsed(unary("relu.default"), "decompose{table=mine}")) == ["prim.const", "prim.max"]
    assert names(parsed(unary("relu.default"), "decompose")) == ["prim.relu"]
    assert names(parsed(unary("cos.default"), "decompose{table=mine}")) == ["prim.cos"]


@pytest.mark.row("P2", "P4")
def test_what_has_no_rule_stays_one_call() -> None:
    module = parsed(unary("mylib::scale.default", "2.0"), "decompose", "decompose{to=elementary}")
    (op,) = [op for op in module.walk() if isinstance(op, prim.OpaqueOp)]
    assert (op.callee.data, op.args.data[1]) == ("mylib::scale.default", 2.0)
    assert ir.literal(op, "isthmus.reason") == "has no decomposition"


def test_a_refusal_says_why(table: Table) -> None:
    @decomposition("relu.default", table=table)
    def relu(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
        raise Refusal("not today")

    (op,) = [
        op for op in parsed(unary("relu.default"), "decompose{table=mine}").walk() if isinstance(op, prim.OpaqueOp)
    ]
    assert ir.literal(op, "isthmus.reason") == "not today"


def test_a_rule_that_gives_another_type_is_an_error(table: Table) -> None:
    @decomposition("relu.default", table=table)
    def relu(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
        return e.convert(x, "f64")

    with pytest.raises(CompileError, match=r"relu.default.*tensor<4xf64> where tensor<4xf32> is expected"):
        parsed(unary("relu.default"), "decompose{table=mine}")


def test_a_rule_that_makes_wrong_primitives_is_named(table: Table) -> None:
    @decomposition("relu.default", table=table)
    def relu(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
        return e.add(x, e.convert(x, "f64"))

    with pytest.raises(IRError, match=r"relu.default.*prim.add"):
        parsed(unary("relu.default"), "decompose{table=mine}")


@pytest.mark.parametrize("option", ["to=foo", "table=foo", "random=foo"])
def test_an_option_without_meaning_is_an_error(option: str) -> None:
    with pytest.raises(IRError, match="has no meaning"):
        parsed(unary("relu.default"), f"decompose{{{option}}}")


def test_in_place_overloads_on_values_have_the_plain_rule() -> None:
    text = unary("relu_.default").replace("args =", "updates = [0], args =")
    assert names(parsed(text, "decompose")) == ["prim.relu"]


def test_what_autograd_does_not_record_is_constant() -> None:
    text = unary("cos.default").replace("args =", "grad = false, args =")
    assert names(parsed(text, "decompose")) == ["prim.cos", "prim.stop_gradient"]


@pytest.mark.row("P3")
def test_the_target_set_is_closed_and_small() -> None:
    assert len(prim.PRIM_OPS) <= 250


COND = """
func.func @main(%p: tensor<i1>, %x: tensor<1000xf32>) -> (tensor<1000xf32>) {
  %y = aten.cond %p, %x ({
  ^bb0(%a: tensor<1000xf32>):
    %b = aten.call %a {overload = "dropout.default", args = [arg0, 0.5, true]} : tensor<1000xf32>
    aten.yield %b
  }, {
  ^bb0(%a: tensor<1000xf32>):
    aten.yield %a
  }) : tensor<1000xf32>
  func.return %y : tensor<1000xf32>
}"""

MAP = """
func.func @main(%x: tensor<3x1000xf32>) -> (tensor<3x1000xf32>) {
  %y = aten.map %x {xs = 1} ({
  ^bb0(%a: tensor<1000xf32>):
    %b = aten.call %a {overload = "dropout.default", args = [arg0, 0.5, true]} : tensor<1000xf32>
    aten.yield %b
  }) : tensor<3x1000xf32>
  func.return %y : tensor<3x1000xf32>
}"""

WHILE = """
func.func @main(%n: tensor<i64>, %x: tensor<1000xf32>) -> (tensor<i64>, tensor<1000xf32>) {
  %m, %y = aten.while_loop %n, %x {carried = 2} ({
  ^bb0(%i: tensor<i64>, %a: tensor<1000xf32>):
    %c = aten.call %i {overload = "gt.Scalar", args = [arg0, 0]} : tensor<i1>
    aten.yield %c
  }, {
  ^bb0(%i: tensor<i64>, %a: tensor<1000xf32>):
    %j = aten.call %i {overload = "sub.Tensor", args = [arg0, 1, 1]} : tensor<i64>
    %b = aten.call %a {overload = "dropout.default", args = [arg0, 0.5, true]} : tensor<1000xf32>
    aten.yield %j, %b
  }) : tensor<i64>, tensor<1000xf32>
  func.return %m, %y : tensor<i64>, tensor<1000xf32>
}"""

KEY = torch.tensor(77)
ONES = torch.ones(1000)


def key_is_last(module: ModuleOp) -> bool:
    return Signature.of(ir.function(module, "main")).arguments[-1].key


def test_a_branch_draws_from_a_key_of_its_own() -> None:
    module = parsed(COND, "decompose")
    assert key_is_last(module)
    func = ir.function(module, "main")
    (dropped,) = run(func, [torch.tensor(True), ONES, KEY])
    (kept,) = run(func, [torch.tensor(False), ONES, KEY])
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert torch.equal(kept, ONES)


def test_each_step_of_a_map_draws_other_numbers() -> None:
    module = parsed(MAP, "decompose")
    (y,) = run(ir.function(module, "main"), [torch.ones(3, 1000), KEY])
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(y[0], y[1]) and not torch.equal(y[1], y[2])


def test_each_turn_of_a_loop_draws_other_numbers() -> None:
    """Three dropouts keep an eighth; one mask three times over would keep a half."""
    module = parsed(WHILE, "decompose")
    _, y = run(ir.function(module, "main"), [torch.tensor(3), ONES, KEY])
    assert 0.07 < (y != 0).float().mean().item() < 0.18


CHECKPOINT = """
func.func @main(%x: tensor<1000xf32>) -> (tensor<1000xf32>) {
  %y = autodiff.checkpoint %x ({
  ^bb0(%a: tensor<1000xf32>):
    %c = aten.call %a {overload = "cos.default", args = [arg0], autodiff.recompute = "must_save"} : tensor<1000xf32>
    %b = aten.call %c {overload = "dropout.default", args = [arg0, 0.5, true]} : tensor<1000xf32>
    autodiff.yield %b
  }) : tensor<1000xf32>
  func.return %y : tensor<1000xf32>
}"""


def test_a_checkpoint_takes_its_key_as_an_operand_and_keeps_tags() -> None:
    module = parsed(CHECKPOINT, "decompose")
    (checkpoint,) = [op for op in module.walk() if isinstance(op, autodiff.CheckpointOp)]
    assert [str(v.type) for v in checkpoint.operands] == ["tensor<1000xf32>", "tensor<i64>"]
    (cos,) = [op for op in module.walk() if isinstance(op, prim.CosOp)]
    assert ir.literal(cos, "autodiff.recompute") == "must_save"
    assert not any(autodiff.RECOMPUTE in op.attributes for op in module.walk() if isinstance(op, prim.RngOp))
