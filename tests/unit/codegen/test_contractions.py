"""Contractions as machine code against the interpreter and float64: layouts, edges, what is computed around them."""

from __future__ import annotations

import re

import pytest
import torch
from contraction_text import around, contraction, product
from kernel_text import tensor
from run_kernel import TORCH, compiled, parse, same_bits

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.targets import assembly, named_target
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.runtime import cpu

EDGES = (1, 3, 13, 14, 15, 31, 33, 100)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def factors(m, n, depth, layout="NN", dtype="f32"):
    a, b = torch.randn(m, depth, dtype=TORCH[dtype]), torch.randn(depth, n, dtype=TORCH[dtype])
    return [a if layout[0] == "N" else a.t().contiguous(), b if layout[1] == "N" else b.t().contiguous()]


def truth(inputs, layout):
    a, b = (x.double() if way == "N" else x.double().t() for x, way in zip(inputs, layout, strict=True))
    return a @ b


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_layout_at_ragged_sizes(layout, dtype):
    epsilon = torch.finfo(TORCH[dtype]).eps
    for m, n, depth in [*zip(EDGES, EDGES[3:] + EDGES[:3], EDGES[5:] + EDGES[:5], strict=True), (24, 64, 48)]:
        inputs = factors(m, n, depth, layout, dtype)
        (y,) = compiled(product(m, n, depth, layout, dtype))(*inputs)
        bound = 4 * epsilon * depth**0.5 * (1 + truth(inputs, layout).abs().max())
        assert (y.double() - truth(inputs, layout)).abs().max() <= bound, (m, n, depth)


@pytest.mark.parametrize("m,n,depth", [(1, 1, 1), (13, 33, 40), (37, 70, 16), (64, 31, 100)])
def test_prologues_and_epilogues(m, n, depth):
    inputs = [torch.randn(*s) for s in ((m, depth), (m,), (n, depth), (depth,), (n,), (m, n))]
    c = compiled(around(m, n, depth, grid=(1, 3, 2)))
    for result, wanted in zip(c(*inputs), c.interpreted(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 4, 1), (1, 2, 3)])
def test_neither_the_cut_nor_who_runs_it_changes_a_bit(grid):
    m, n, depth = 61, 130, 70
    inputs = [torch.randn(*s) for s in ((m, depth), (m,), (n, depth), (depth,), (n,), (m, n))]
    whole = compiled(around(m, n, depth))(*inputs)
    c = compiled(around(m, n, depth, grid=grid))
    results = c(*inputs)
    assert same_bits(whole[:2], results[:2])
    assert same_bits(results, c(*inputs, calls=grid[1] * grid[2]))


@pytest.mark.parametrize("m,n,depth", [(5, 70, 33), (1, 1, 1), (40, 16, 0)])
def test_symbolic_sizes_give_the_bits_of_static_ones(m, n, depth):
    inputs = factors(m, n, depth)
    symbolic = product("s0", "s1", "s2", more=', symbols = ["s0", "s1", "s2"]')
    assert same_bits(compiled(product(m, n, depth))(*inputs), compiled(symbolic)(*inputs))


def test_without_terms_the_product_is_zero_and_the_epilogue_runs():
    inputs = [torch.randn(*s) for s in ((7, 0), (7,), (9, 0), (0,), (9,), (7, 9))]
    z, o, _ = compiled(around(7, 9, 0))(*inputs)
    assert torch.equal(z, inputs[4].expand(7, 9))
    torch.testing.assert_close(o, torch.erf(z) + inputs[5])


@pytest.mark.parametrize("m,n", [(0, 5), (5, 0)])
def test_without_points_nothing_is_touched(m, n):
    (y,) = compiled(product(m, n, 8))(*factors(m, n, 8))
    assert y.shape == (m, n)


@pytest.mark.parametrize("m,n,depth", [(13, 33, 20), (6, 16, 5), (5, 15, 17), (12, 40, 33)])
def test_nothing_outside_the_result_is_written(m, n, depth):
    inputs = factors(m, n, depth)
    (y,) = compiled(product(m, n, depth, more=f", layouts = [[{n + 3}, 1]]"))(*inputs)
    assert y.stride() == (n + 3, 1) and not y.isnan().any()
    assert y.as_strided((m - 1, 3), (n + 3, 1), n).isnan().all()


