"""The native call: what it reads, allocates, refuses; sizes; regions of threads; errors."""

from __future__ import annotations

import gc
import threading
import timeit
import weakref

import pytest
import torch
from native_programs import FACTS, Native
from torch import Tensor

from isthmus.diagnostics import IRError, UnsupportedError
from isthmus.dialects.native_facts import NativeFacts
from isthmus.runtime.layout import native_facts


def test_this_torch_has_the_fast_call() -> None:
    assert native_facts().layout is not None and native_facts().excluded_keys != 0


CHAIN = """
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>, %b: tensor<4xf32>) -> (tensor<6x4xf32>, tensor<6xf32>)
    attributes {isthmus.temporary_bytes = #isthmus.lit<128>} {
  %s = kernel.fused %x, %y {sizes = [6, 4], classes = ["parallel", "parallel"], places = [["temporary", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0, d1]} : f32
    %c = kernel.load {operand = 1, map = [d0, d1]} : f32
    %d = prim.add %a, %c : f32
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<6x4xf32>
  %t, %u = kernel.fused %s, %b {sizes = [6, 4], classes = ["parallel", "row"],
                                places = [["output", 0], ["output", 1]]} ({
    %a = kernel.load {operand = 0, map = [d0, d1]} : f32
    %c = kernel.load {operand = 1, map = [d1]} : f32
    %d = prim.mul %a, %c : f32
    %r = kernel.reduce %d {kind = "add", dims = [1]} : f32
    kernel.store %d {result = 0, map = [d0, d1]}
    kernel.store %r {result = 1, map = [d0]}
  }) : tensor<6x4xf32>, tensor<6xf32>
  func.return %t, %u : tensor<6x4xf32>, tensor<6xf32>
}
"""


def chain(x: Tensor, y: Tensor, b: Tensor) -> list[Tensor]:
    t = (x + y) * b
    return [t, t.sum(1)]


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 4), torch.randn(6, 4), torch.randn(4)]


@FACTS
def test_results_are_fresh_tensors(facts: NativeFacts, native: Native) -> None:
    program = native(CHAIN, facts=facts)
    x = inputs()
    first, second = program(x), program(x)
    torch.testing.assert_close(first, chain(*x))
    assert torch.equal(first[0], second[0])
    storages = {t.untyped_storage().data_ptr() for t in [*x, *first, *second]}
    assert len(storages) == 7 and first[0].is_contiguous()
    assert program.native and program.fresh


@FACTS
def test_arguments_in_another_layout_are_laid_out(facts: NativeFacts, native: Native) -> None:
    program = native(CHAIN, facts=facts)
    x, y, b = inputs()
    odd = torch.stack([x, x], -1)[..., 0]
    transposed = y.t().contiguous().t()
    torch.testing.assert_close(program([odd, transposed, b]), chain(x, y, b))
    offset = torch.cat([torch.zeros(3), b])[3:]
    torch.testing.assert_close(program([x, y, offset]), chain(x, y, b))
    torch.testing.assert_close(program([torch.nn.Parameter(x), y, b]), chain(x, y, b))
    torch.testing.assert_close(program([x._neg_view(), y, b]), chain(-x, y, b))


@FACTS
def test_arguments_that_do_not_fit_are_refused_by_name(facts: NativeFacts, native: Native) -> None:
    program = native(
        CHAIN.replace("%b: tensor<4xf32>", '%b: tensor<4xf32> {isthmus.source = "self.bias"}'), facts=facts
    )
    x, y, b = inputs()
    for bad in (b.double(), torch.randn(5), torch.randn(4, 1), b.to_sparse(), torch.randn(4, device="meta")):
        with pytest.raises(IRError, match=r"self\.bias"):
            program([x, y, bad])
    with pytest.raises(IRError, match="takes 3 arguments, not 2"):
        program([x, y])
    with pytest.raises(IRError, match=r"self\.bias, not a int"):
        program([x, y, 3])


