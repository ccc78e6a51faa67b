"""Random programs of smooth primitives: the joint function against torch autograd of the interpreted program."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Signature
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.passes.autodiff.jvp import jvp
from isthmus.passes.simplify.form_fma import form_fma
from isthmus.passes.simplify.simplify import simplify
from isthmus.runtime.interpret import run
from tests.unit.passes.autodiff.oracle import FALLBACKS, check_orders, joint_of, program, types_of, verified
from tests.unit.passes.autodiff.sample import numbers

SMOOTH = (prim.SinOp, prim.CosOp, prim.TanhOp, prim.LogisticOp, prim.NegOp, prim.ErfOp, prim.AtanOp, prim.AsinhOp)
JOINING = (prim.AddOp, prim.SubOp, prim.MulOp)


@st.composite
def programs(draw: st.DrawFn):
    """A list of steps; each picks operands by position among the values so far, modulo what fits."""
    steps = st.tuples(st.integers(0, 11), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
    return draw(st.lists(steps, min_size=1, max_size=12)), draw(st.integers(1, 3))


def build_from(steps: list[tuple[int, int, int, int]], outputs: int):
    def build(e: Emitter, *inputs: SSAValue) -> list[SSAValue]:
        values = list(inputs)
        for kind, i, j, n in steps:
            values.append(step(e, values, kind, i, j, n))
        return values[-outputs:]

    return build


def step(e: Emitter, values: list[SSAValue], kind: int, i: int, j: int, n: int) -> SSAValue:
    x = values[i % len(values)]
    shape = ir.shape_of(x)
    rank = len(shape)
    d = n % rank if rank else 0
    same = [v for v in values if ir.shape_of(v) == shape]
    y = same[j % len(same)]
    if kind <= 1 or (rank == 0 and kind > 4):
        return e.unary(SMOOTH[n % len(SMOOTH)], x)
    if kind <= 3:
        return e.binary(JOINING[n % len(JOINING)], x, y)
    if kind == 4:
        return e.div(x, e.shifted(e.square(y), 1.0))
    if kind == 5:
        return e.sum(x, (d,))
    if kind == 6:
        return e.broadcast(x, (*shape[:d], 2, *shape[d:]), [k if k < d else k + 1 for k in range(rank)])
    if kind == 7:
        return e.transpose(x, [*range(1, rank), 0])
    if kind == 8:
        size = shape[d]
        assert isinstance(size, int)
        start = j % size
        return e.slice(x, d, start, start + 1 + n % (size - start))
    if kind == 9:
        return e.concat([x, y, x], d) if j % 2 else e.pad(x, d, j % 3, n % 2, j % 2, 0.5)
    if kind == 10:
        return e.softmax(x, d) if j % 2 else e.cumulative("mul" if n % 2 else "add", x, d, bool(j % 4))
    matrices = [v for v in values if len(ir.shape_of(v)) == rank and ir.shape_of(v)[-1] == shape[-1]]
    other = matrices[j % len(matrices)]
    return e.tanh(e.dot(x, other, ((rank - 1,), (rank - 1,)))) if rank == 1 or j % 3 else e.reverse(x, (d,))


INPUTS = (numbers(2, 3), numbers(3, seed=1), numbers(2, 3, seed=2))
SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def small_enough(build: object) -> bool:
    func = program(build, types_of(INPUTS))  # pyright: ignore[reportArgumentType]
    return all(ir.numel(r) <= 4000 and len(ir.shape_of(r)) <= 6 for op in func.body.block.ops for r in op.results)  # pyright: ignore


@SETTINGS
@given(programs())
def test_gradients_to_second_order(case: tuple[list[tuple[int, int, int, int]], int]) -> None:
    build = build_from(*case)
    if small_enough(build):
        check_orders(build, INPUTS, orders=2, rtol=1e-7, atol=1e-7)


@SETTINGS
@given(programs())
def test_forward_mode_is_the_transpose_of_reverse_mode(case: tuple[list[tuple[int, int, int, int]], int]) -> None:
    """⟨t, J·u⟩ = ⟨Jᵀ·t, u⟩."""
    build = build_from(*case)
    if not small_enough(build):
        return
    func = program(build, types_of(INPUTS))
    directions = [numbers(*x.shape, seed=9 + i) for i, x in enumerate(INPUTS)]
    values = run(verified(jvp(func, FALLBACKS)), [*INPUTS, *directions])
    count = len(func.function_type.outputs)
    tangents = [numbers(*v.shape, seed=20 + i) for i, v in enumerate(values[:count])]
    joint = joint_of(func)
    arguments = [a for a in joint.body.block.args][len(INPUTS) :]
    assert len(arguments) == count
    gradients = run(joint, [*INPUTS, *tangents])[count:]
    pushed = sum((t * j).sum() for t, j in zip(tangents, values[count:], strict=True))
    asked = [u for u, arg in zip(directions, range(len(INPUTS)), strict=True) if arg in gradient_arguments(joint)]
    pulled = sum((g * u).sum() for g, u in zip(gradients, asked, strict=True))
    torch.testing.assert_close(pushed, pulled, rtol=1e-7, atol=1e-7)


def computing(func: FuncOp) -> int:
    """How many ops do more than look at a value in another way."""
    return sum(not isinstance(op, (prim.ViewOp, prim.ConstOp)) for op in func.walk())


def gradient_arguments(joint: FuncOp) -> dict[int, int]:
    return Signature.of(joint).gradients


@SETTINGS
@given(programs())
def test_simplify_keeps_every_bit(case: tuple[list[tuple[int, int, int, int]], int]) -> None:
    build = build_from(*case)
    if not small_enough(build):
        return
    func = program(build, types_of(INPUTS))
    joint = differentiate(func, FALLBACKS)
    tangents = [
        numbers(*ir.shape_of(a), seed=3 + i)  # pyright: ignore
        for i, a in enumerate(joint.body.block.args[len(INPUTS) :])
    ]
    before = run(joint, [*INPUTS, *tangents])
    size = computing(joint)
    simplify(joint)
    verified(joint)
    after = run(joint, [*INPUTS, *tangents])
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.signbit(), b.signbit())
    assert computing(joint) <= size
    form_fma(joint)
    fused = run(verified(joint), [*INPUTS, *tangents])
    torch.testing.assert_close(fused, after, rtol=1e-9, atol=1e-9)
