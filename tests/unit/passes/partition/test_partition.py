"""What crosses between the halves, on joint functions written by hand."""

from __future__ import annotations

import pytest
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import prim
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Argument, Result, Signature, saved_sources
from isthmus.ir import Literal
from isthmus.passes.partition.partition import plan_partition
from tests.unit.passes.partition.joints import (
    CONSTANT,
    KEY,
    OUTPUT,
    PRIMAL,
    Built,
    check,
    gradient,
    joint,
    kept,
    kinds,
    saved_bytes,
    tangent,
)

VECTOR = ir.tensor((4,), "f32")
SQUARE = ir.tensor((4, 4), "f32")
SCALAR = ir.tensor((), "f32")


def cos_of_cos(e: Emitter, x: SSAValue, t: SSAValue) -> Built:
    c = e.cos(x)
    y = e.cos(c)
    inner = e.mul(t, e.neg(e.sin(c)))
    return [y, e.mul(inner, e.neg(e.sin(x)))], [OUTPUT, gradient()]


@pytest.mark.row("M2", "T9")
def test_min_cut_keeps_the_input_of_cos_cos() -> None:
    _, halves = check(joint([VECTOR, VECTOR], [PRIMAL, tangent()], cos_of_cos))
    assert halves.backward is not None
    assert saved_sources(halves.forward) == [("argument", 0)]
    assert kinds(halves.forward) == [prim.CosOp, prim.CosOp]
    assert kinds(halves.backward) == [
        prim.CosOp, prim.SinOp, prim.NegOp, prim.MulOp, prim.SinOp, prim.NegOp, prim.MulOp,
    ]  # fmt: skip


@pytest.mark.row("M1")
def test_default_keeps_what_backward_reads() -> None:
    _, halves = check(joint([VECTOR, VECTOR], [PRIMAL, tangent()], cos_of_cos), "default")
    assert halves.backward is not None
    assert saved_sources(halves.forward) == [("argument", 0), ("temporary", 1)]
    assert kinds(halves.backward)[0] is prim.SinOp


def matmul_relu_sum(e: Emitter, x: SSAValue, w: SSAValue, t: SSAValue) -> Built:
    h = e.matmul(x, w)
    y = e.sum(e.relu(h), (0, 1))
    mask = e.cmp("le", h, e.const_like(0.0, h))
    g = e.select(mask, e.const_like(0.0, h), e.broadcast(t, ir.shape_of(h), ()))
    return [y, e.matmul(e.transpose(x, (1, 0)), g)], [OUTPUT, gradient(1)]


@pytest.mark.row("T11", "T12", "M3", "M6")
def test_matmul_relu_sum_keeps_a_mask_and_the_input() -> None:
    func = joint([SQUARE, SQUARE, SCALAR], [CONSTANT, PRIMAL, tangent()], matmul_relu_sum)
    plan, halves = check(func)
    assert halves.backward is not None
    assert saved_sources(halves.forward) == [("argument", 0), ("temporary", 1)]
    assert [ir.dtype_of(v) for v in halves.saved] == ["f32", "i1"]
    assert saved_bytes(plan, halves) == 16
    assert kinds(halves.forward).count(prim.DotOp) == 1
    assert kinds(halves.backward).count(prim.DotOp) == 1  # that of the gradient
    assert Signature.of(halves.backward).gradients == {1: 0}
    _, plain = check(func, "default")
    assert [ir.dtype_of(v) for v in plain.saved] == ["f32", "f32"]


def clamp_times_3(e: Emitter, a: SSAValue, b: SSAValue, t: SSAValue) -> Built:
    h = e.matmul(a, b)
    low = e.const_like(0.0, h)
    y = e.scaled(e.select(e.cmp("lt", h, low), low, h), 3.0)
    gh = e.select(e.cmp("ge", h, low), e.scaled(t, 3.0), low)
    return [y, e.matmul(gh, e.transpose(b, (1, 0)))], [OUTPUT, gradient()]


@pytest.mark.row("T10", "M6")
def test_a_comparison_that_only_backward_needs_moves_to_forward() -> None:
    _, halves = check(joint([SQUARE] * 3, [PRIMAL, CONSTANT, tangent()], clamp_times_3))
    assert halves.backward is not None
    (mask,) = [v for v in halves.saved if ir.dtype_of(v) == "i1"]
    assert isinstance(mask.owner, prim.CmpOp) and mask.owner.predicate == Literal.of("ge")
    assert kinds(halves.forward).count(prim.CmpOp) == 2
    assert kinds(halves.backward) == [
        prim.ConstOp, prim.MulOp, prim.ConstOp, prim.SelectOp, prim.TransposeOp, prim.DotOp,
    ]  # fmt: skip


def test_contractions_and_structured_ops_never_run_twice() -> None:
    def build(e: Emitter, x: SSAValue, w: SSAValue, t: SSAValue) -> Built:
        h = e.softmax(e.matmul(x, w), 1)
        y = e.mul(h, h)
        return [e.sum(y, (0, 1)), e.mul(e.mul(h, y), t)], [OUTPUT, gradient()]

    _, halves = check(joint([SQUARE, SQUARE, SQUARE], [PRIMAL, CONSTANT, tangent()], build))
    assert kept(halves) == ["softmax"]


