"""Which of torch's libraries are loaded behind a compilation."""

from __future__ import annotations

import torch
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.read_program import read_program
from isthmus.dialects import new_context
from isthmus.runtime import library
from isthmus.runtime.device_libraries import PRODUCTS, libraries_of, load_behind

PRODUCT = """
func.func @main(%a: tensor<4x6xf32>, %b: tensor<6x5xf32>) -> tensor<4x5xf32> {
  %y = kernel.extern %a, %b {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]],
    ["contract_b", [0]]], views = [none, none, none], cost = 240.0, places = [["output", 0]]} : tensor<4x5xf32>
  func.return %y : tensor<4x5xf32>
}
"""


def test_a_program_says_what_it_calls() -> None:
    func = ir.function(Parser(new_context(), PRODUCT).parse_module(), "main")
    assert libraries_of(read_program(func, schema_of=library.schema_of)) == (PRODUCTS,)


def test_a_cpu_has_nothing_to_load() -> None:
    assert load_behind(torch.device("cpu"), PRODUCTS) is None