def test_not_a_number_stays_in_its_row_and_column():
    a, b = factors(13, 33, 20)
    a[4, 3], b[2, 30], a[7, 0] = float("nan"), float("inf"), float("inf")
    (y,) = compiled(product(13, 33, 20))(a, b)
    assert torch.equal(y.isfinite(), (a @ b).isfinite())
    assert torch.equal(y.isnan(), (a @ b).isnan())


@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 1, 1), (2, 2, 1)])
def test_batches_with_strides_of_their_own(grid):
    body = """
    %a = kernel.load {operand = 0, map = [d0, d2, d1, d4]} : f32
    %b = kernel.load {operand = 1, map = [d0, d1, d3, d4]} : f32
    %y = kernel.dot %a, %b {dims = [4]} : f32
    kernel.store %y {result = 0, map = [d0, d1, d2, d3]}"""
    types = [tensor([2, 17, 3, 9]), tensor([2, 3, 19, 9])]
    text = contraction(types, [tensor([2, 3, 17, 19])], [2, 3, 17, 19, 9], body, grid=grid)
    a, b = torch.randn(2, 17, 3, 9), torch.randn(2, 3, 19, 9)
    (y,) = compiled(text)(a, b)
    torch.testing.assert_close(y, a.transpose(1, 2) @ b.transpose(-1, -2), rtol=1e-4, atol=1e-5)


HEADS = """
    %a = kernel.load {operand = 0, map = [d0 floordiv 5, d2 floordiv 16, d0 mod 5, d2 mod 16]} : f32
    %second = kernel.index {map = [d2 floordiv 16]} : i64
    %one = prim.const {value = 1} : i64
    %odd = prim.cmp %second, %one {predicate = "eq"} : i1
    %n = prim.neg %a : f32
    %s = prim.select %odd, %n, %a : f32
    %b = kernel.load {operand = 1, map = [d1, d2]} : f32
    %y = kernel.dot %s, %b {dims = [2]} : f32
    kernel.store %y {result = 0, map = [d0 floordiv 5, d1 floordiv 16, d0 mod 5, d1 mod 16]}"""


def test_heads_side_by_side_are_read_and_written_as_vectors():
    text = contraction([tensor([3, 2, 5, 16]), tensor([48, 32])], [tensor([3, 3, 5, 16])], [15, 48, 32], HEADS)
    x, w = torch.randn(3, 2, 5, 16), torch.randn(48, 32)
    c = compiled(text)
    (y,) = c(x, w)
    signs = torch.tensor([1.0, -1.0])[:, None, None]
    flat = (x * signs).transpose(1, 2).reshape(15, 32)
    wanted = (flat @ w.t()).reshape(3, 5, 3, 16).transpose(1, 2)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    assert "gather" not in c.text and "scatter" not in c.text
    assert "sdiv <" not in c.text and "udiv <" not in c.text


def test_a_machine_without_fused_multiply_add():
    inputs = factors(20, 40, 30)
    (y,) = compiled(product(20, 40, 30, tile=(6, 2, 4)), cpu.baseline_target())(*inputs)
    torch.testing.assert_close(y.double(), truth(inputs, "NN"), rtol=1e-4, atol=1e-4)


def lying(factors):
    return ", direct = [" + ", ".join(f'"{name}"' for name in factors) + "]"


DIRECT = [
    ("NT", ("a", "b"), (3, 4, 8)),
    ("NT", ("a", "b"), (1, 8, 8)),
    ("NT", ("a",), (6, 2, 8)),
    ("NN", ("a", "b"), (6, 2, 8)),
    ("NN", ("b",), (6, 2, 8)),
    ("TN", ("b",), (6, 2, 8)),
]


@pytest.mark.parametrize("layout,direct,tile", DIRECT)
@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 2, 2)])
def test_factors_that_are_read_as_they_lie(layout, direct, tile, grid):
    block = (tile[0] * 2, 16, 32)
    for m, n, depth in ((13, 48, 40), (6, 16, 2), (1, 32, 17), (24, 64, 33), (5, 32, 2)):
        inputs = factors(m, n, depth, layout)
        more = f"{lying(direct)}, layouts = [[{n + 3}, 1]]"
        c = compiled(product(m, n, depth, layout, tile=tile, block=block, grid=grid, more=more))
        (y,) = c(*inputs)
        bound = 4e-7 * max(depth, 1) ** 0.5 * (1 + truth(inputs, layout).abs().max())
        assert (y.double() - truth(inputs, layout)).abs().max() <= bound, (m, n, depth)
        assert y.as_strided((m - 1, 3), (n + 3, 1), n).isnan().all()


