"""The native call: what it reads, allocates, refuses; regions of threads; errors; memory."""

from __future__ import annotations

import gc
import threading
import timeit
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor

from isthmus.diagnostics import IRError, UnsupportedError
from isthmus.dialects.native_facts import NativeFacts
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.boundary import CompiledFunction
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.convention import Convention, Mutation, Source, UserOutput, Value
from isthmus.runtime.layout import native_facts

Native = Callable[..., NativeProgram]
SLOW = NativeFacts(native_facts().excluded_keys, None)
"""As if torch's layout could not be found."""

FACTS = pytest.mark.parametrize("facts", [native_facts(), SLOW], ids=["builtin", "pointers"])


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


# ---- Results without memory of their own


def test_results_that_are_arguments_or_equal_are_copied(native: Native) -> None:
    program = native("""
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32> {isthmus.strides = #isthmus.lit<[2]>})
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %z = kernel.fused %x {sizes = [4], classes = ["parallel"], places = [["output", 1]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %x, %z, %z, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
""")
    x, wide = torch.randn(4), torch.randn(8)
    results = program([x, wide[::2]])
    for got, want in zip(results, (x, -x, -x, wide[::2]), strict=True):
        assert torch.equal(got, want)
    assert len({t.data_ptr() for t in [x, wide, *results]}) == 6


@FACTS
def test_result_written_in_place(facts: NativeFacts, native: Native) -> None:
    program = native(
        """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32> {isthmus.mutated = 0}) {
  %z = kernel.fused %x {sizes = [4], classes = ["parallel"], places = [["argument", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %z : tensor<4xf32>
}
""",
        facts=facts,
    )
    x = torch.arange(4.0)
    (result,) = program([x])
    assert result is x and x.tolist() == [0, -1, -2, -3]
    with pytest.raises(IRError, match="written in place"):
        program([torch.arange(8.0)[::2]])


@FACTS
def test_scatter_starts_with_a_copy(facts: NativeFacts, native: Native) -> None:
    program = native(
        """
func.func @main(%x: tensor<5xf32>, %i: tensor<7xi64>, %u: tensor<7xf32>) -> tensor<5xf32> {
  %y = kernel.fused %x, %u, %i {sizes = [7], classes = ["row"], initial = [0], places = [["output", 0]]} ({
    %v = kernel.load {operand = 1, map = [d0]} : f32
    %n = kernel.load {operand = 2, map = [d0]} : i64
    %c = kernel.check %n {bound = 5, dim = 0} : i64
    kernel.store %v, %c {result = 0, map = [v0], kind = "add"}
  }) : tensor<5xf32>
  func.return %y : tensor<5xf32>
}
""",
        facts=facts,
    )
    x, u, i = torch.randn(5), torch.randn(7), torch.tensor([0, 1, 1, 4, 4, 4, 0])
    torch.testing.assert_close(program([x, i, u])[0], x.index_add(0, i, u))


# ---- Saved values

PAIR = """
func.func @forward(%x: tensor<?xf32, #isthmus.lit<[<"s0">]>>)
    -> (tensor<?xf32, #isthmus.lit<[<"s0">]>>,
        tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.saved = 0},
        tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.saved = 1})
    attributes {isthmus.saved_bytes = #isthmus.lit<<"4*s0 + 64">>} {
  %y, %c = kernel.fused %x {sizes = [<"s0">], classes = ["parallel"], symbols = ["s0"],
                            places = [["output", 0], ["saved", 64]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %s = prim.sin %a : f32
    %c = prim.cos %a : f32
    kernel.store %s {result = 0, map = [d0]}
    kernel.store %c {result = 1, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"s0">]>>, tensor<?xf32, #isthmus.lit<[<"s0">]>>
  func.return %y, %x, %c : tensor<?xf32, #isthmus.lit<[<"s0">]>>, tensor<?xf32, #isthmus.lit<[<"s0">]>>,
                           tensor<?xf32, #isthmus.lit<[<"s0">]>>
}
func.func @backward(%c: tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.saved = 1})
    -> (tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.gradient = 0}) {
  %g = kernel.fused %c {sizes = [<"s0">], classes = ["parallel"], symbols = ["s0"], places = [["output", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"s0">]>>
  func.return %g : tensor<?xf32, #isthmus.lit<[<"s0">]>>
}
"""


@FACTS
def test_saved_values_cross_in_the_arena_or_as_tensors(facts: NativeFacts, native: Native) -> None:
    """The backward's size is told by nothing but a saved value."""
    forward = native(PAIR, "forward", facts=facts)
    backward = native(PAIR, "backward", saved_at=dict(forward.program.saved_at), facts=facts)
    assert forward.saves_in_arena and backward.sizes_wanted == ("s0",)
    for n in (3, 50, 4):
        x = torch.randn(n)
        (y,), lease = forward.save_in_arena([x])
        assert lease is not None and lease.tensor is not None
        torch.testing.assert_close(y, x.sin())
        torch.testing.assert_close(backward.run_from_arena([n], lease.tensor)[0], -x.cos())
        lease.release()
        y, kept, cosine = forward([x])
        assert kept is x
        torch.testing.assert_close(cosine, x.cos())
        torch.testing.assert_close(backward([cosine])[0], -x.cos())


