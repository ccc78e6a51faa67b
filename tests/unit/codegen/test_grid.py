"""The kernels that the CPU's code is tested with, as GPU code: scheduled, simulated, against the interpreter."""

from __future__ import annotations

import pytest
import test_kernels
import torch
from compared_kernels import TOLERANCE
from kernel_text import PARALLEL, ROW, function, tensor
from run_grid import on_grid
from run_kernel import TORCH, results_before
from test_kernels import (  # noqa: F401
    test_argmax_takes_the_first_and_nan,
    test_booleans_are_bytes_in_memory,
    test_cumulative,
    test_cumulative_complex,
    test_every_dtype_loads_stores_and_sums,
    test_gathers_predicates_flips_and_quotients,
    test_levels_and_accumulations,
    test_rows_of_two_dims_with_every_residence,
    test_scatter_in_order,
    test_sums_over_everything,
    test_three_parallel_dims_cut_anywhere,
    test_transposed_reads_and_writes,
)

from isthmus import ir
from isthmus.codegen import nvptx
from isthmus.diagnostics import IRError
from isthmus.passes.memory.schedule_gpu import schedule


def check(text, inputs, vectors=(), calls=(), tolerance=None, target=None):
    """Compare a scheduled kernel with the interpreter."""
    c = on_grid(text)
    schedule(c.kernel)
    for result, wanted in zip(c(*inputs), c.interpreted(*inputs), strict=True):
        if result.dtype.is_floating_point or result.dtype.is_complex:
            t = tolerance or TOLERANCE.get(result.dtype, 1e-5)
            torch.testing.assert_close(result, wanted, rtol=t, atol=t, equal_nan=True)
        else:
            assert torch.equal(result, wanted)


@pytest.fixture(autouse=True)
def on_the_grid(monkeypatch):
    monkeypatch.setattr(test_kernels, "check", check)
    torch.manual_seed(0)


