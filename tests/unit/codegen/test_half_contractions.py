"""Contractions in half precision: sums in f32, rounded once, on any machine and on one that multiplies pairs."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import pytest
import torch
from contraction_text import contraction, product
from kernel_text import tensor
from run_kernel import TORCH, compiled, parse, same_bits

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.targets import assembly, named_target
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.runtime import cpu
from isthmus.runtime.support import external_symbols

PAIRS = "llvm.x86.avx512bf16.dpbf16ps.512"
TILE = {"tile": (14, 2, 16), "block": (28, 16, 64)}
"""Of vectors of 512 bits."""


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def factors(m, n, depth, layout, dtype):
    a, b = torch.randn(m, depth).to(TORCH[dtype]), torch.randn(depth, n).to(TORCH[dtype])
    return [a if layout[0] == "N" else a.t().contiguous(), b if layout[1] == "N" else b.t().contiguous()]


def truth(inputs, layout):
    a, b = (x.double() if way == "N" else x.double().t() for x, way in zip(inputs, layout, strict=True))
    return a @ b


def assert_rounded_once(y, exact):
    """Half a unit of the format, and what sums in f32 lose."""
    finfo = torch.finfo(y.dtype)
    bound = exact.abs() * finfo.eps / 2 + 1e-5 * (1 + exact.abs().max())
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_layout_at_ragged_sizes(layout, dtype):
    for m, n, depth in [(1, 1, 1), (13, 33, 40), (24, 64, 48), (100, 31, 77), (5, 70, 33)]:
        inputs = factors(m, n, depth, layout, dtype)
        (y,) = compiled(product(m, n, depth, layout, dtype))(*inputs)
        assert_rounded_once(y, truth(inputs, layout))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_neither_the_cut_nor_who_runs_it_changes_a_bit(dtype):
    inputs = factors(61, 130, 70, "NT", dtype)
    whole = compiled(product(61, 130, 70, "NT", dtype))(*inputs)
    for grid in ((1, 4, 1), (1, 2, 3)):
        c = compiled(product(61, 130, 70, "NT", dtype, grid=grid))
        assert same_bits(whole, c(*inputs))
        assert same_bits(whole, c(*inputs, calls=grid[1] * grid[2]))


def test_a_sum_is_f32_and_is_rounded_before_the_epilogue():
    body = """
    %a = kernel.load {operand = 0, map = [d0, d2]} : bf16
    %b = kernel.load {operand = 1, map = [d2, d1]} : bf16
    %y = kernel.dot %a, %b {dims = [2]} : bf16
    %c = kernel.load {operand = 2, map = [d1]} : bf16
    %s = prim.add %y, %c : bf16
    kernel.store %s {result = 0, map = [d0, d1]}
    %w = prim.convert %s : f32
    kernel.accumulate %w {result = 1, map = [d1], kind = "add"}"""
    types = [tensor([3, 600], "bf16"), tensor([600, 2], "bf16"), tensor([2], "bf16")]
    text = contraction(types, [tensor([3, 2], "bf16"), tensor([2, 2])], [3, 2, 600], body, block=(12, 256, 32))
    ones = torch.ones(3, 600, dtype=torch.bfloat16), torch.ones(600, 2, dtype=torch.bfloat16)
    y, sums = compiled(text)(*ones, torch.full((2,), -600.0, dtype=torch.bfloat16))
    assert torch.equal(y, torch.zeros(3, 2, dtype=torch.bfloat16))  # 600 is a bf16, 257 is not
    assert torch.equal(sums, torch.zeros(2, 2))


def test_a_factor_that_is_converted_on_the_way_in():
    body = """
    %a = kernel.load {operand = 0, map = [d0, d2]} : f32
    %h = prim.convert %a : bf16
    %b = kernel.load {operand = 1, map = [d1, d2]} : bf16
    %y = kernel.dot %h, %b {dims = [2]} : bf16
    kernel.store %y {result = 0, map = [d0, d1]}"""
    text = contraction([tensor([13, 37]), tensor([33, 37], "bf16")], [tensor([13, 33], "bf16")], [13, 33, 37], body)
    a, b = torch.randn(13, 37), torch.randn(33, 37).bfloat16()
    (y,) = compiled(text)(a, b)
    assert_rounded_once(y, truth([a.bfloat16(), b], "NT"))


def test_factors_that_lie_are_refused():
    with pytest.raises(UnsupportedError):
        compiled(product(8, 16, 8, dtype="bf16", more=', direct = ["a"]'))


# ---- pairs of steps in one instruction


def text_for(level, m, n, depth, layout):
    """A product in bf16 as LLVM text; its function is `kernel`."""
    target = named_target(level)
    (func,) = ir.functions(parse(product(m, n, depth, layout, "bf16", **TILE))).values()
    (kernel,) = k.launches(func)
    module = Module(vector_bits=target.vector_bits)
    emit_kernel(module, kernel, target, "kernel")
    return str(module)


def test_a_machine_that_multiplies_pairs_does():
    other, level = "x86-64-v4", "znver4"
    code = assembly(text_for(level, 64, 64, 64, "NT"), named_target(level))
    loops = [b for b in re.split(r"\n\.LBB\d+_\d+:", code) if b.count("vdpbf16ps") >= 28]
    assert loops and "vfmadd" not in loops[0]
    assert not re.search(r"%zmm\d+, -?\d*\(%rsp\)", loops[0]), "a sum left its register"
    assert "vdpbf16ps" not in assembly(text_for(other, 64, 64, 64, "NT"), named_target(other))


EMULATED = """
define internal <16 x float> @pairs(<16 x float> %s, <32 x bfloat> %x, <32 x bfloat> %y) {
  %xi = bitcast <32 x bfloat> %x to <16 x i32>
  %yi = bitcast <32 x bfloat> %y to <16 x i32>
  %xl = shl <16 x i32> %xi, splat (i32 16)
  %yl = shl <16 x i32> %yi, splat (i32 16)
  %xh = and <16 x i32> %xi, splat (i32 -65536)
  %yh = and <16 x i32> %yi, splat (i32 -65536)
  %a = bitcast <16 x i32> %xl to <16 x float>
  %b = bitcast <16 x i32> %yl to <16 x float>
  %c = bitcast <16 x i32> %xh to <16 x float>
  %d = bitcast <16 x i32> %yh to <16 x float>
  %t = call <16 x float> @llvm.fma.v16f32(<16 x float> %c, <16 x float> %d, <16 x float> %s)
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %t)
  ret <16 x float> %r
}
"""
"""The instruction as its manual has it, but for denormals: the odd step's product is added first."""


