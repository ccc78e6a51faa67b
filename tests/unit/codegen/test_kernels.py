"""Kernels as machine code against the reference interpreter: shapes, tails, dtypes, order, partitions."""

from __future__ import annotations

import pytest
import torch
from kernel_text import PARALLEL, ROW, function, tensor
from run_kernel import TORCH, compiled, same_bits

from isthmus import ir
from tests.unit.codegen.compared_kernels import SOFTMAX, check, element_of, softmax


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 33, 100, 1000])
@pytest.mark.parametrize("m", [0, 1, 17])
def test_levels_and_accumulations(m, n):
    text = softmax(m, n) if n else softmax(m, n).replace('kind = "max", dims', 'kind = "add", dims')
    check(text, [torch.randn(m, n), torch.randn(n)], vectors=(None, 0, 1))


@pytest.mark.row("I11")
@pytest.mark.parametrize("m,n", [(5, 7), (33, 100), (1, 1), (3, 2050)])
@pytest.mark.parametrize("vector", [None, 0, 1])
def test_symbolic_sizes_give_the_bits_of_static_ones(m, n, vector):
    x, b = torch.randn(m, n), torch.randn(n)
    static = compiled(softmax(m, n), vector=vector)(x, b)
    text = softmax("s0", "s1", more=', symbols = ["s1", "s0"]')
    assert same_bits(static, compiled(text, vector=vector)(x, b, calls=2))


@pytest.mark.parametrize("n,m", [(5, 7), (33, 65), (1, 1), (64, 8)])
def test_transposed_reads_and_writes(n, m):
    body = """
    %v = kernel.load {operand = 0, map = [d1, d0]} : f32
    %w = kernel.load {operand = 1, map = [d1]} : f32
    %u = kernel.load {operand = 2, map = []} : f32
    %a = prim.mul %v, %w : f32
    %c = prim.add %a, %u : f32
    kernel.store %c {result = 0, map = [d0, d1]}
    kernel.store %c {result = 1, map = [d1, d0]}"""
    text = function(
        [tensor([m, n]), tensor([m]), tensor([])],
        [tensor([n, m]), tensor([m, n])],
        [n, m],
        [PARALLEL, PARALLEL],
        body,
    )
    check(text, [torch.randn(m, n), torch.randn(m), torch.randn(())], vectors=(None, 1))


def test_strided_operands_and_results():
    body = """
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}"""
    text = function(
        [tensor(["s0", 5])],
        [tensor(["s0", 5])],
        ["s0", 5],
        [PARALLEL, PARALLEL],
        body,
        more=', symbols = ["s0"], layouts = [[1, <"s0">]]',
    )
    plain = '#isthmus.lit<[<"s0">, 5]>>)'
    text = text.replace(plain, plain[:-1] + " {isthmus.strides = #isthmus.lit<[10, 2]>})", 1)
    for n in (1, 8, 19):
        x = torch.randn(n, 10)[:, ::2]
        for vector in (None, 1):
            (y,) = compiled(text, vector=vector)(x)
            assert y.stride() == (1, n) and torch.equal(x, y)


@pytest.mark.parametrize("classes,vectors", [((PARALLEL, PARALLEL), (None, 1)), ((PARALLEL, ROW), (None, 0, 1))])
@pytest.mark.parametrize("n,m", [(5, 7), (33, 65), (1, 1), (64, 8)])
def test_gathers_predicates_flips_and_quotients(n, m, classes, vectors):
    body = f"""
    %i = kernel.load {{operand = 1, map = [d0]}} : i64
    %c = kernel.check %i {{bound = 50, dim = 0}} : i64
    %v = kernel.load %c {{operand = 0, map = [v0, d1]}} : f32
    %j = kernel.load {{operand = 2, map = [d1]}} : i64
    %v2 = kernel.load %c, %j {{operand = 0, map = [v0, v1]}} : f32
    %k = kernel.index {{map = [d1]}} : i64
    %half = prim.const {{value = {m // 2}}} : i64
    %p = prim.cmp %k, %half {{predicate = "lt"}} : i1
    %v3 = kernel.load %p {{operand = 0, map = [d0, d1 + {m // 2}], default = 2.5}} : f32
    %v4 = kernel.load {{operand = 0, map = [d0, {m - 1} - d1]}} : f32
    %v5 = kernel.load {{operand = 0, map = [(d0*{m} + d1) floordiv 3, (d0*{m} + d1) mod 3]}} : f32
    %a1 = prim.add %v, %v2 : f32
    %a2 = prim.add %a1, %v3 : f32
    %a3 = prim.mul %a2, %v4 : f32
    %a4 = prim.add %a3, %v5 : f32
    kernel.store %a4 {{result = 0, map = [d0, d1]}}"""
    rows, columns = max(50, n * m), max(m, 3)
    text = function(
        [tensor([rows, columns]), tensor([n], "i64"), tensor([m], "i64")], [tensor([n, m])], [n, m], classes, body
    )
    inputs = [torch.randn(rows, columns), torch.randint(0, 50, (n,)), torch.randint(0, m, (m,))]
    check(text, inputs, vectors)