def compare(text, *inputs, aligned=True, residence=None, **attributes):
    """A scheduled kernel, with some decisions replaced, against the interpreter."""
    c = on_grid(text)
    schedule(c.kernel)
    for op in c.kernel.block.ops:
        if residence and "residence" in op.attributes:
            op.attributes["residence"] = ir.Literal.of(residence)
    for name, value in attributes.items():
        c.kernel.properties[name] = ir.Literal.of(value)
    for result, wanted in zip(c(*inputs, aligned=aligned), c.interpreted(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    return c


PIECES = """
    %v = kernel.load {operand = 0, map = [d0, d1*32 + d2*8 + d3]} : f32
    %s = kernel.reduce %v {kind = "add", dims = [1, 2, 3]} : f32
    %a = prim.sub %v, %s : f32
    kernel.store %a {result = 0, map = [d0, d1*32 + d2*8 + d3]}
    kernel.accumulate %v {result = 1, kind = "add", map = [d1*32 + d2*8 + d3]}
    kernel.accumulate %s {result = 2, kind = "max", map = []}"""


@pytest.mark.parametrize("residence", ["register", "recompute"])
def test_short_rows_of_several_dims_are_shared_out_as_one(residence):
    text = function(
        [tensor([13, 96])],
        [tensor([13, 96]), tensor([4, 96]), tensor([4])],
        [13, 3, 4, 8],
        [PARALLEL, ROW, ROW, ROW],
        PIECES,
        partitions=4,
    )
    c = compare(text, torch.randn(13, 96), residence=residence)
    assert c.kernel.flat is not None and c.kernel.properties["group"].data == 32


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("length", [5, 100, 700])
def test_sums_at_outer_positions_of_a_row(flat, length):
    """A sum whose place the threads' own dim does not name: they are combined at each place."""
    body = """
    %v = kernel.load {operand = 0, map = [d0, d1, d2]} : f32
    kernel.accumulate %v {result = 0, kind = "add", map = [d1]}
    %s = kernel.reduce %v {kind = "add", dims = [1, 2]} : f32
    kernel.store %s {result = 1, map = [d0]}"""
    results = [tensor([2, 4]), tensor([9])]
    text = function([tensor([9, 4, length])], results, [9, 4, length], [PARALLEL, ROW, ROW], body, partitions=2)
    if flat:  # several threads would write one place
        with pytest.raises(IRError, match="one thread for each partition"):
            compare(text, torch.randn(9, 4, length), flat=True)
    else:
        compare(text, torch.randn(9, 4, length))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i1"])
def test_rows_in_shared_memory(dtype):
    n = 520
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {dtype}
    %f = prim.convert %v : f32
    %s = kernel.reduce %f {{kind = "add", dims = [1]}} : f32
    %d = prim.sub %f, %s : f32
    %m = kernel.reduce %d {{kind = "max", dims = [1]}} : f32
    %q = prim.mul %d, %m : f32
    kernel.store %q {{result = 0, map = [d0, d1]}}"""
    text = function([tensor([5, n], dtype)], [tensor([5, n])], [5, n], [PARALLEL, ROW], body)
    x = torch.rand(5, n).round(decimals=1).to(TORCH[dtype])
    c = compare(text, x, residence="shared", threads=64, group=64, unroll=2)
    launches = nvptx.llvm_text([c.kernel], "sm_90")[1]
    assert [launch.shared_bytes for launch in launches.values()] == [-(-n * x.element_size() // 16) * 16]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype,n", [("f32", 520), ("bf16", 1608)])
def test_rows_are_copied_to_shared_memory(dtype, n, aligned):
    """As they lie, 16 bytes at once where addresses allow it; the last step is not whole."""
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1], residence = "copied"}} : {dtype}
    %w = kernel.load {{operand = 1, map = [d1], residence = "copied"}} : {dtype}
    %f = prim.convert %v : f32
    %s = kernel.reduce %f {{kind = "add", dims = [1]}} : f32
    %d = prim.sub %f, %s : f32
    %m = kernel.reduce %d {{kind = "max", dims = [1]}} : f32
    %q = prim.mul %d, %m : f32
    %g = prim.convert %w : f32
    %r = prim.mul %q, %g : f32
    kernel.store %r {{result = 0, map = [d0, d1]}}"""
    operands = [tensor([5, n], dtype), tensor([n], dtype)]
    c = on_grid(function(operands, [tensor([5, n])], [5, n], [PARALLEL, ROW], body))
    for name, value in dict(vector=1, width=4 if dtype == "f32" else 8, threads=64, group=64, unroll=1).items():
        c.kernel.properties[name] = ir.Literal.of(value)
    c.kernel.properties |= {"partitions": ir.Literal.of(5), "chunk": ir.Literal.of(1)}
    given = torch.rand(5, n).to(TORCH[dtype]), torch.rand(n).to(TORCH[dtype])
    (result,), (wanted,) = c(*given, aligned=aligned), c.interpreted(*given)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    assert ("cp.async.cg" in nvptx.llvm_text([c.kernel], "sm_90", aligned=aligned)[0]) == aligned


@pytest.mark.row("I11")
@pytest.mark.parametrize("m,n", [(5, 8), (33, 100), (1, 1), (40, 2050)])
def test_symbolic_sizes(m, n):
    text = test_kernels.softmax("s0", "s1", more=', symbols = ["s1", "s0"]')
    compare(text, torch.randn(m, n), torch.randn(n))


def test_buffers_may_begin_anywhere():
    assert compare(test_kernels.softmax(17, 100), torch.randn(17, 100), torch.randn(100), aligned=False)
    body = "%v = kernel.load {operand = 0, map = [d0]} : f32\nkernel.store %v {result = 0, map = [d0]}"
    text = function([tensor([1000])], [tensor([1000])], [1000], [PARALLEL], body)
    kernel = compare(text, torch.randn(1000), aligned=False).kernel
    for aligned, alignment in ((True, "align 16"), (False, "align 4")):
        written, launches = nvptx.llvm_text([kernel], "sm_90", aligned=aligned)
        assert f"load <4 x float>, ptr %v13, {alignment}" in written.replace("%v12,", "%v13,")
        assert {launch.alignment for launch in launches.values()} == {16 if aligned else 1}


@pytest.mark.parametrize("bad", [None, -2, 4, 1 << 40])
def test_an_index_out_of_bounds_is_reported(bad):
    body = """
    %i = kernel.load {operand = 1, map = [d0]} : i64
    %c = kernel.check %i {bound = 4, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0]} : f32
    kernel.store %v {result = 0, map = [d0]}"""
    c = on_grid(function([tensor([4]), tensor([1300], "i64")], [tensor([1300])], [1300], [PARALLEL], body))
    schedule(c.kernel)
    x, index = torch.randn(4), torch.arange(1300) % 4
    if bad is not None:
        index[1100] = bad
    (result,) = c(x, index)
    assert c.error == (0 if bad is None else (1 << 56) | (bad & ((1 << 56) - 1)))
    assert torch.equal(result, x[torch.where((index < 0) | (index > 3), 0, index)])


@pytest.mark.parametrize("group", [1, 2, 8, 32, 64, 256])
def test_groups_of_every_size_give_the_same_rows(group):
    text = test_kernels.softmax(19, 24)
    compare(
        text, torch.randn(19, 24), torch.randn(24), threads=max(group, 32), group=group, width=4 if group > 1 else 1
    )


def test_a_schedule_that_does_not_fit_is_refused():
    text = test_kernels.softmax(19, 24)
    for wrong in (dict(width=5), dict(group=48), dict(threads=40, group=40), dict(chunk=2)):
        with pytest.raises(IRError):
            compare(text, torch.randn(19, 24), torch.randn(24), **wrong)


@pytest.mark.parametrize("kind", ["add", "set", "max"])
@pytest.mark.parametrize("n,m", [(100, 24), (300, 7), (300, 128), (65, 256)])
def test_a_long_scatter_has_owners(kind, n, m):
    """Every thread of a point writes the places that are its own, in order: what comes last stays."""
    body = f"""
    %i = kernel.load {{operand = 2, map = [d1]}} : i64
    %c = kernel.check %i {{bound = 6, dim = 0}} : i64
    %v = kernel.load {{operand = 1, map = [d1, d0]}} : f32
    kernel.store %v, %c {{result = 0, map = [v0, d0], kind = "{kind}"}}"""
    operands = [tensor([6, m]), tensor([n, m]), tensor([n], "i64")]
    text = function(operands, [tensor([6, m])], [m, n], [PARALLEL, ROW], body, more=", initial = [0]")
    c = compare(text, torch.randn(6, m), torch.randn(n, m), torch.randint(0, 6, (n,)))
    assert c.kernel.properties["owners"].data == 64
    assert ("vote.ballot" in nvptx.llvm_text([c.kernel], "sm_90a")[0]) == (m % 128 == 0)


def backward_rows(dtype, dims, partitions):
    """What the backward of a norm does: two sums over a row of two operands, its gradient, and sums over all rows."""
    rank, last = len(dims), f"d{len(dims) - 1}"
    at, points = (", ".join(f"d{n}" for n in range(r)) for r in (rank, rank - 1))
    body = f"""
    %x = kernel.load {{operand = 0, map = [{at}]}} : {dtype}
    %g = kernel.load {{operand = 1, map = [{at}]}} : {dtype}
    %w = kernel.load {{operand = 2, map = [{last}]}} : {dtype}
    %m = kernel.load {{operand = 3, map = [{points}]}} : {dtype}
    %d = prim.sub %x, %m : {dtype}
    %gw = prim.mul %g, %w : {dtype}
    %gd = prim.mul %gw, %d : {dtype}
    %s1 = kernel.reduce %gw {{kind = "add", dims = [{rank - 1}]}} : {dtype}
    %s2 = kernel.reduce %gd {{kind = "max", dims = [{rank - 1}]}} : {dtype}
    %a = prim.sub %gw, %s1 : {dtype}
    %b = prim.mul %d, %s2 : {dtype}
    %dx = prim.add %a, %b : {dtype}
    %f = prim.convert %gd : f32
    kernel.store %dx {{result = 0, map = [{at}]}}
    kernel.accumulate %f {{result = 1, kind = "add", map = [{last}]}}"""
    operands = [tensor(dims, dtype)] * 2 + [tensor(dims[-1:], dtype), tensor(dims[:-1], dtype)]
    results = [tensor(dims, dtype), tensor([partitions, dims[-1]])]
    return function(operands, results, dims, [PARALLEL] * (rank - 1) + [ROW], body, partitions=partitions)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "dims,threads", [([23, 512], 0), ([5, 5, 512], 64), ([8, 256], 0), ([9, 768], 0), ([8, 2304], 0)]
)
def test_the_next_row_is_read_ahead(dtype, dims, threads):
    given = [torch.randn(s).to(TORCH[dtype]) for s in (dims, dims, dims[-1:], dims[:-1])]
    other = dict(threads=threads, group=threads) if threads else {}
    c = on_grid(backward_rows(dtype, dims, 4))
    schedule(c.kernel)
    assert c.kernel.ahead is not None
    for name, value in other.items():
        c.kernel.properties[name] = ir.Literal.of(value)
    tolerance = 1e-4 if dtype == "f32" else 2e-2
    for result, wanted in zip(c(*given), c.interpreted(*given), strict=True):
        torch.testing.assert_close(result, wanted, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("threads", [96, 160, 224, 288, 480, 736])
def test_any_number_of_warps_combines_what_it_has(threads):
    shapes = [5, 4 * threads], [5, 4 * threads], [4 * threads], [5]
    text = backward_rows("f32", shapes[0], 2)
    c = compare(text, *(torch.randn(shape) for shape in shapes), threads=threads, group=threads, width=4)
    assert c.kernel.properties["group"].data == threads


def test_rows_are_shared_out_without_a_rest():
    c = on_grid(backward_rows("bf16", [23, 2304], 4))
    schedule(c.kernel)
    assert (c.kernel.properties["group"].data, c.kernel.ahead is not None) == (288, True)


def test_rows_that_are_not_whole_are_not_read_ahead():
    c = on_grid(backward_rows("f32", [23, 500], 4))
    schedule(c.kernel)
    assert c.kernel.ahead is None
    c.kernel.properties["ahead"] = ir.Literal.of(True)
    with pytest.raises(IRError, match="read ahead"):
        c(*(torch.randn(s) for s in ([23, 500], [23, 500], [500], [23])))


def test_a_loop_over_rows_has_one_barrier():
    c = on_grid(backward_rows("f32", [23, 2048], 4))
    schedule(c.kernel)
    assert nvptx.llvm_text([c.kernel], "sm_90")[0].count("call void @llvm.nvvm.barrier") == 1


def test_half_precision_takes_the_coarse_exponential():
    body = """
    %v = kernel.load {operand = 0, map = [d0, d1]} : bf16
    %x = prim.convert %v : f32
    %r = kernel.reduce %x {kind = "max", dims = [1]} : f32
    %d = prim.sub %x, %r : f32
    %e = prim.exp %d : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %q = prim.div %e, %s : f32
    %h = prim.convert %q : bf16
    kernel.store %h {result = 0, map = [d0, d1]}"""
    text = function([tensor([7, 600], "bf16")], [tensor([7, 600], "bf16")], [7, 600], [PARALLEL, ROW], body)
    c, x = on_grid(text), (30 * torch.randn(7, 600)).bfloat16()
    schedule(c.kernel)
    (result,) = c(x)
    assert "ftz" in nvptx.llvm_text([c.kernel], "sm_90")[0]
    exact = torch.softmax(x.double(), -1)
    assert ((result.double() - exact).abs() <= exact * 2.0**-8 + 1e-37).all()


@pytest.mark.parametrize("predicate", ["eq", "ne"])
@pytest.mark.parametrize("n", [20, 6])
def test_lanes_know_whether_they_are_at_a_place(predicate, n):
    """However far away the place is: 2^32 + 1 is not 1."""
    body = f"""
    %t = kernel.load {{operand = 0, map = [d0]}} : i64
    %i = kernel.index {{map = [d1 + 3]}} : i64
    %c = prim.cmp %t, %i {{predicate = "{predicate}"}} : i1
    kernel.store %c {{result = 0, map = [d0, d1]}}"""
    text = function([tensor([9], "i64")], [tensor([9, n], "i1")], [9, n], [PARALLEL, ROW], body)
    places = torch.tensor([3, 4, 22, 2, 0, -1, 5 + (1 << 32), 3 - (1 << 32), (1 << 63) - 1])
    c = on_grid(text)
    schedule(c.kernel)
    (result,) = c(places)
    assert torch.equal(result, (places[:, None] == torch.arange(n) + 3) == (predicate == "eq"))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
@pytest.mark.parametrize("points,rows", [([64], 256), ([2, 48], 37), ([32], 70)])
def test_warps_share_out_the_rows_of_columns(dtype, points, rows):
    """What a block's sums over points are combined with: neighbours are read together, 32 columns a block."""
    at = ", ".join(f"d{n}" for n in range(len(points)))
    row = len(points)
    body = f"""
    %v = kernel.load {{operand = 0, map = [d{row}, {at}]}} : {dtype}
    %w = kernel.load {{operand = 1, map = [d{row}, {at}]}} : {dtype}
    %s = kernel.reduce %v {{kind = "add", dims = [{row}]}} : {dtype}
    %m = kernel.reduce %w {{kind = "max", dims = [{row}]}} : {dtype}
    %a = prim.add %s, %m : {dtype}
    kernel.store %a {{result = 0, map = [{at}]}}
    kernel.store %m {{result = 1, map = [{at}]}}"""
    shape = [rows, *points]
    text = function(
        [tensor(shape, dtype)] * 2, [tensor(points, dtype)] * 2, [*points, rows], [PARALLEL] * row + [ROW], body
    )
    c = on_grid(text)
    schedule(c.kernel)
    assert c.kernel.sharers is not None
    given = [(10 * torch.randn(shape)).to(TORCH[dtype]) for _ in range(2)]
    for result, wanted in zip(c(*given), c.interpreted(*given), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-4)
    kernel = c.kernel
    kernel.properties["chunk"] = ir.Literal.of(64)
    with pytest.raises(IRError, match="sharers"):
        nvptx.llvm_text([kernel], "sm_90")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan")])
def test_what_is_multiplied_by_one_is_left_alone(dtype, factor):
    """The results then are what lay in their places: here what results begin with."""
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0]}} : {dtype}
    %s = kernel.load {{operand = 1, map = []}} : {dtype}
    %m = prim.mul %v, %s : {dtype}
    kernel.store %m {{result = 0, map = [d0]}}"""
    text = function([tensor([4096], dtype), tensor([], dtype)], [tensor([4096], dtype)], [4096], [PARALLEL], body)
    c = on_grid(text)
    c.kernel.properties["unless_one"] = ir.Literal.of(1)
    schedule(c.kernel)
    x, f = torch.randn(4096).to(TORCH[dtype]), torch.tensor(factor, dtype=TORCH[dtype])
    (before,), (result,) = results_before(c.kernel, [x, f], {}), c(x, f)
    wanted = before if factor == 1.0 else x * f
    assert torch.equal(result.nan_to_num(), wanted.nan_to_num()) and torch.equal(result.isnan(), wanted.isnan())