def with_emulated_pairs(m, n, depth, layout):
    """The function for a machine that multiplies pairs, for this one."""
    text = text_for("znver4", m, n, depth, layout)
    lines = [line for line in text.splitlines() if not (line.startswith("declare") and PAIRS in line)]
    source = "\n".join(lines).replace(f"@{PAIRS}", "@pairs") + EMULATED
    if "declare <16 x float> @llvm.fma.v16f32" not in source:
        source += "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)\n"
    return cpu.load([cpu.compile_text(source, replace(cpu.host_target(), vector_bits=512))], external_symbols())


def in_pairs(a, b, block):
    """The sums of `a` times `b` in the order of pairs, in f32 (products of bf16 are exact there)."""
    a, b = a.float(), b.float()
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], block):
        part = torch.zeros_like(total)
        end = min(start + block, a.shape[1])
        for even in range(start, end, 2):
            for step in (even + 1, even):
                if step < end:
                    part = part + a[:, step : step + 1] * b[step : step + 1]
        total = total + part if start else part
    return total.bfloat16()


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("m,n,depth", [(1, 1, 1), (31, 70, 37), (45, 33, 64), (45, 70, 33)])
def test_pairs_are_added_in_their_order(m, n, depth, layout):
    inputs = factors(m, n, depth, layout, "bf16")
    loaded = with_emulated_pairs(m, n, depth, layout)
    y = torch.full((m, n), float("nan"), dtype=torch.bfloat16)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(loaded["kernel"])
    buffers = (ctypes.c_void_p * 3)(*[t.data_ptr() for t in (*inputs, y)])
    run(buffers, (ctypes.c_int64 * 1)(), 0, 1)
    a, b = (x if way == "N" else x.t() for x, way in zip(inputs, layout, strict=True))
    assert torch.equal(y, in_pairs(a, b, TILE["block"][1]))
