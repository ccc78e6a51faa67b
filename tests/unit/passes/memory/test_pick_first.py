"""Picking elements before the tensor that they are of is written over: the same numbers, fewer bytes."""

from __future__ import annotations

from typing import cast

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.dialects import kernel, new_context
from isthmus.passes.pipelines import run_passes
from isthmus.runtime.interpret import interpreted, load_tables

ROWS, CLASSES = 96, 80
PROGRAM = f"""
func.func @main(%z: tensor<{ROWS}x{CLASSES}xf32>, %t: tensor<{ROWS}xi64>) ->
    (tensor<f32>, tensor<{ROWS}x{CLASSES}xf32>) {{
  %e = kernel.fused %z {{sizes = [{ROWS}, {CLASSES}], classes = ["parallel", "parallel"]}} ({{
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %s = prim.sin %v : f32
    kernel.store %s {{result = 0, map = [d0, d1]}}
  }}) : tensor<{ROWS}x{CLASSES}xf32>
  %d, %m = kernel.fused %e {{sizes = [{ROWS}, {CLASSES}], classes = ["parallel", "row"]}} ({{
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %r = kernel.reduce %v {{kind = "max", dims = [1]}} : f32
    %s = prim.sub %v, %r : f32
    kernel.store %s {{result = 0, map = [d0, d1]}}
    kernel.store %r {{result = 1, map = [d0]}}
  }}) : tensor<{ROWS}x{CLASSES}xf32>, tensor<{ROWS}xf32>
  %l = kernel.fused %t, %e, %m {{sizes = [8, 12], classes = ["row", "row"]}} ({{
    %i = kernel.load {{operand = 0, map = [d0*12 + d1]}} : i64
    %c = kernel.check %i {{bound = {CLASSES}, dim = 1}} : i64
    %v = kernel.load %c {{operand = 1, map = [d0*12 + d1, v0]}} : f32
    %b = kernel.load {{operand = 2, map = [d0*12 + d1]}} : f32
    %x = prim.sub %b, %v : f32
    %q = kernel.reduce %x {{kind = "add", dims = [0, 1]}} : f32
    kernel.store %q {{result = 0, map = []}}
  }}) : tensor<f32>
  func.return %l, %d : tensor<f32>, tensor<{ROWS}x{CLASSES}xf32>
}}
"""


def module(*pipeline: str, text: str = PROGRAM) -> ModuleOp:
    parsed = Parser(new_context(), text).parse_module()
    run_passes(new_context(), parsed, pipeline)
    ir.verify(parsed)
    return parsed


def test_the_numbers_are_the_same() -> None:
    load_tables()
    z, t = torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))
    before, after = (ir.function(module(*p), "main") for p in ((), ("pick-first{least=64}",)))
    assert len(kernel.launches(after)) == len(kernel.launches(before)) + 1
    for wanted, found in zip(interpreted(before)([z, t]), interpreted(after)([z, t]), strict=True):
        torch.testing.assert_close(cast(torch.Tensor, found), cast(torch.Tensor, wanted))


def test_the_kernel_that_picked_reads_the_tensor_no_more() -> None:
    func = ir.function(module("pick-first{least=64}"), "main")
    first, picking, walking, loss = kernel.launches(func)
    assert isinstance(loss, kernel.FusedOp) and isinstance(picking, kernel.FusedOp)
    assert first.results[0] not in loss.inputs and picking.results[0] in loss.inputs
    assert not kernel.checks(loss) and len(kernel.checks(picking)) == 1
    assert walking.results[0].type == first.results[0].type


def test_small_tensors_stay_as_they_are() -> None:
    assert len(kernel.launches(ir.function(module("pick-first"), "main"))) == 3