@pytest.mark.parametrize("dtype", ["f32", "i64", "bf16", "u8"])
@pytest.mark.parametrize("n,m", [(5, 7), (33, 65), (4, 200)])
def test_argmax_takes_the_first_and_nan(n, m, dtype):
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {element_of(dtype)}
    %k = kernel.index {{map = [d1]}} : i64
    %m, %i = kernel.reduce %v, %k {{kind = "argmax", dims = [1]}} : {element_of(dtype)}, i64
    %m2, %i2 = kernel.reduce %v, %k {{kind = "argmin", dims = [1]}} : {element_of(dtype)}, i64
    kernel.store %i {{result = 0, map = [d0]}}
    kernel.store %m {{result = 1, map = [d0]}}
    kernel.store %i2 {{result = 2, map = [d0]}}"""
    text = function(
        [tensor([n, m], dtype)],
        [tensor([n], "i64"), tensor([n], dtype), tensor([n], "i64")],
        [n, m],
        [PARALLEL, ROW],
        body,
    )
    x = (torch.randn(n, m) * 3).round().abs().to(TORCH[dtype])
    if dtype == "f32":
        x[0, m // 2] = x[0, m - 1] = float("nan")
        x[n - 1] = -float("inf")
    check(text, [x], (None, 1, 0))


@pytest.mark.parametrize("reverse", ["true", "false"])
@pytest.mark.parametrize("kind", ["add", "max", "mul"])
@pytest.mark.parametrize("dtype", ["f32", "i64", "bf16"])
def test_cumulative(dtype, kind, reverse):
    n, m = 33, 65
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {dtype}
    %c = kernel.cumulative %v {{kind = "{kind}", dim = 1, reverse = {reverse}}} : {dtype}
    %d = prim.add %c, %v : {dtype}
    kernel.store %d {{result = 0, map = [d0, d1]}}"""
    text = function([tensor([n, m], dtype)], [tensor([n, m], dtype)], [n, m], [PARALLEL, ROW], body)
    check(text, [torch.randn(n, m).mul(2).to(TORCH[dtype])], (None, 1, 0))


