"""Branches and loops inside a native call."""

from __future__ import annotations

import pytest
import torch
from native_programs import Native
from torch import Tensor


def test_branch(native: Native) -> None:
    program = native("""
func.func @main(%p: tensor<i1>, %x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    attributes {isthmus.temporary_bytes = #isthmus.lit<64>} {
  %y, %z = prim.cond %p, %x {places = [["output", 0], ["output", 1]]} ({
  ^bb0(%a: tensor<3xf32>):
    %b = kernel.fused %a {sizes = [3], classes = ["parallel"], places = [["temporary", 0]]} ({
      %v = kernel.load {operand = 0, map = [d0]} : f32
      %w = prim.neg %v : f32
      kernel.store %w {result = 0, map = [d0]}
    }) : tensor<3xf32>
    prim.yield %b, %a
  }, {
  ^bb0(%a: tensor<3xf32>):
    prim.yield %a, %a
  }) : tensor<3xf32>, tensor<3xf32>
  func.return %y, %z : tensor<3xf32>, tensor<3xf32>
}
""")
    x = torch.randn(3)
    torch.testing.assert_close(program([torch.tensor(True), x]), [-x, x])
    torch.testing.assert_close(program([torch.tensor(False), x]), [x, x])


WHILE = """
func.func @main(%n: tensor<i64>, %x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<i64>, tensor<3xf32>, tensor<3xf32>)
    attributes {isthmus.temporary_bytes = #isthmus.lit<192>} {
  %m, %u, %v = prim.while %n, %x, %y {carried = 3, places = [["output", 0], ["output", 1], ["output", 2]]} ({
  ^bb0(%i: tensor<i64>, %a: tensor<3xf32>, %b: tensor<3xf32>):
    %c = kernel.fused %i {sizes = [], classes = [], places = [["temporary", 64]]} ({
      %j = kernel.load {operand = 0, map = []} : i64
      %z = prim.const {value = 0} : i64
      %t = prim.cmp %j, %z {predicate = "gt"} : i1
      kernel.store %t {result = 0, map = []}
    }) : tensor<i1>
    prim.yield %c
  }, {
  ^bb0(%i: tensor<i64>, %a: tensor<3xf32>, %b: tensor<3xf32>):
    %k = kernel.fused %i {sizes = [], classes = [], places = [["temporary", 0]]} ({
      %j = kernel.load {operand = 0, map = []} : i64
      %z = prim.const {value = 1} : i64
      %t = prim.sub %j, %z : i64
      kernel.store %t {result = 0, map = []}
    }) : tensor<i64>
    %d = kernel.extern %b {symbol = "aten.exp.default", args = [arg0], places = [["handle", 0]]} : tensor<3xf32>
    prim.yield %k, %b, %SECOND
  }) : tensor<i64>, tensor<3xf32>, tensor<3xf32>
  func.return %m, %u, %v : tensor<i64>, tensor<3xf32>, tensor<3xf32>
}
"""


@pytest.mark.parametrize("second", ["a", "d"])
def test_while_carries_values_also_crosswise(second: str, native: Native) -> None:
    """(i, a, b) -> (i - 1, b, a) or (i - 1, b, exp b) while i > 0; tensors made inside are freed in each turn."""
    program = native(WHILE.replace("%SECOND", f"%{second}"))
    x, y = torch.randn(3), -torch.rand(3)
    for n in (0, 1, 2, 3, 5):
        a, b = x, y
        for _ in range(n):
            a, b = b, (a if second == "a" else b.exp())
        torch.testing.assert_close(program([torch.tensor(n), x, y]), [torch.tensor(0), a, b])


def test_error_inside_a_loop(native: Native) -> None:
    count = [0]

    @torch.library.custom_op("isthmus_test::raise_third", mutates_args=())
    def raise_third(x: Tensor) -> Tensor:
        count[0] += 1
        if count[0] >= 3:
            raise KeyError("third")
        return x.clone()

    program = native(WHILE.replace("%SECOND", "%d").replace("aten.exp.default", "isthmus_test::raise_third.default"))
    for _ in range(3):
        count[0] = 0
        with pytest.raises(KeyError, match="third"):
            program([torch.tensor(5), torch.randn(3), torch.randn(3)])


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool, native: Native) -> None:
    program = native(f"""
func.func @main(%c: tensor<3xf32>, %x: tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>, %w: tensor<3xf32>)
    -> (tensor<3xf32>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>)
    attributes {{isthmus.temporary_bytes = #isthmus.lit<128>}} {{
  %d, %y = prim.scan %c, %x, %w {{carried = 1, scanned = 1, reverse = {str(reverse).lower()},
                                 places = [["output", 0], ["output", 1]]}} ({{
  ^bb0(%a: tensor<3xf32>, %t: tensor<3xf32>, %v: tensor<3xf32>):
    %e, %f = kernel.fused %a, %t, %v {{sizes = [3], classes = ["parallel"],
                                       places = [["temporary", 0], ["temporary", 64]]}} ({{
      %i = kernel.load {{operand = 0, map = [d0]}} : f32
      %j = kernel.load {{operand = 1, map = [d0]}} : f32
      %k = kernel.load {{operand = 2, map = [d0]}} : f32
      %m = prim.mul %i, %k : f32
      %n = prim.add %m, %j : f32
      %o = prim.sin %n : f32
      kernel.store %n {{result = 0, map = [d0]}}
      kernel.store %o {{result = 1, map = [d0]}}
    }}) : tensor<3xf32>, tensor<3xf32>
    prim.yield %e, %f
  }}) : tensor<3xf32>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
  func.return %d, %y : tensor<3xf32>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
}}
""")
    for steps in (4, 1, 0, 7):
        c, x, w = torch.randn(3), torch.randn(steps, 3), torch.randn(3)
        carry, want = c, torch.empty(steps, 3)
        for t in reversed(range(steps)) if reverse else range(steps):
            carry = carry * w + x[t]
            want[t] = carry.sin()
        torch.testing.assert_close(program([c, x, w]), [carry, want])