BOTH = f"""
func.func @main(%z: tensor<{ROWS}x{CLASSES}xf32>, %t: tensor<{ROWS}xi64>) ->
    (tensor<{ROWS}xf32>, tensor<{ROWS}x{CLASSES}xf32>) {{
  %e = kernel.fused %z {{sizes = [{ROWS}, {CLASSES}], classes = ["parallel", "parallel"]}} ({{
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %s = prim.sin %v : f32
    kernel.store %s {{result = 0, map = [d0, d1]}}
  }}) : tensor<{ROWS}x{CLASSES}xf32>
  %l, %d = kernel.fused %t, %e {{sizes = [{ROWS}, {CLASSES}], classes = ["parallel", "row"]}} ({{
    %i = kernel.load {{operand = 0, map = [d0]}} : i64
    %c = kernel.check %i {{bound = {CLASSES}, dim = 1}} : i64
    %p = kernel.load %c {{operand = 1, map = [d0, v0]}} : f32
    %v = kernel.load {{operand = 1, map = [d0, d1]}} : f32
    %r = kernel.reduce %v {{kind = "max", dims = [1]}} : f32
    %q = prim.sub %r, %p : f32
    %s = prim.sub %v, %r : f32
    kernel.store %q {{result = 0, map = [d0]}}
    kernel.store %s {{result = 1, map = [d0, d1]}}
  }}) : tensor<{ROWS}xf32>, tensor<{ROWS}x{CLASSES}xf32>
  func.return %l, %d : tensor<{ROWS}xf32>, tensor<{ROWS}x{CLASSES}xf32>
}}
"""


def test_places_from_a_kernel_that_was_written_anew_are_not_known_before_it() -> None:
    """Its picks were pulled out, so it is another op than the one that stood there."""
    tensor = f"tensor<{ROWS}x{CLASSES}xf32>"
    text = BOTH.replace(f"(tensor<{ROWS}xf32>, {tensor})", f"(tensor<{ROWS}xf32>, {tensor}, tensor<{ROWS}xf32>)")
    text = text.replace("%l, %d =", "%l, %d, %j =").replace(
        "    kernel.store %s {result = 1, map = [d0, d1]}",
        "    kernel.store %s {result = 1, map = [d0, d1]}\n    kernel.store %c {result = 2, map = [d0]}",
    )
    text = text.replace(
        f"}}) : tensor<{ROWS}xf32>, {tensor}\n",
        f"""}}) : tensor<{ROWS}xf32>, {tensor}, tensor<{ROWS}xi64>
  %n = kernel.fused %j, %f {{sizes = [{ROWS}], classes = ["parallel"]}} ({{
    %i = kernel.load {{operand = 0, map = [d0]}} : i64
    %c = kernel.check %i {{bound = {CLASSES}, dim = 1}} : i64
    %p = kernel.load %c {{operand = 1, map = [d0, v0]}} : f32
    kernel.store %p {{result = 0, map = [d0]}}
  }}) : tensor<{ROWS}xf32>
""",
    )
    walks = f"""  %f = kernel.fused %z {{sizes = [{ROWS}, {CLASSES}], classes = ["parallel", "parallel"]}} ({{
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %s = prim.cos %v : f32
    kernel.store %s {{result = 0, map = [d0, d1]}}
  }}) : {tensor}
  %e = kernel.fused %f {{sizes"""
    text = text.replace("  %e = kernel.fused %z {sizes", walks)
    text = text.replace(
        f"func.return %l, %d : tensor<{ROWS}xf32>, {tensor}",
        f"func.return %l, %d, %n : tensor<{ROWS}xf32>, {tensor}, tensor<{ROWS}xf32>",
    )
    load_tables()
    z, t = torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))
    before, after = (ir.function(module(*p, text=text), "main") for p in ((), ("pick-first{least=64}",)))
    assert len(kernel.launches(after)) == len(kernel.launches(before)) + 1
    for wanted, found in zip(interpreted(before)([z, t]), interpreted(after)([z, t]), strict=True):
        torch.testing.assert_close(cast(torch.Tensor, found), cast(torch.Tensor, wanted))


def test_a_kernel_that_walks_and_picks_writes_over_what_it_walks() -> None:
    """Each result lies where what it is made from lay: no temporary memory."""
    load_tables()
    z, t = torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))
    before, after = (ir.function(module(*p, text=BOTH), "main") for p in ((), ("pick-first{least=64}",)))
    _, picking, walking = kernel.launches(after)
    assert isinstance(picking, kernel.FusedOp) and isinstance(walking, kernel.FusedOp)
    assert len(kernel.checks(picking)) == 1 and not kernel.checks(walking)
    for wanted, found in zip(interpreted(before)([z, t]), interpreted(after)([z, t]), strict=True):
        torch.testing.assert_close(cast(torch.Tensor, found), cast(torch.Tensor, wanted))
    for passes, held in (((), 4 * ROWS * CLASSES), (("pick-first{least=64}",), 0)):
        planned = ir.function(module(*passes, "schedule", "plan-memory", text=BOTH), "main")
        assert ir.literal(planned, "isthmus.temporary_bytes") == held