@pytest.mark.parametrize("kind", ["add", "mul"])
def test_cumulative_complex(kind):
    n, m, t = 5, 19, "complex<f32>"
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {t}
    %c = kernel.cumulative %v {{kind = "{kind}", dim = 1, reverse = false}} : {t}
    kernel.store %c {{result = 0, map = [d0, d1]}}"""
    text = function([tensor([n, m], "c64")], [tensor([n, m], "c64")], [n, m], [PARALLEL, ROW], body)
    check(text, [torch.randn(n, m, dtype=torch.complex64)], (None, 0))


@pytest.mark.parametrize("kind", ["add", "set", "max", "mul"])
@pytest.mark.parametrize("vector", [None, 0, 1])
def test_scatter_in_order(kind, vector):
    n, m = 33, 9
    body = f"""
    %v = kernel.load {{operand = 1, map = [d1, d0]}} : f32
    %i = kernel.load {{operand = 2, map = [d1]}} : i64
    %c = kernel.check %i {{bound = 6, dim = 0}} : i64
    kernel.store %v, %c {{result = 0, map = [v0, d0], kind = "{kind}"}}"""
    text = function(
        [tensor([6, m]), tensor([n, m]), tensor([n], "i64")],
        [tensor([6, m])],
        [m, n],
        [PARALLEL, ROW],
        body,
        more=", initial = [0]",
    )
    inputs = [torch.randn(6, m), torch.randn(n, m), torch.randint(0, 6, (n,))]
    check(text, inputs, (vector,))


@pytest.mark.parametrize("residence", [None, "keep", "reload"])
@pytest.mark.parametrize("a,c,h", [(3, 4, 10), (2, 5, 49), (1, 3, 1), (4, 2, 64)])
def test_rows_of_two_dims_with_every_residence(a, c, h, residence):
    note = f' {{residence = "{residence}"}}' if residence else ""
    body = f"""
    %v = kernel.load {{operand = 0, map = [d1, d0, d2]}} : f32
    %s = kernel.reduce %v {{kind = "add", dims = [1, 2]}} : f32
    %n = prim.const {{value = {float(a * h)}}} : f32
    %mu = prim.div %s, %n : f32
    %d = prim.sub %v, %mu{note} : f32
    kernel.store %d {{result = 2, map = [d1, d0, d2]}}
    %d2 = prim.mul %d, %d : f32
    %s2 = kernel.reduce %d2 {{kind = "add", dims = [1, 2]}} : f32
    %r = prim.rsqrt %s2 : f32
    %y = prim.mul %d, %r : f32
    kernel.store %y {{result = 0, map = [d1, d0, d2]}}
    kernel.store %mu {{result = 1, map = [d0]}}"""
    text = function(
        [tensor([a, c, h])], [tensor([a, c, h]), tensor([c]), tensor([a, c, h])], [c, a, h], [PARALLEL, ROW, ROW], body
    )
    check(text, [torch.randn(a, c, h)], (None, 2, 0))


def test_residence_does_not_change_bits():
    texts = []
    for note in ("", ' {residence = "keep"}', ' {residence = "reload"}'):
        body = SOFTMAX.replace("%e = prim.exp %d :", f"%e = prim.exp %d{note} :").replace(
            "kernel.store %t {result = 0", "kernel.store %e {result = 0"
        )
        texts.append(
            function(
                [tensor([5, 100]), tensor([100])],
                [tensor([5, 100]), tensor([5]), tensor([3, 100]), tensor([3]), tensor([3])],
                [5, 100],
                [PARALLEL, ROW],
                body,
            )
        )
    x, b = torch.randn(5, 100), torch.randn(100)
    for vector in (None, 0, 1):
        plain, *others = (compiled(t, vector=vector)(x, b) for t in texts)
        assert all(same_bits(plain, o) for o in others)


def test_three_parallel_dims_cut_anywhere():
    body = """
    %v = kernel.load {operand = 0, map = [d2, d0, d1]} : f32
    %e = prim.exp %v : f32
    kernel.store %e {result = 0, map = [d0, d1, d2]}"""
    text = function([tensor([11, 3, 5])], [tensor([3, 5, 11])], [3, 5, 11], [PARALLEL] * 3, body, partitions=7)
    check(text, [torch.randn(11, 3, 5)], (None, 2), calls=(7, 2))


@pytest.mark.parametrize("n,m", [(3, 1000), (1, 1), (100, 7), (0, 3), (1, 20000)])
def test_sums_over_everything(n, m):
    body = """
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.accumulate %v {result = 0, kind = "add", map = []}
    kernel.accumulate %v {result = 1, kind = "min", map = []}"""
    text = function([tensor([n, m])], [tensor([5]), tensor([5])], [n, m], [PARALLEL] * 2, body, partitions=5)
    check(text, [torch.randn(n, m)], (None, 1), calls=(5,))


def test_a_long_sum_is_as_accurate_as_a_short_one():
    n = 1 << 20
    body = """
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %s = kernel.reduce %v {kind = "add", dims = [0]} : f32
    kernel.store %s {result = 0, map = []}"""
    x = torch.rand(n)
    (y,) = compiled(function([tensor([n])], [tensor([])], [n], [ROW], body), vector=0)(x)
    exact = x.double().sum()
    assert abs(y - exact) / exact < 3e-7


@pytest.mark.parametrize("dtype", [d for d in TORCH if d != "i1"])
@pytest.mark.parametrize("n", [1, 8, 21])
def test_every_dtype_loads_stores_and_sums(dtype, n):
    t = {"u8": "ui8", "c64": "complex<f32>", "c128": "complex<f64>"}.get(dtype, dtype)
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {t}
    %w = kernel.load {{operand = 0, map = [d0, {n - 1} - d1]}} : {t}
    %a = prim.add %v, %w : {t}
    %s = kernel.reduce %a {{kind = "add", dims = [1]}} : {t}
    kernel.store %a {{result = 0, map = [d0, d1]}}
    kernel.store %s {{result = 1, map = [d0]}}"""
    text = function([tensor([4, n], dtype)], [tensor([4, n], dtype), tensor([4], dtype)], [4, n], [PARALLEL, ROW], body)
    x = torch.randn(4, n, dtype=torch.complex64) if ir.is_complex(dtype) else torch.randn(4, n) * 5
    check(text, [x.to(TORCH[dtype])], (None, 1, 0))


@pytest.mark.parametrize("kind", ["and", "or"])
def test_booleans_are_bytes_in_memory(kind):
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : i1
    %n = prim.not %v : i1
    %s = kernel.reduce %v {{kind = "{kind}", dims = [1]}} : i1
    kernel.store %n {{result = 0, map = [d0, d1]}}
    kernel.store %s {{result = 1, map = [d0]}}"""
    text = function([tensor([9, 19], "i1")], [tensor([9, 19], "i1"), tensor([9], "i1")], [9, 19], [PARALLEL, ROW], body)
    x = torch.rand(9, 19) < 0.5
    x[0], x[1] = True, False
    check(text, [x], (None, 1, 0))


def test_random_numbers_are_those_of_the_interpreter():
    body = """
    %k = kernel.load {operand = 0, map = []} : i64
    %c = kernel.index {map = [d0 + 4294967290]} : i64
    %u = kernel.rng %k, %c {kind = "uniform"} : f32
    %d = kernel.rng %k, %c {kind = "uniform"} : f64
    %b = kernel.rng %k, %c {kind = "bits"} : i64
    kernel.store %u {result = 0, map = [d0]}
    kernel.store %d {result = 1, map = [d0]}
    kernel.store %b {result = 2, map = [d0]}"""
    text = function(
        [tensor([], "i64")], [tensor([100]), tensor([100], "f64"), tensor([100], "i64")], [100], [PARALLEL], body
    )
    for key in (0, 12345678901234567, -3):
        for vector in (None, 0):
            c = compiled(text, vector=vector)
            assert same_bits(c(torch.tensor(key)), c.interpreted(torch.tensor(key)))