# ---- Control flow


def test_branch(native: Native) -> None:
    program = native("""
func.func @main(%p: tensor<i1>, %x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    attributes {isthmus.temporary_bytes = #isthmus.lit<64>} {
  %y, %z = prim.cond %p, %x {places = [["output", 0], ["output", 1]]} ({
  ^bb0(%a: tensor<3xf32>):
    %b = kernel.fused %a {sizes = [3], classes = ["parallel"], places = [["temporary", 0]]} ({
      %v = kernel.load {operand = 0, map = [d0]} : f32
      %w = prim.neg %v : f32
      kernel.store %w {result = 0, map = [d0]}
    }) : tensor<3xf32>
    prim.yield %b, %a
  }, {
  ^bb0(%a: tensor<3xf32>):
    prim.yield %a, %a
  }) : tensor<3xf32>, tensor<3xf32>
  func.return %y, %z : tensor<3xf32>, tensor<3xf32>
}
""")
    x = torch.randn(3)
    torch.testing.assert_close(program([torch.tensor(True), x]), [-x, x])
    torch.testing.assert_close(program([torch.tensor(False), x]), [x, x])


WHILE = """
func.func @main(%n: tensor<i64>, %x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<i64>, tensor<3xf32>, tensor<3xf32>)
    attributes {isthmus.temporary_bytes = #isthmus.lit<192>} {
  %m, %u, %v = prim.while %n, %x, %y {carried = 3, places = [["output", 0], ["output", 1], ["output", 2]]} ({
  ^bb0(%i: tensor<i64>, %a: tensor<3xf32>, %b: tensor<3xf32>):
    %c = kernel.fused %i {sizes = [], classes = [], places = [["temporary", 64]]} ({
      %j = kernel.load {operand = 0, map = []} : i64
      %z = prim.const {value = 0} : i64
      %t = prim.cmp %j, %z {predicate = "gt"} : i1
      kernel.store %t {result = 0, map = []}
    }) : tensor<i1>
    prim.yield %c
  }, {
  ^bb0(%i: tensor<i64>, %a: tensor<3xf32>, %b: tensor<3xf32>):
    %k = kernel.fused %i {sizes = [], classes = [], places = [["temporary", 0]]} ({
      %j = kernel.load {operand = 0, map = []} : i64
      %z = prim.const {value = 1} : i64
      %t = prim.sub %j, %z : i64
      kernel.store %t {result = 0, map = []}
    }) : tensor<i64>
    %d = kernel.extern %b {symbol = "aten.exp.default", args = [arg0], places = [["handle", 0]]} : tensor<3xf32>
    prim.yield %k, %b, %SECOND
  }) : tensor<i64>, tensor<3xf32>, tensor<3xf32>
  func.return %m, %u, %v : tensor<i64>, tensor<3xf32>, tensor<3xf32>
}
"""


@pytest.mark.parametrize("second", ["a", "d"])
def test_while_carries_values_also_crosswise(second: str, native: Native) -> None:
    """(i, a, b) -> (i - 1, b, a) or (i - 1, b, exp b) while i > 0; tensors made inside are freed in each turn."""
    program = native(WHILE.replace("%SECOND", f"%{second}"))
    x, y = torch.randn(3), -torch.rand(3)
    for n in (0, 1, 2, 3, 5):
        a, b = x, y
        for _ in range(n):
            a, b = b, (a if second == "a" else b.exp())
        torch.testing.assert_close(program([torch.tensor(n), x, y]), [torch.tensor(0), a, b])


