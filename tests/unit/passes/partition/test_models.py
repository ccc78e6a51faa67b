"""Whole programs in primitives, differentiated and cut: what is kept, and that the bits stay the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Argument
from isthmus.passes.autodiff.differentiate import DifferentiatePass, differentiate
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.network import Plan, plan_default, plan_min_cut
from isthmus.passes.partition.optimal import measure
from isthmus.passes.partition.split import Halves
from tests.unit.passes.partition.joints import CONSTANT, OUTPUT, PRIMAL, check, joint, kept, saved_bytes

Program = Callable[..., SSAValue]


def differentiated(types: Sequence[Attribute], roles: Sequence[Argument], program: Program) -> FuncOp:
    main = joint(types, roles, lambda e, *arguments: ([program(e, *arguments)], [OUTPUT]), "main")
    made = differentiate(main, DifferentiatePass().fallbacks)
    parent = main.parent_op()
    assert parent is not None
    parent.regions[0].block.add_op(made)
    return made


def bytes_kept(types: Sequence[Attribute], roles: Sequence[Argument], program: Program) -> tuple[int, Plan, Halves]:
    plan, halves = check(differentiated(types, roles, program), "min-cut-late")
    return saved_bytes(plan, halves), plan, halves


def f32(*shape: int) -> Attribute:
    return ir.tensor(shape, "f32")


def layer_norm(e: Emitter, x: SSAValue, gain: SSAValue, shift: SSAValue) -> SSAValue:
    shape = ir.shape_of(x)
    last = len(shape) - 1
    mean, var = e.moments(x, (last,))
    scale = e.rsqrt(e.shifted(var, 1e-5))
    rows = range(last)
    centred = e.sub(x, e.broadcast(mean, shape, rows))
    normal = e.mul(centred, e.broadcast(scale, shape, rows))
    return e.add(e.mul(normal, e.broadcast(gain, shape, (last,))), e.broadcast(shift, shape, (last,)))


def linear(e: Emitter, x: SSAValue, w: SSAValue, b: SSAValue) -> SSAValue:
    rank = len(ir.shape_of(x))
    y = e.dot(x, w, ((rank - 1,), (0,)))
    return e.add(y, e.broadcast(b, ir.shape_of(y), (rank - 1,)))


def gelu(e: Emitter, x: SSAValue) -> SSAValue:
    return e.unary(prim.GeluOp, x)


def total(e: Emitter, x: SSAValue) -> SSAValue:
    return e.sum(x, range(len(ir.shape_of(x))))


def test_layer_norm_keeps_its_input_and_two_numbers_a_row() -> None:
    """Not the centred or the normalised input: backward computes them while it reads x."""

    def program(e: Emitter, x: SSAValue, w: SSAValue, b: SSAValue, gain: SSAValue, shift: SSAValue) -> SSAValue:
        return e.sin(layer_norm(e, linear(e, x, w, b), gain, shift))

    types = [f32(8, 16), f32(16, 32), f32(32), f32(32), f32(32)]
    size, _, halves = bytes_kept(types, [PRIMAL] * 5, program)
    rows, inputs = 8, 8 * 32
    assert size == 4 * (inputs + 2 * rows)
    assert [type(v.owner) for v in halves.saved if isinstance(v.owner, prim.PrimOp)] == [
        prim.DotOp, prim.MomentsOp, prim.MomentsOp,
    ]  # fmt: skip


def test_softmax_keeps_its_result() -> None:
    def program(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        return e.softmax(e.dot(x, w, ((1,), (0,))), 1)

    size, _, halves = bytes_kept([f32(8, 16), f32(16, 32)], [CONSTANT, PRIMAL], program)
    assert kept(halves)[1:] == ["softmax"] and size == 0  # it is the output


def test_cross_entropy_keeps_logits_and_one_number_a_row() -> None:
    def program(e: Emitter, x: SSAValue, w: SSAValue, target: SSAValue) -> SSAValue:
        loss, _ = e.cross_entropy(e.dot(x, w, ((1,), (0,))), target, -100)
        return e.scaled(e.sum(loss, (0,)), 1 / 8)

    types = [f32(8, 16), f32(16, 32), ir.tensor((8,), "i64")]
    size, _, _ = bytes_kept(types, [CONSTANT, PRIMAL, CONSTANT], program)
    assert size == 4 * (8 * 32 + 8)


def test_gelu_keeps_its_input_alone() -> None:
    def program(e: Emitter, x: SSAValue, w: SSAValue, b: SSAValue, w2: SSAValue) -> SSAValue:
        return total(e, e.dot(gelu(e, linear(e, x, w, b)), w2, ((1,), (0,))))

    size, _, halves = bytes_kept([f32(8, 16), f32(16, 32), f32(32), f32(32, 4)], [PRIMAL] * 4, program)
    assert size == 4 * 8 * 32
    assert sum(isinstance(op, prim.GeluOp) for op in halves.recomputed) == 1


def test_a_gated_product_is_computed_again_from_both_factors() -> None:
    """silu(a) * b: both are needed for the gradients anyway."""

    def program(e: Emitter, x: SSAValue, w: SSAValue, u: SSAValue, v: SSAValue) -> SSAValue:
        a, b = e.dot(x, w, ((1,), (0,))), e.dot(x, u, ((1,), (0,)))
        gated = e.mul(e.mul(a, e.logistic(a)), b)
        return total(e, e.dot(gated, v, ((1,), (0,))))

    size, _, halves = bytes_kept([f32(8, 16), f32(16, 32), f32(16, 32), f32(32, 4)], [PRIMAL] * 4, program)
    assert size == 2 * 4 * 8 * 32
    assert not [v for v in halves.saved if isinstance(v.owner, prim.MulOp)]


def test_a_deep_sum_is_not_computed_from_all_its_terms() -> None:
    """x = relu(x @ w + x), as in a residual network of which every result is needed: every other one is kept."""

    def program(e: Emitter, x: SSAValue, *weights: SSAValue) -> SSAValue:
        for w in weights:
            x = e.relu(e.add(e.mul(e.dot(x, w, ((1,), (0,))), x), x))
        return total(e, x)

    plan, halves = check(differentiated([f32(16, 16)] * 9, [PRIMAL] * 9, program))
    for value in halves.saved:
        assert plan.cones[value].whole or plan.cones[value].reads <= 2.25 * 16 * 16 * 4
    kept_sums = [v for v in halves.saved if isinstance(v.owner, prim.ReluOp)]
    assert len(kept_sums) >= 3


B, T, D, H = 4, 16, 32, 4


def block(e: Emitter, x: SSAValue, w: Sequence[SSAValue]) -> SSAValue:
    """One transformer layer: x + attention(norm x), then x + mlp(norm x)."""
    gain1, shift1, w_qkv, b_qkv, w_out, b_out, gain2, shift2, w_up, b_up, w_down, b_down = w
    qkv = linear(e, layer_norm(e, x, gain1, shift1), w_qkv, b_qkv)
    parts = [e.slice(qkv, 2, i * D, (i + 1) * D) for i in range(3)]
    q, k, v = (e.transpose(e.reshape(p, (B, T, H, D // H)), (0, 2, 1, 3)) for p in parts)
    o, _ = e.attention(q, k, v, None, 1 / math.sqrt(D // H), True)
    merged = e.reshape(e.transpose(o, (0, 2, 1, 3)), (B, T, D))
    x = e.add(x, linear(e, merged, w_out, b_out))
    return e.add(x, linear(e, gelu(e, linear(e, layer_norm(e, x, gain2, shift2), w_up, b_up)), w_down, b_down))


BLOCK = [
    f32(D), f32(D), f32(D, 3 * D), f32(3 * D), f32(D, D), f32(D),
    f32(D), f32(D), f32(D, 4 * D), f32(4 * D), f32(4 * D, D), f32(D),
]  # fmt: skip


def gpt(layers: int) -> FuncOp:
    def program(e: Emitter, start: SSAValue, *weights: SSAValue) -> SSAValue:
        x = start
        for i in range(layers):
            x = block(e, x, weights[12 * i : 12 * (i + 1)])
        return total(e, x)

    types = [f32(B, T, D), *BLOCK * layers]
    return differentiated(types, [CONSTANT, *[PRIMAL] * 12 * layers], program)


def test_a_transformer_layer_keeps_what_its_contractions_give_and_the_stream() -> None:
    """Per layer: x twice (once less for the first), qkv, attention's result and log-sums, mlp input, row statistics."""
    token = 4 * B * T * D
    rows, lse = 4 * B * T, 4 * B * T * H
    sizes: list[int] = []
    for layers in (1, 2, 3):
        plan, halves = check(gpt(layers), "min-cut-late")
        assert not [op for op in halves.recomputed if isinstance(op, (prim.ContractionOp, prim.StructuredOp))]
        sizes.append(saved_bytes(plan, halves))
    a_layer = (2 + 3 + 1 + 4) * token + 4 * rows + lse
    assert sizes == [a_layer - token, 2 * a_layer - token, 3 * a_layer - token]