@pytest.mark.parametrize("m,n,depth", [(32, 10, 128), (7, 5, 31), (1, 3, 2)])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_vectors_along_k_at_ragged_sizes(m, n, depth, dtype):
    inputs = factors(m, n, depth, "NT", dtype)
    tile = (3, 4, 8 if dtype == "f32" else 4)
    text = product(m, n, depth, "NT", dtype, tile=tile, block=(6, 64, 8), more=', direct = ["a", "b"]')
    (y,) = compiled(text)(*inputs)
    bound = 4 * torch.finfo(TORCH[dtype]).eps * depth**0.5 * (1 + truth(inputs, "NT").abs().max())
    assert (y.double() - truth(inputs, "NT")).abs().max() <= bound


def test_the_bits_of_lying_factors_are_those_of_packed_ones():
    inputs = factors(29, 48, 70)
    packed, lying = (compiled(product(29, 48, 70, more=more)) for more in ("", ', direct = ["a", "b"]'))
    assert same_bits(packed(*inputs), lying(*inputs))


def test_an_epilogue_after_vectors_along_k():
    m, n, depth = 13, 10, 40
    body = """
    %a = kernel.load {operand = 0, map = [d0, d2]} : f32
    %b = kernel.load {operand = 1, map = [d1, d2]} : f32
    %y = kernel.dot %a, %b {dims = [2]} : f32
    %c = kernel.load {operand = 2, map = [d1]} : f32
    %z = prim.add %y, %c : f32
    %r = prim.relu %z : f32
    kernel.store %r {result = 0, map = [d0, d1]}
    kernel.accumulate %z {result = 1, map = [d1], kind = "add"}"""
    types = [tensor([m, depth]), tensor([n, depth]), tensor([n])]
    more = {"tile": (3, 4, 8), "block": (6, 16, 8), "grid": (1, 2, 1), "more": ', direct = ["a", "b"]'}
    c = compiled(contraction(types, [tensor([m, n]), tensor([2, n])], [m, n, depth], body, **more))
    inputs = [torch.randn(m, depth), torch.randn(n, depth), torch.randn(n)]
    for result, wanted in zip(c(*inputs), c.interpreted(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout,direct", [("TN", ("a",)), ("NT", ("b",)), ("TT", ("b",))])
def test_a_factor_that_cannot_be_read_as_it_lies_is_refused(layout, direct):
    with pytest.raises(UnsupportedError, match="as it lies"):
        compiled(product(12, 32, 16, layout, more=lying(direct)))


LEVELS = [
    ("x86-64-v3", "NN", (6, 2, 8), "ymm", ()),
    ("x86-64-v3", "NN", (6, 2, 8), "ymm", ("a", "b")),
    ("x86-64-v3", "NT", (3, 4, 8), "ymm", ("a", "b")),
    ("x86-64-v4", "NN", (14, 2, 16), "zmm", ()),
    ("x86-64-v4", "NN", (6, 4, 16), "zmm", ("a", "b")),
    ("x86-64-v4", "NT", (6, 4, 16), "zmm", ("a", "b")),
]


@pytest.mark.parametrize("level,layout,tile,register,direct", LEVELS)
def test_a_tile_stays_in_registers(level, layout, tile, register, direct):
    target = named_target(level)
    rows = tile[0]
    text = product(64, 64, 64, layout, tile=tile, block=(rows * 4, 16, 64), more=lying(direct) if direct else "")
    (func,) = ir.functions(parse(text)).values()
    (kernel,) = k.launches(func)
    module = Module(vector_bits=target.vector_bits)
    emit_kernel(module, kernel, target, "kernel")
    text = assembly(str(module), target)
    inner = re.split(r"\ncontract_(?:block|dots)_\w+:", text)[2].split("retq")[0]
    loops = [b for b in re.split(r"\n\.LBB\d+_\d+:", inner) if b.count("vfmadd231ps") >= rows * tile[1]]
    assert loops and register in loops[0]
    assert not re.search(rf"%{register}\d+, -?\d*\(%rsp\)", loops[0]), "a sum left its register"


def test_other_dtypes_and_blocks_that_are_no_tiles_are_refused():
    for text in (product(8, 8, 8, dtype="i32"), product(8, 8, 8, block=(13, 16, 32))):
        with pytest.raises(UnsupportedError):
            compiled(text)