def test_random_numbers_are_drawn_again_from_the_key() -> None:
    def build(e: Emitter, x: SSAValue, key: SSAValue, t: SSAValue) -> Built:
        mask = e.cmp("lt", e.rng(key, "uniform", 0, (8, 8), "f32"), e.const(0.5, (8, 8)))
        zero = e.const(0.0, (8, 8))
        return [e.select(mask, x, zero), e.select(mask, t, zero)], [OUTPUT, gradient()]

    types = [ir.tensor((8, 8), "f32"), ir.tensor((), "i64"), ir.tensor((8, 8), "f32")]
    func = joint(types, [PRIMAL, KEY, tangent()], build)
    plan, halves = check(func)  # the same bits, so the same mask
    assert saved_sources(halves.forward) == [("argument", 1)]
    assert saved_bytes(plan, halves) == 0


@pytest.mark.row("M8")
def test_default_keeps_the_mask_itself() -> None:
    def build(e: Emitter, x: SSAValue, key: SSAValue, t: SSAValue) -> Built:
        mask = e.cmp("lt", e.rng(key, "uniform", 0, (8, 8), "f32"), e.const(0.5, (8, 8)))
        zero = e.const(0.0, (8, 8))
        return [e.select(mask, x, zero), e.select(mask, t, zero)], [OUTPUT, gradient()]

    types = [ir.tensor((8, 8), "f32"), ir.tensor((), "i64"), ir.tensor((8, 8), "f32")]
    plan, halves = check(joint(types, [PRIMAL, KEY, tangent()], build), "default")
    assert [ir.dtype_of(v) for v in halves.saved] == ["i1"]
    assert saved_bytes(plan, halves) == 64


def test_an_argument_that_is_overwritten_is_not_free() -> None:
    """z = sigmoid(b); b *= 0.9: to recompute z from b after the copy-back would be wrong."""

    def build(e: Emitter, b: SSAValue, t: SSAValue) -> Built:
        z = e.logistic(b)
        db = e.mul(t, e.mul(z, e.sub(e.const_like(1.0, z), z)))
        return [z, e.scaled(b, 0.9), db], [OUTPUT, Result(mutated=0), gradient()]

    _, halves = check(joint([VECTOR, VECTOR], [PRIMAL, tangent()], build))
    assert saved_sources(halves.forward) == [("output", 0)]


def test_an_overwritten_argument_that_must_be_kept_is_a_temporary() -> None:
    def build(e: Emitter, b: SSAValue, t: SSAValue) -> Built:
        return [e.sum(e.sin(b), (0,)), e.scaled(b, 0.9), e.mul(t, e.cos(b))], [OUTPUT, Result(mutated=0), gradient()]

    plan, halves = check(joint([VECTOR, VECTOR], [PRIMAL, tangent()], build))
    assert [kind for kind, _ in saved_sources(halves.forward)] == ["temporary"]
    assert saved_bytes(plan, halves) == 16


def residual_chain(blocks: int) -> tuple[list[ir.Attribute], list[Argument], object]:
    """x = x + f(x) again and again, f a matmul: the stream itself must be kept, not what is added to it."""

    def build(e: Emitter, x: SSAValue, w: SSAValue, t: SSAValue) -> Built:
        stream = [e.matmul(x, w)]
        for _ in range(blocks):
            stream.append(e.add(stream[-1], e.matmul(e.sin(stream[-1]), w)))
        g = t
        for value in reversed(stream[:-1]):
            g = e.add(g, e.mul(e.matmul(g, e.transpose(w, (1, 0))), e.cos(value)))
        return [e.sum(stream[-1], (0, 1)), e.matmul(g, e.transpose(w, (1, 0)))], [OUTPUT, gradient()]

    return [SQUARE, SQUARE, SQUARE], [PRIMAL, CONSTANT, tangent()], build


def test_a_sum_of_two_streams_is_kept_and_not_its_terms() -> None:
    _, halves = check(joint(*residual_chain(5)))
    assert [type(v.owner) for v in halves.saved[1:]] == [prim.DotOp, *[prim.AddOp] * 4]
    assert not [op for op in halves.recomputed if isinstance(op, prim.AddOp)]


def test_recomputation_stands_just_before_its_first_use() -> None:
    _, halves = check(joint(*residual_chain(3)))
    assert halves.backward is not None
    ops = list(halves.backward.body.block.ops)
    for at, op in enumerate(ops):
        if isinstance(op, prim.CosOp):
            assert isinstance(ops[at + 1], prim.MulOp)


def test_nothing_that_backward_does_not_read_is_saved() -> None:
    def build(e: Emitter, x: SSAValue, y: SSAValue, t: SSAValue) -> Built:
        return [e.add(x, e.exp(y)), t], [OUTPUT, gradient()]

    _, halves = check(joint([VECTOR] * 3, [PRIMAL, CONSTANT, tangent()], build))
    assert halves.saved == () and halves.backward is not None
    assert kinds(halves.backward) == []


