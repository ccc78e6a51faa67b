"""Which index checks need not be waited for."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.nvptx.rechecks import rechecks
from isthmus.dialects import kernel, new_context

GATHER = """
  %y = kernel.fused %x, %i {sizes = [4, 6], classes = ["parallel", "parallel"], places = [["output", 0]]} ({
    %n = kernel.load {operand = 1, map = [%MAP]} : i64
    %c = kernel.check %n {bound = 5, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<4x6xf32>
"""
AGAIN = """
  %z = kernel.fused %x, %j {sizes = [24], classes = ["parallel"], places = [["output", 1]]} ({
    %n = kernel.load {operand = 1, map = [d0]} : i64
    %s = prim.const {value = 1} : i64
    %m = prim.%OP %n, %s : i64
    %c = kernel.check %%WHAT {bound = %BOUND, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<24xf32>
"""


def found(first: str = "d0, d1", what: str = "n", bound: int = 5, op: str = "add", source: str = "%i") -> list[bool]:
    second = AGAIN.replace("%WHAT", what).replace("%BOUND", str(bound)).replace("%OP", op)
    text = f"""
func.func @main(%x: tensor<5xf32>, %i: tensor<4x6xi64>, %k: tensor<4x6xi64>) -> (tensor<4x6xf32>, tensor<24xf32>) {{
  {GATHER.replace("%MAP", first)}
  %j = kernel.reshape {source} : tensor<24xi64>
  {second}
  func.return %y, %z : tensor<4x6xf32>, tensor<24xf32>
}}
"""
    func = ir.function(Parser(new_context(), text).parse_module(), "main")
    kernels = [op for op in kernel.launches(func) if isinstance(op, kernel.LoopNest)]
    again = rechecks([*kernels])
    return [k in again for k in kernels]


def test_the_same_numbers_against_the_same_bound() -> None:
    assert found() == [False, True]


@pytest.mark.parametrize(
    "other",
    [
        {"what": "m"},  # other numbers
        {"bound": 4},
        {"source": "%k"},
        {"first": "d0, 0"},  # the first looks at some only
        {"op": "div"},  # it divides
    ],
    ids=str,
)
def test_anything_else_is_waited_for(other: dict[str, str]) -> None:
    assert found(**other) == [False, False]  # type: ignore[arg-type]
