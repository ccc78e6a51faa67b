"""The list of prices: what a program carries of it, who reads it, and that decisions follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from prim_programs import Program, apply
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import kernel, new_context, prim
from isthmus.ir import Literal
from isthmus.passes.analysis.prices import CPU, GPU, PRICES, Prices, listed


def program() -> ModuleOp:
    p = Program([torch.randn(512, 64), torch.randn(512, 64)])
    return p.module([p.e.exp(p.e.add(*p.args))])


def scheduled(prices: Prices) -> kernel.FusedOp:
    module = program()
    prices.attach(ir.function(module, "main"))
    made = apply(module, ["fuse", "schedule"])
    (op,) = [op for op in kernel.launches(ir.function(made, "main")) if isinstance(op, kernel.FusedOp)]
    return op


def test_the_default_leaves_no_trace() -> None:
    module = program()
    func = ir.function(module, "main")
    CPU.attach(func)
    assert PRICES not in func.attributes
    assert Prices.of(func) is CPU and Prices.of(func, "gpu") is GPU and Prices.of(None) is CPU


def test_a_program_carries_what_differs() -> None:
    module = program()
    func = ir.function(module, "main")
    prices = replace(CPU, launch_bytes=1 << 14, dear=3.0, functions=(("prim.exp", 7.0),))
    prices.attach(func)
    assert ir.literal(func, PRICES) == (("launch_bytes", 1 << 14), ("dear", 3.0), ("prim.exp", 7.0))
    assert Prices.of(func.body.block.first_op) == prices
    parsed = ir.function(Parser(new_context(), str(module)).parse_module(), "main")
    assert Prices.of(parsed) == prices
    CPU.attach(func)
    assert PRICES not in func.attributes


def test_a_target_has_its_own_defaults() -> None:
    module = program()
    func = ir.function(module, "main")
    replace(CPU, launch_bytes=1).attach(func)
    assert Prices.of(func, "gpu") == replace(GPU, launch_bytes=1)


def test_functions_are_priced_by_name() -> None:
    op = next(op for op in ir.function(program(), "main").body.block.ops if isinstance(op, prim.ExpOp))
    assert CPU.additions(op) == prim.ExpOp.COST
    assert replace(CPU, functions=(("prim.exp", 7.0),)).additions(op) == 7.0
    assert replace(CPU, functions=(("prim.log", 7.0),)).additions(op) == prim.ExpOp.COST


@pytest.mark.parametrize("name", ["lunch_bytes", "prim.exq", "kernel.load"])
def test_what_has_no_price_is_refused(name: str) -> None:
    with pytest.raises(IRError, match=f"there is no price '{name}'"):
        listed(((name, 1.0),))


def test_numbers_keep_their_kind() -> None:
    assert listed((("launch_bytes", 4096.0), ("dear", 4))) == replace(CPU, launch_bytes=4096, dear=4.0)
    assert isinstance(listed((("launch_bytes", 4096.0),)).launch_bytes, int)


def test_decisions_follow_the_list() -> None:
    """Three buffers of 128 KiB are cut by what a partition costs; a cheap body is unrolled twice as often."""
    assert [ir.literal(scheduled(CPU), name) for name in ("partitions", "unroll")] == [3, 1]
    cheap = replace(CPU, partition_bytes=1 << 14, functions=(("prim.exp", 2.0),))
    assert [ir.literal(scheduled(cheap), name) for name in ("partitions", "unroll")] == [24, 2]


def test_the_attribute_is_read_from_text() -> None:
    module = program()
    ir.function(module, "main").attributes[PRICES] = Literal.of((("partition_bytes", 1 << 14),))
    made = apply(module, ["fuse", "schedule"])
    (op,) = kernel.launches(ir.function(made, "main"))
    assert ir.literal(op, "partitions") == 24