def test_error_inside_a_loop(native: Native) -> None:
    count = [0]

    @torch.library.custom_op("isthmus_test::raise_third", mutates_args=())
    def raise_third(x: Tensor) -> Tensor:
        count[0] += 1
        if count[0] >= 3:
            raise KeyError("third")
        return x.clone()

    program = native(WHILE.replace("%SECOND", "%d").replace("aten.exp.default", "isthmus_test::raise_third.default"))
    for _ in range(3):
        count[0] = 0
        with pytest.raises(KeyError, match="third"):
            program([torch.tensor(5), torch.randn(3), torch.randn(3)])


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool, native: Native) -> None:
    program = native(f"""
func.func @main(%c: tensor<3xf32>, %x: tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>, %w: tensor<3xf32>)
    -> (tensor<3xf32>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>)
    attributes {{isthmus.temporary_bytes = #isthmus.lit<128>}} {{
  %d, %y = prim.scan %c, %x, %w {{carried = 1, scanned = 1, reverse = {str(reverse).lower()},
                                 places = [["output", 0], ["output", 1]]}} ({{
  ^bb0(%a: tensor<3xf32>, %t: tensor<3xf32>, %v: tensor<3xf32>):
    %e, %f = kernel.fused %a, %t, %v {{sizes = [3], classes = ["parallel"],
                                       places = [["temporary", 0], ["temporary", 64]]}} ({{
      %i = kernel.load {{operand = 0, map = [d0]}} : f32
      %j = kernel.load {{operand = 1, map = [d0]}} : f32
      %k = kernel.load {{operand = 2, map = [d0]}} : f32
      %m = prim.mul %i, %k : f32
      %n = prim.add %m, %j : f32
      %o = prim.sin %n : f32
      kernel.store %n {{result = 0, map = [d0]}}
      kernel.store %o {{result = 1, map = [d0]}}
    }}) : tensor<3xf32>, tensor<3xf32>
    prim.yield %e, %f
  }}) : tensor<3xf32>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
  func.return %d, %y : tensor<3xf32>, tensor<?x3xf32, #isthmus.lit<[<"s0">, 3]>>
}}
""")
    for steps in (4, 1, 0, 7):
        c, x, w = torch.randn(3), torch.randn(steps, 3), torch.randn(3)
        carry, want = c, torch.empty(steps, 3)
        for t in reversed(range(steps)) if reverse else range(steps):
            carry = carry * w + x[t]
            want[t] = carry.sin()
        torch.testing.assert_close(program([c, x, w]), [carry, want])


def test_reshape_shares_memory(native: Native) -> None:
    program = native("""
func.func @main(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<3x2xf32>, tensor<2x3xf32>) {
  %a = kernel.extern %x {symbol = "aten.exp.default", args = [arg0], places = [["handle", 0]]} : tensor<2x3xf32>
  %b = kernel.reshape %a {places = [["handle", 0]]} : tensor<6xf32>
  %c = kernel.reshape %x {places = [["output", 1]]} : tensor<3x2xf32>
  func.return %b, %c, %a : tensor<6xf32>, tensor<3x2xf32>, tensor<2x3xf32>
}
""")
    x = torch.randn(2, 3)
    torch.testing.assert_close(program([x]), [x.exp().view(6), x.view(3, 2), x.exp()])


def test_unknown_op_has_no_native_form(native: Native) -> None:
    with pytest.raises(UnsupportedError, match="no native form"):
        native("""
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = prim.neg %x : tensor<2xf32>
  func.return %y : tensor<2xf32>
}
""")


def test_result_written_in_place_on_the_tape(native: Native) -> None:
    """Running statistics, and an argument that gets a history."""
    text = """
func.func @main(%x: tensor<4xf32>, %m: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32> {isthmus.mutated = 1}) {
  %y, %z = kernel.fused %x, %m {sizes = [4], classes = ["parallel"], places = [["output", 0], ["argument", 1]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = kernel.load {operand = 1, map = [d0]} : f32
    %c = prim.add %a, %b : f32
    %d = prim.add %a, %a : f32
    kernel.store %d {result = 0, map = [d0]}
    kernel.store %c {result = 1, map = [d0]}
  }) : tensor<4xf32>, tensor<4xf32>
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}
"""
    forward = native(text)
    hidden = Convention(
        2,
        2,
        (UserOutput("value", 0),),
        mutations=(Mutation(1, 1, hidden=True),),
        differentiable=(0,),
        backward=(Source("tangent", 0),),
        gradients=(0,),
    )
    x, m = torch.randn(4, requires_grad=True), torch.zeros(4)
    version = m._version
    node = TapeNode(hidden, forward, lambda: lambda a: [2 * cast(Tensor, a[0])])
    (y,) = CompiledFunction(hidden, node)([x, m])
    assert torch.equal(m, x.detach()) and m._version > version and not m.requires_grad
    assert isinstance(y, Tensor)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((4,), 2.0))
    visible = replace(
        hidden,
        mutations=(Mutation(1, 1),),
        differentiable=(0, 1),
        backward=(Source("tangent", 0), Source("tangent", 1)),
        gradients=(0, 1),
    )

    def backward(arguments: list[Value]) -> list[Tensor]:
        t, u = (cast(Tensor, a) for a in arguments)
        return [2 * t + u, u]

    leaf = torch.zeros(4, requires_grad=True)
    m = leaf * 1
    (y,) = CompiledFunction(visible, TapeNode(visible, forward, lambda: backward))([x, m])
    assert torch.equal(m.detach(), x.detach()) and isinstance(y, Tensor)
    gx, gl = torch.autograd.grad((y + 3 * m).sum(), [x, leaf])
    assert torch.equal(gx, torch.full((4,), 5.0)) and torch.equal(gl, torch.full((4,), 3.0))
