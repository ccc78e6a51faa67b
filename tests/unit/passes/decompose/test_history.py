"""What autograd says of a call stays true of its decomposition."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from isthmus import ir
from isthmus.dialects import aten, autodiff, prim
from isthmus.dialects.signature import Signature
from isthmus.passes.pipelines import run_passes

WANTED = "{autodiff.primal, autodiff.wants_gradient}"
PRIMAL = "{autodiff.primal}"


def parsed(body: str, role: str, *passes: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, ir.ISTHMUS, aten.ATEN, prim.PRIM, autodiff.AUTODIFF):
        context.load_dialect(dialect)
    text = f"func.func @main(%x: tensor<4xf32> {role}) -> (tensor<4xf32> {{autodiff.output}}) {{ {body} }}"
    module = Parser(context, text).parse_module()
    run_passes(context, module, passes)
    ir.verify(module)
    return module


def names(module: ModuleOp) -> list[str]:
    return [op.name for op in module.walk() if op.name.split(".")[0] in ("prim", "autodiff")]


def call(overload: str, *args: str, extra: str = "") -> str:
    listed = ", ".join(("arg0", *args))
    return f"""%y = aten.call %x {{overload = "{overload}", args = [{listed}]{extra}}} : tensor<4xf32>
    func.return %y : tensor<4xf32>"""


ZERO = call("zero_.default", extra=", updates = [0]")
ROUND = call("floor.default")
SILENT = call("cos.default", extra=", non_differentiable = [0]")


@pytest.mark.parametrize(
    ("body", "role", "expected"),
    [
        (ZERO, WANTED, ["prim.const", "autodiff.custom", "autodiff.yield", "autodiff.yield"]),
        (ZERO, PRIMAL, ["prim.const"]),
        (ROUND, WANTED, ["prim.floor"]),
        (SILENT, WANTED, ["prim.cos", "prim.stop_gradient"]),
        (call("zeros_like.default", "none", "none", "none", "none", "none", extra=", non_differentiable = [0]"), WANTED,
         ["prim.const"]),
    ],
)  # fmt: skip
def test_a_result_follows_from_its_operands_as_torch_says(body: str, role: str, expected: list[str]) -> None:
    assert names(parsed(body, role, "decompose")) == expected


@pytest.mark.parametrize(("body", "differentiable"), [(ZERO, True), (ROUND, True), (SILENT, False)])
def test_what_follows_has_a_tangent_and_its_operand_a_gradient_of_zeros(body: str, differentiable: bool) -> None:
    module = parsed(body, WANTED, "decompose", "differentiate", "simplify", "end-differentiation", "simplify")
    joint = ir.function(module, "joint")
    assert len(Signature.of(joint).tangents) == differentiable
    assert len(Signature.of(joint).gradients) == differentiable
    assert "autodiff.custom" not in names(module)


def test_a_position_that_is_no_result_is_refused() -> None:
    with pytest.raises(Exception, match="does not name results"):
        parsed(call("cos.default", extra=", non_differentiable = [1]"), WANTED)
