"""Kernels that can fail, and code for other machines."""

from __future__ import annotations

import re

import pytest
import torch
from kernel_text import PARALLEL, function, tensor
from run_kernel import TORCH, compiled, parse

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.targets import assembly, named_target
from isthmus.dialects import kernel as k
from isthmus.runtime import cpu
from tests.unit.codegen.compared_kernels import check, element_of, softmax


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("vector", [None, 0])
def test_errors_are_reported_and_the_kernel_goes_on(vector):
    body = """
    %i = kernel.load {operand = 1, map = [d0]} : i64
    %c = kernel.check %i {bound = 4, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0]} : f32
    kernel.store %v {result = 0, map = [d0]}"""
    text = function([tensor([4]), tensor([13], "i64")], [tensor([13])], [13], [PARALLEL], body)
    c = compiled(text, vector=vector)
    index = torch.arange(13) % 4
    c(torch.randn(4), index)
    assert c.error == 0
    for bad in (-2, 4, 1 << 40):
        index[11] = bad
        c(torch.randn(4), index)
        assert c.error == (1 << 56) | (bad & ((1 << 56) - 1))


@pytest.mark.parametrize("vector", [None, 0])
@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
def test_integer_division_by_zero_does_not_trap(dtype, vector):
    t = element_of(dtype)
    body = f"""
    %a = kernel.load {{operand = 0, map = [d0]}} : {t}
    %b = kernel.load {{operand = 1, map = [d0]}} : {t}
    %q = prim.div %a, %b : {t}
    %r = prim.rem %a, %b : {t}
    kernel.store %q {{result = 0, map = [d0]}}
    kernel.store %r {{result = 1, map = [d0]}}"""
    text = function([tensor([11], dtype)] * 2, [tensor([11], dtype)] * 2, [11], [PARALLEL], body)
    c = compiled(text, vector=vector)
    a, b = torch.arange(11).to(TORCH[dtype]), torch.full((11,), 3).to(TORCH[dtype])
    if dtype != "u8":  # the quotient does not fit and wraps
        a[3], b[3] = torch.iinfo(a.dtype).min, -1
    q, r = c(a, b)
    assert c.error == 0 and (dtype == "u8" or (q[3] == a[3] and r[3] == 0))
    b[5] = 0
    q, r = c(a, b)
    assert c.error == 127 << 56 and q[5] == 0 and r[5] == 0


def test_baseline_and_avx512_code_is_valid():
    for name, register in (("x86-64", "xmm"), ("x86-64-v3", "ymm"), ("x86-64-v4", "zmm")):
        (func,) = ir.functions(parse(softmax(17, 100, vector=1))).values()
        module = Module()
        emit_kernel(module, k.launches(func)[0], named_target(name))
        assert register in assembly(str(module), named_target(name))


def test_a_single_lane_of_16_bits_writes_16_bits():
    """LLVM would write 32 for a masked store whose constant mask has one lane: beyond the end of a tensor."""
    body = """
    %v = kernel.load {operand = 0, map = [d0]} : bf16
    %w = prim.add %v, %v : bf16
    kernel.store %w {result = 0, map = [d0]}"""
    text = function([tensor([17], "bf16")], [tensor([17], "bf16")], [17], [PARALLEL], body, vector=0, partitions=1)
    (func,) = ir.functions(parse(text)).values()
    module = Module(vector_bits=512)
    emit_kernel(module, k.launches(func)[0], named_target("x86-64-v4"))
    code = assembly(str(module), named_target("x86-64-v4"))
    assert "pextrw" in code and not re.search(r"movl\s+%\w+, \d*\(", code)


def test_baseline_target_runs():
    check(softmax(5, 33), [torch.randn(5, 33), torch.randn(33)], (None, 0, 1), target=cpu.baseline_target())