def test_recomputation_does_not_grow_with_depth() -> None:
    def again(layers: int) -> int:
        _, halves = check(gpt(layers), "min-cut-late")
        return len(halves.recomputed)

    one, two, three = map(again, (1, 2, 3))
    assert three - two == two - one


def test_backward_holds_less_than_with_everything_kept() -> None:
    """Recomputation stands at its first use, so that it does not fill the memory that keeping less saved."""
    func = gpt(3)
    joint = Joint.of(func)
    cut, everything = measure(plan_min_cut(joint), 0.0), measure(plan_default(joint), 0.0)
    assert cut.saved < 0.6 * everything.saved
    assert cut.peak < 0.7 * everything.peak


def test_the_positions_of_a_max_pool_are_kept_in_a_byte() -> None:
    """Of 8 x 8 positions each fits; the copy that backward reads is widened again."""

    def program(e: Emitter, x: SSAValue, w: SSAValue) -> SSAValue:
        y = e.conv(x, w, (1, 1), (1, 1), (1, 1))
        pooled, _ = e.max_pool(y, (2, 3), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
        return total(e, e.sin(pooled))

    types = [f32(2, 3, 8, 8), f32(4, 3, 3, 3)]
    size, _, halves = bytes_kept(types, [CONSTANT, PRIMAL], program)
    places = 2 * 4 * 4 * 4
    assert [ir.dtype_of(v) for v in halves.saved[1:]] == ["f32", "u8"]
    assert size == places * (1 + 4)
    assert halves.backward is not None