@pytest.mark.row("M7")
def test_dead_code_is_in_neither_half_and_every_result_keeps_its_tangent() -> None:
    def build(e: Emitter, x: SSAValue, t: SSAValue, u: SSAValue) -> Built:
        e.tanh(e.mul(x, t))
        e.tanh(x)
        return [e.sin(x), e.exp(x), e.mul(t, e.cos(x))], [OUTPUT, OUTPUT, gradient()]

    _, halves = check(joint([VECTOR] * 3, [PRIMAL, tangent(0), tangent(1)], build))
    assert halves.backward is not None
    assert kinds(halves.forward) == [prim.SinOp, prim.ExpOp]
    assert kinds(halves.backward) == [prim.CosOp, prim.MulOp]
    assert Signature.of(halves.backward).tangents == {0: 1, 1: 2}


def tagged(tag: str) -> tuple[list[ir.Attribute], list[Argument], object]:
    """sin(sin(x @ w) @ w), both contractions tagged."""

    def build(e: Emitter, x: SSAValue, w: SSAValue, t: SSAValue) -> Built:
        first = e.matmul(x, w)
        middle = e.sin(first)
        second = e.matmul(middle, w)
        wt = e.transpose(w, (1, 0))
        g = e.mul(e.matmul(e.mul(t, e.cos(second)), wt), e.cos(first))
        for value in (first, middle, second):
            value.owner.attributes[RECOMPUTE] = Literal.of(tag)
        return [e.sum(e.sin(second), (0, 1)), e.matmul(g, wt)], [OUTPUT, gradient()]

    return [SQUARE, SQUARE, SQUARE], [PRIMAL, CONSTANT, tangent()], build


@pytest.mark.row("M4")
@pytest.mark.parametrize("strategy", ["min-cut", "default"])
def test_must_recompute_runs_contractions_again(strategy: str) -> None:
    _, halves = check(joint(*tagged("must_recompute")), strategy)
    assert [kind for kind, _ in saved_sources(halves.forward)] == ["argument", "argument"]
    assert sum(isinstance(op, prim.DotOp) for op in halves.recomputed) == 2


@pytest.mark.row("M4", "M5")
def test_must_save_of_the_first_contraction_leaves_only_the_second() -> None:
    func = joint(*tagged("prefer_recompute"))
    first = next(op for op in func.body.block.ops if isinstance(op, prim.DotOp))
    first.attributes[RECOMPUTE] = Literal.of("must_save")
    _, halves = check(func)
    assert [v for v in halves.saved if v.owner is first]
    assert sum(isinstance(op, prim.DotOp) for op in halves.recomputed) == 1


def test_a_library_call_runs_once_whatever_the_tag_says() -> None:
    def build(e: Emitter, x: SSAValue, t: SSAValue) -> Built:
        (y,) = e.opaque("aten::special_i0", (x,), (ir.Operand(0),), (VECTOR,))
        y.owner.attributes[RECOMPUTE] = Literal.of("must_recompute")
        return [e.sum(y, (0,)), e.mul(t, y)], [OUTPUT, gradient()]

    _, halves = plan_partition(joint([VECTOR, VECTOR], [PRIMAL, tangent()], build))
    assert kept(halves) == ["opaque"] and not halves.recomputed


@pytest.mark.row("T13")
def test_without_tangents_there_is_one_function_and_nothing_is_saved() -> None:
    from xdsl.context import Context

    from isthmus.passes.partition.partition import PartitionPass

    func = joint([VECTOR], [CONSTANT], lambda e, x: ([e.sin(x)], [OUTPUT]), "main")
    module = func.parent_op()
    PartitionPass().apply(Context(), module)  # pyright: ignore[reportArgumentType]
    assert list(ir.functions(module)) == ["forward"]  # pyright: ignore[reportArgumentType]
    assert [r.saved for r in Signature.of(ir.function(module, "forward")).results] == [None]  # pyright: ignore[reportArgumentType]


def test_sizes_that_no_saved_shape_shows_become_arguments_of_backward() -> None:
    s0 = ir.Size.symbol("s0")
    long = ir.tensor((s0 * 2,), "f32")

    def build(e: Emitter, n: SSAValue, x: SSAValue, t: SSAValue) -> Built:
        scale = e.broadcast(e.convert(e.size(s0), "f32"), (s0 * 2,), ())
        return [e.mul(e.sin(x), scale), e.mul(e.mul(t, e.cos(x)), scale)], [OUTPUT, gradient(1)]

    roles = [Argument(symbol="s0"), PRIMAL, tangent()]
    _, halves = plan_partition(joint([ir.INDEX, long, long], roles, build))
    assert halves.backward is not None
    assert [a.symbol for a in Signature.of(halves.backward).arguments] == [None, None, "s0"]


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(IRError, match=r"no strategy .best.[^$]*min-cut"):
        plan_partition(joint([VECTOR, VECTOR], [PRIMAL, tangent()], cos_of_cos), "best")