def test_subclasses_are_looked_at_closer(native: Native) -> None:
    class Marked(Tensor):
        pass

    x, y, b = inputs()
    torch.testing.assert_close(native(CHAIN)([x.as_subclass(Marked), y, b]), chain(x, y, b))


@pytest.mark.row("R9")
def test_inference_mode(native: Native) -> None:
    program = native(CHAIN)
    with torch.inference_mode():
        x = inputs()
        results = program(x)
        assert results[0].is_inference()
    torch.testing.assert_close(results, chain(*x))


def test_results_hold_no_memory_of_the_program(native: Native) -> None:
    program = native(CHAIN)
    results = program(inputs())
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None
    torch.testing.assert_close(results, chain(*inputs()))


def test_threads_call_at_once(native: Native) -> None:
    program = native(CHAIN)
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = [torch.randn(s, generator=generator) for s in ((6, 4), (6, 4), (4,))]
        want = program(x)
        for _ in range(300):
            if not all(torch.equal(a, b) for a, b in zip(program(x), want, strict=True)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_call_costs_little(native: Native) -> None:
    """Three tensors in, two out: less than six eager additions, each of which allocates once."""
    program, x = native(CHAIN), inputs()
    number = 5000
    ours = min(timeit.repeat(lambda: program(x), number=number, repeat=7))
    eager = min(timeit.repeat(lambda: x[0] + x[1], number=number, repeat=7))
    assert ours < 6 * eager, f"{ours / number * 1e6:.2f} us against {eager / number * 1e6:.2f} us of one addition"


# ---- Sizes

SYMBOLIC = """
func.func @main(%x: tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>, %n: index {isthmus.symbol = "s1"})
    -> (tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>)
    attributes {isthmus.temporary_bytes = #isthmus.lit<<"12*s0">>} {
  %t = kernel.fused %x {sizes = [<"s0">, 3], classes = ["parallel", "parallel"], symbols = ["s0"],
                        partitions = <"s0">, places = [["temporary", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0, d1]} : f32
    %d = prim.add %a, %a : f32
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
  %u, %v = kernel.fused %t {sizes = [<"s0">, 3], classes = ["parallel", "parallel"], symbols = ["s0", "s1"],
                            places = [["output", 0], ["output", 1]]} ({
    %a = kernel.load {operand = 0, map = [d0, d1]} : f32
    %i = kernel.index {map = [<"s1">]} : i64
    %f = prim.convert %i : f32
    %d = prim.mul %a, %f : f32
    kernel.store %d {result = 0, map = [d0, d1]}
    kernel.store %a {result = 1, map = [d0, d1]}
  }) : tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
  func.return %u, %v : tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
}
"""


@pytest.mark.row("R4")
@FACTS
def test_sizes_are_arguments(facts: NativeFacts, native: Native) -> None:
    program = native(SYMBOLIC, facts=facts)
    for rows in (4, 1, 0, 9, 700, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program([x, 5]), [2 * x * 5, 2 * x])
    with pytest.raises(IRError, match="3"):
        program([torch.randn(2, 4), 5])


# ---- Threads inside a call


def cut(rows: int, partitions: int) -> str:
    head = f'sizes = [{rows}, 8], classes = ["parallel", "row"]'
    return f"""
func.func @main(%x: tensor<{rows}x8xf32>) -> tensor<f32>
    attributes {{isthmus.temporary_bytes = #isthmus.lit<{64 * rows * 8}>}} {{
  %y = kernel.fused %x {{{head}, partitions = {partitions}, places = [["temporary", 0]]}} ({{
    %a = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %b = prim.exp %a : f32
    kernel.store %b {{result = 0, map = [d0, d1]}}
  }}) : tensor<{rows}x8xf32>
  %z = kernel.fused %y {{{head}, partitions = {partitions}, places = [["temporary", {32 * rows}]]}} ({{
    %a = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %r = kernel.reduce %a {{kind = "add", dims = [1]}} : f32
    kernel.store %r {{result = 0, map = [d0]}}
  }}) : tensor<{rows}xf32>
  %t = kernel.fused %z {{sizes = [{rows}], classes = ["row"], places = [["temporary", {40 * rows}]]}} ({{
    %a = kernel.load {{operand = 0, map = [d0]}} : f32
    %r = kernel.reduce %a {{kind = "add", dims = [0]}} : f32
    kernel.store %r {{result = 0, map = []}}
  }}) : tensor<f32>
  %w = kernel.fused %z, %t {{sizes = [{rows}], classes = ["parallel"], partitions = {partitions},
                             places = [["temporary", {48 * rows}]]}} ({{
    %a = kernel.load {{operand = 0, map = [d0]}} : f32
    %m = kernel.load {{operand = 1, map = []}} : f32
    %b = prim.div %a, %m : f32
    kernel.store %b {{result = 0, map = [d0]}}
  }}) : tensor<{rows}xf32>
  %u = kernel.fused %w {{sizes = [{rows}], classes = ["row"], places = [["output", 0]]}} ({{
    %a = kernel.load {{operand = 0, map = [d0]}} : f32
    %r = kernel.reduce %a {{kind = "max", dims = [0]}} : f32
    kernel.store %r {{result = 0, map = []}}
  }}) : tensor<f32>
  func.return %u : tensor<f32>
}}
"""


@pytest.mark.row("N7")
def test_threads_do_not_change_results(native: Native) -> None:
    """Cut and uncut kernels with barriers between them: the same bits for any number of threads."""
    program, x = native(cut(1000, 7)), torch.randn(1000, 8)
    before = torch.get_num_threads()
    results: list[Tensor] = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            results += [program([x])[0] for _ in range(50)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(r, results[0]) for r in results)
    e = x.exp().sum(1)
    torch.testing.assert_close(results[0], (e / e.sum()).max())


def test_a_region_inside_a_region_runs_alone(native: Native) -> None:
    """A call from a thread of another pool's region (data loaders, inter-op) must not wait for itself."""
    program, x = native(cut(100, 5)), torch.randn(100, 8)
    want = program([x])[0]
    threads = [threading.Thread(target=lambda: [program([x]) for _ in range(50)]) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert torch.equal(program([x])[0], want)


# ---- Errors

GATHER = """
func.func @main(%x: tensor<5xf32>, %i: tensor<3xi64>, %k: tensor<3xi64>) -> (tensor<3xf32>, tensor<3xi64>) {
  %y, %q = kernel.fused %x, %i, %k {sizes = [3], classes = ["parallel"],
                                    places = [["output", 0], ["output", 1]]} ({
    %n = kernel.load {operand = 1, map = [d0]} : i64
    %c = kernel.check %n {bound = 5, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0]} : f32
    %d = kernel.load {operand = 2, map = [d0]} : i64
    %q = prim.div %n, %d : i64
    kernel.store %v {result = 0, map = [d0]}
    kernel.store %q {result = 1, map = [d0]}
  }) : tensor<3xf32>, tensor<3xi64>
  func.return %y, %q : tensor<3xf32>, tensor<3xi64>
}
"""


@FACTS
def test_index_out_of_range_is_eagers_error(facts: NativeFacts, native: Native) -> None:
    program, x, one = native(GATHER, facts=facts), torch.arange(5.0), torch.ones(3, dtype=torch.int64)
    good = torch.tensor([4, 0, 2])
    torch.testing.assert_close(program([x, good, one])[0], x[good])
    for bad in (5, -7):
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension 0 with size 5"):
            program([x, torch.tensor([0, bad, 1]), one])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        program([x, good, torch.tensor([1, 0, 1])])
    torch.testing.assert_close(program([x, good, one])[0], x[good])


def test_unknown_op_has_no_native_form(native: Native) -> None:
    with pytest.raises(UnsupportedError, match="no native form"):
        native("""
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = prim.neg %x : tensor<2xf32>
  func.return %y : tensor<2xf32>
}
""")
