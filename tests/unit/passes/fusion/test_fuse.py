"""Properties of fusion: what pairs join first, where it stops, equal kernels, reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from prim_programs import Case, Program, apply, check, programs
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.passes.analysis.prices import CPU
from isthmus.passes.fusion import fuse, merge
from isthmus.passes.fusion.fuse import fuse_block


def kernels(module: ModuleOp) -> list[kernel.FusedOp]:
    return [op for op in kernel.launches(ir.function(module, "main")) if isinstance(op, kernel.FusedOp)]


def layer_norm(p: Program, x: SSAValue, eps: float = 1e-5) -> SSAValue:
    """(x - mean) / sqrt(var + eps) along the last dim."""
    shape = ir.shape_of(x)
    rest, last = tuple(range(len(shape) - 1)), len(shape) - 1
    scale = 1.0 / int(shape[last])  # pyright: ignore[reportArgumentType]
    mean = p.e.scaled(p.e.sum(x, (last,)), scale)
    centred = p.e.sub(x, p.e.broadcast(mean, shape, rest))
    variance = p.e.scaled(p.e.sum(p.e.square(centred), (last,)), scale)
    factor = p.e.rsqrt(p.e.shifted(variance, eps))
    return p.e.mul(centred, p.e.broadcast(factor, shape, rest))


def with_small_sums(module: ModuleOp) -> ModuleOp:
    """Sums split into partial results at sizes that the interpreter runs quickly."""
    prices = replace(CPU, column_bytes=0, longest_sum=3, rows_per_sum=1, sum_bytes=8, most_sums=3, partition_bytes=8)
    prices.attach(ir.function(module, "main"))
    return module


@given(programs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_split_sums_keep_results(case: Case) -> None:
    check(with_small_sums(case.module), case.arguments, ["fuse"])


@pytest.mark.row("I5")
def test_fusion_stops_where_no_pair_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    mergers: list[merge.Merger] = []

    class Recorded(merge.Merger):
        def run(self) -> None:
            super().run()
            mergers.append(self)

    monkeypatch.setattr(fuse, "Merger", Recorded)
    p = Program([torch.randn(16, 8), torch.randn(16, 8)])
    h = layer_norm(p, p.e.add(p.args[0], p.args[1]))
    module = p.module([p.e.exp(h), p.e.sum(h, (1,))])
    fuse_block(ir.function(module, "main").body.block, [None, None], [None, None])
    merger, alive = mergers[-1], list(mergers[-1].alive)
    merger.run()
    assert list(merger.alive) == alive


@pytest.mark.row("I6")
def test_a_kernel_holds_at_most_so_many_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "LARGEST_KERNEL", 3)
    p = Program([torch.randn(16, 8)])
    results = [p.e.reduce("max", p.e.shifted(p.args[0], float(k)), (1,)) for k in range(5)]
    made = kernels(apply(p.module(results), ["fuse"]))
    assert max(len(op.results) for op in made) == 3
    reasons = [ir.literal_text(ir.literal(op, "refused")) for op in made if ir.literal(op, "refused")]
    assert any("more than 3 reductions and buffers" in r for r in reasons)


@pytest.mark.row("I8")
def test_of_equal_savings_the_nearer_pair_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, float]] = []
    attempt = merge.Merger.attempt

    def recorded(self: merge.Merger, first: object, second: object) -> object:
        tried.append(abs(second.last - first.last))  # pyright: ignore
        return attempt(self, first, second)  # pyright: ignore

    monkeypatch.setattr(merge.Merger, "attempt", recorded)
    p = Program([torch.randn(16, 8)])
    x = p.args[0]
    near = p.e.reduce("max", x, (1,)), p.e.reduce("min", x, (1,))
    far = p.e.sum(p.e.exp(p.e.sin(p.e.cos(x))), (1,))
    apply(p.module([*near, far]), ["fuse"])
    assert tried[0] == 1 < tried[1]


@pytest.mark.row("I13")
def test_the_backward_of_a_pointwise_chain_is_one_kernel() -> None:
    """d/dx of tanh(x)·exp(-x) beside the value: one pass over x and the cotangent."""
    p = Program([torch.randn(64, 32, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64)])
    x, g = p.args
    t, e = p.e.tanh(x), p.e.exp(p.e.neg(x))
    one = p.e.const_like(1.0, x)
    slope = p.e.sub(p.e.mul(e, p.e.sub(one, p.e.square(t))), p.e.mul(t, e))
    (op,) = kernels(check(p.module([p.e.mul(g, slope)]), p.arguments, ["fuse"]))
    assert len(op.inputs) == 2


def test_layer_norm_with_its_residual_is_one_kernel() -> None:
    p = Program([torch.randn(64, 32, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64)])
    h = p.e.add(p.args[0], p.args[1])
    (op,) = kernels(check(p.module([layer_norm(p, h), h]), p.arguments, ["fuse"]))
    assert max(kernel.levels(op).values()) == 2
    assert len(op.inputs) == 2


def test_equal_layers_share_their_code() -> None:
    """Kernels that differ only in which values they read have one key; other sizes or constants have another."""
    weights = [torch.randn(32, 32, dtype=torch.float64) for _ in range(3)]
    p = Program([torch.randn(16, 32, dtype=torch.float64), *weights])
    x = p.args[0]
    for w in p.args[1:]:
        x = p.e.matmul(layer_norm(p, x), w)
    keys = [kernel.key(op) for op in kernels(apply(p.module([x]), ["fuse", "schedule"]))]
    assert len(keys) == 3 and len(set(keys)) == 1
    other = Program([torch.randn(16, 32, dtype=torch.float64)])
    changed = kernels(apply(other.module([layer_norm(other, other.args[0], eps=1e-6)]), ["fuse", "schedule"]))
    assert kernel.key(changed[0]) != keys[0]


@pytest.mark.parametrize(("rows", "distinct"), [(8, 1), (3, 4)])
def test_steps_of_an_unrolled_loop_share_their_code(rows: int, distinct: int) -> None:
    """A slice is read by the same code wherever it lies, if whole lines lie before it: aligned stays aligned."""
    p = Program([torch.randn(4, rows, 5, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)])
    x, w = p.args
    h = p.e.matmul(p.e.reshape(p.e.slice(x, 0, 0, 1), (rows, 5)), w)
    for t in range(4):
        step = p.e.reshape(p.e.slice(x, 0, t, t + 1), (rows, 5))
        h = p.e.matmul(p.e.tanh(p.e.add(h, step)), w)
    ops = kernels(check(p.module([h]), p.arguments, ["fuse", "schedule"]))
    assert len({kernel.key(op) for op in ops}) == distinct
    assert [max(kernel.starts(op)) for op in ops] == [t * rows * 5 // 8 * 8 for t in range(4)]


def test_a_deep_chain_needs_no_deep_stack() -> None:
    p = Program([torch.randn(8, dtype=torch.float64)])
    x = p.args[0]
    for _ in range(3000):
        x = p.e.sin(x)
    made = check(p.module([x]), p.arguments, ["fuse"])
    assert all(len(list(op.block.ops)) <= 1024 for op in kernels(made))


def test_memory_formats_of_results_are_written_directly() -> None:
    """A result that the caller sees transposed is stored so, not copied."""
    p = Program([torch.randn(4, 6, dtype=torch.float64)])
    module = p.module([p.e.exp(p.args[0])])
    fuse_block(ir.function(module, "main").body.block, [None], [(1, 4)])
    (op,) = kernels(module)
    assert kernel.strides_of(op.results[0]) == (1, 4)


def test_sums_of_a_concatenation_are_taken_piece_by_piece() -> None:
    """The gradient of a bias beside the gradient that it sums: nothing reads the concatenation again."""
    p = Program([torch.randn(8, 3, dtype=torch.float64) for _ in range(2)])
    whole = p.e.concat([p.e.exp(p.args[0]), p.args[1]], 1)
    module = with_small_sums(p.module([whole, p.e.sum(whole, (0,))]))
    made = check(module, p.arguments, ["fuse"])
    writing, combining = kernels(made)
    assert len(writing.results) == 2 and list(combining.inputs) == [writing.results[1]]
