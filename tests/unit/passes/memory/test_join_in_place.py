"""Concatenations of what other steps make: made in their parts of the result, or copied there."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

import isthmus
from isthmus import ir
from isthmus.codegen.cpu.read_program import read_program
from isthmus.dialects import kernel, new_context
from isthmus.dialects.program import Copy, LibraryCall
from isthmus.passes import pipelines
from isthmus.passes.pipelines import run_passes
from isthmus.runtime.interpret import interpreted, load_tables

BEGIN = """
func.func @main(%a: tensor<6x8xf32>, %b: tensor<6x8xf32>, %w: tensor<8x10xf32>) ->
    ({results}) {{
  %x = kernel.extern %a, %w {{symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]],
    ["contract_b", [0]]]}} : tensor<6x10xf32>
  %z = kernel.extern %b, %w {{symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]],
    ["contract_b", [0]]]}} : tensor<6x10xf32>
  %y = kernel.fused %x, %z {{sizes = [60], classes = ["parallel"]}} ({{
    %p = kernel.load {{operand = 0, map = [d0 floordiv 10, d0 mod 10]}} : f32
    %q = kernel.load {{operand = 1, map = [d0 floordiv 10, d0 mod 10]}} : f32
    kernel.store %{first} {{result = 0, map = [d0 floordiv 10, d0 mod 10]}}
    kernel.store %{second} {{result = 0, map = [d0 floordiv 10 + 6, d0 mod 10]}}
  }}) : tensor<12x10xf32>
"""


def module(text: str, *pipeline: str, first: str = "p", second: str = "q", results: str) -> ModuleOp:
    begin = BEGIN.format(first=first, second=second, results=results)
    parsed = Parser(new_context(), begin + text + "\n}").parse_module()
    run_passes(new_context(), parsed, pipeline)
    ir.verify(parsed)
    return parsed


JOIN = "join-in-place{least=16}"
WHOLE = ("func.return %y : tensor<12x10xf32>", "tensor<12x10xf32>")


def joins(found: ModuleOp) -> list[kernel.JoinOp]:
    return [op for op in found.walk() if isinstance(op, kernel.JoinOp)]


@pytest.mark.parametrize("first,second", ["pq", "qp"])
def test_the_numbers_are_the_same(first: str, second: str) -> None:
    load_tables()
    text, results = WHOLE
    given = [torch.randn(6, 8), torch.randn(6, 8), torch.randn(8, 10)]
    before, after = (module(text, *p, first=first, second=second, results=results) for p in ((), (JOIN,)))
    assert len(joins(after)) == 1
    (wanted,), (found,) = (interpreted(ir.function(m, "main"))(given) for m in (before, after))
    assert torch.equal(cast(torch.Tensor, found), cast(torch.Tensor, wanted))


def test_products_are_written_into_their_parts() -> None:
    text, results = WHOLE
    func = ir.function(module(text, JOIN, "schedule", "plan-memory", results=results), "main")
    assert ir.literal(func, "isthmus.temporary_bytes") == 0
    program = read_program(func)
    calls = [step for step in program.steps if isinstance(step, LibraryCall)]
    assert len(calls) == len(program.steps) == 2
    assert [(c.results[0].place.kind, c.results[0].offset) for c in calls] == [("output", 0), ("output", 60)]


def test_what_is_read_again_is_left_to_a_kernel() -> None:
    """The first product is also a result: it has memory of its own, and one kernel copies both."""
    text = "func.return %y, %x : tensor<12x10xf32>, tensor<6x10xf32>"
    assert not joins(module(text, JOIN, results="tensor<12x10xf32>, tensor<6x10xf32>"))


def test_small_ones_are_copied_by_one_kernel() -> None:
    text, results = WHOLE
    assert not joins(module(text, "join-in-place", results=results))


def test_a_part_that_is_a_result_too_keeps_its_place() -> None:
    text = BEGIN[: BEGIN.index("  %y =")].format(results="tensor<12x10xf32>, tensor<6x10xf32>")
    text += "%y = kernel.join %x, %z : tensor<12x10xf32>\n"
    text += "func.return %y, %x : tensor<12x10xf32>, tensor<6x10xf32>\n}"
    parsed = Parser(new_context(), text).parse_module()
    run_passes(new_context(), parsed, ("schedule", "plan-memory"))
    program = read_program(ir.function(parsed, "main"))
    (copy,) = [step for step in program.steps if isinstance(step, Copy)]
    assert (copy.source.place.kind, copy.source.place.at, copy.target.offset) == ("output", 1, 0)


def test_a_part_that_is_made_of_parts() -> None:
    """The kernel writes over the smaller tensor, so that all products lie in the larger one."""
    text = BEGIN[: BEGIN.index("  %y =")].format(results="tensor<18x10xf32>")
    text += """%u = kernel.extern %a, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []],
      ["contract_a", [1]], ["contract_b", [0]]]} : tensor<6x10xf32>
    %y = kernel.join %x, %z : tensor<12x10xf32>
    %t = kernel.fused %y {sizes = [120], classes = ["parallel"]} ({
      %v = kernel.load {operand = 0, map = [d0 floordiv 10, d0 mod 10]} : f32
      %s = prim.sin %v : f32
      kernel.store %s {result = 0, map = [d0 floordiv 10, d0 mod 10]}
    }) : tensor<12x10xf32>
    %r = kernel.join %u, %t : tensor<18x10xf32>
    func.return %r : tensor<18x10xf32>
    }"""
    parsed = Parser(new_context(), text).parse_module()
    run_passes(new_context(), parsed, ("schedule", "plan-memory"))
    program = read_program(ir.function(parsed, "main"))
    assert not any(isinstance(step, Copy) for step in program.steps)
    calls = [step for step in program.steps if isinstance(step, LibraryCall)]
    assert [(c.results[0].place.kind, c.results[0].offset) for c in calls] == [
        ("output", 60),
        ("output", 120),
        ("output", 0),
    ]
    (walk,) = program.kernel_calls
    assert [(b.place.kind, b.offset) for b in walk.buffers] == [("output", 60)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [48, 7])
def test_machine_code(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int) -> None:
    chosen = tuple("join-in-place{least=64}" if text == "join-in-place" else text for text in pipelines.KERNELS)
    monkeypatch.setattr(pipelines, "KERNELS", chosen)

    def function(a, b, w, v):
        c = torch.cat([a @ w, b @ v])
        return c, torch.tanh(c), torch.cat([b @ w, a @ v]).sum(0)

    given = [torch.randn(*shape, dtype=dtype) for shape in ((rows, 20), (rows, 20), (20, 33), (20, 33))]
    compiled = isthmus.compile(function, options={"cache": False})
    for _ in range(2):
        for found, wanted in zip(compiled(*given), function(*given), strict=True):
            torch.testing.assert_close(found, wanted)
    assert isthmus.last_call_native()
