"""Which of torch's libraries are loaded behind a compilation."""

from __future__ import annotations

import threading

import pytest
import torch
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.read_program import read_program
from isthmus.dialects import new_context
from isthmus.runtime import device_libraries, library
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


def test_where_no_thread_can_be_started_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_libraries, "is_capturing", lambda device: False)
    monkeypatch.setattr(device_libraries, "_begun", set[tuple[int, str]]())
    monkeypatch.setattr(threading.Thread, "start", refuses)
    assert load_behind(torch.device("cuda", 0), PRODUCTS) is None
