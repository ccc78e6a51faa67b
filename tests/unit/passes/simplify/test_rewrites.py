"""Every rewrite keeps every bit: each small program before and after, on numbers of all kinds."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import autodiff, prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from isthmus.passes.simplify.constants import rounded, wrapped
from isthmus.passes.simplify.simplify import simplify
from isthmus.runtime.interpret import run
from isthmus.runtime.interpret_table import DTYPES
from tests.unit.passes.autodiff.oracle import program, types_of, verified

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 1e30, 1e-40, 5e-324, math.inf, -math.inf, math.nan, 65504.0, 3.0]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal but for which NaN it is."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    nans = a.isnan()
    if not torch.equal(nans, b.isnan()):
        return False
    kind = BITS[a.element_size()]
    return torch.equal(a[~nans].view(kind), b[~nans].view(kind))


def inputs_of(dtype: str, count: int) -> list[Tensor]:
    """All pairs of special numbers, so that every case meets every other."""
    if dtype == "i1":
        values: list[object] = [False, True]
    elif ir.is_integer(dtype):
        values = [0, 1, 2, 5, 100, 127] + ([] if dtype == "u8" else [-1, -128])
    else:
        values = list(SPECIAL)
    columns = zip(*itertools.product(values, repeat=min(count, 2)), strict=True)
    tensors = [torch.tensor(c).to(DTYPES[dtype]) for c in columns]
    return (tensors * count)[:count]


def check(build: object, inputs: list[Tensor], leaves: int | None = None) -> None:
    func = program(build, types_of(inputs), wanted=[])  # pyright: ignore[reportArgumentType]
    before = run(func, inputs)
    simplify(func)
    after = run(verified(func), inputs)
    for a, b in zip(before, after, strict=True):
        assert same_bits(a, b), f"{a} became {b}"
    if leaves is not None:
        assert sum(1 for _ in func.body.block.ops) - 1 == leaves


NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, math.inf, math.nan, 1e-30)
FLOATS = ("f64", "f32", "bf16", "f16")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("cls", [prim.AddOp, prim.SubOp, prim.MulOp, prim.DivOp, prim.MaxOp, prim.MinOp])
def test_arithmetic_with_a_constant(cls: type[prim.BinaryOp], dtype: str) -> None:
    (x,) = inputs_of(dtype, 1)
    for value in NUMBERS:
        check(lambda e, x, v=value: e.op(cls, (x, e.const_like(v, x))).results[0], [x])
        check(lambda e, x, v=value: e.op(cls, (e.const_like(v, x), x)).results[0], [x])
        for other in NUMBERS:
            check(lambda e, x, v=value, w=other: e.op(cls, (e.const_like(v, x), e.const_like(w, x))).results[0], [x])


UNARY = (prim.NegOp, prim.AbsOp, prim.FloorOp, prim.CeilOp, prim.RoundOp, prim.TruncOp, prim.SqrtOp, prim.ReluOp)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_functions_and_of_constants(dtype: str) -> None:
    (x,) = inputs_of(dtype, 1)
    for outer, inner in itertools.product(UNARY, UNARY):
        check(lambda e, x, f=outer, g=inner: e.op(f, (e.op(g, (x,)).results[0],)).results[0], [x])
    for cls, value in itertools.product(UNARY, (*NUMBERS, -0.5, 2.5, -3.7, 1e5)):
        check(lambda e, x, f=cls, v=value: e.op(f, (e.const_like(v, x),)).results[0], [x])


@pytest.mark.parametrize("dtype", FLOATS)
def test_negations_move_into_sums_and_products(dtype: str) -> None:
    inputs = inputs_of(dtype, 2)
    for cls, left, right in itertools.product((prim.AddOp, prim.SubOp, prim.MulOp), (0, 1), (0, 1)):

        def build(e: Emitter, a: SSAValue, b: SSAValue, cls=cls, left=left, right=right) -> SSAValue:  # pyright: ignore
            return e.op(cls, (e.neg(a) if left else a, e.neg(b) if right else b)).results[0]

        check(build, inputs)
        check(lambda e, a, b, cls=cls: e.op(cls, (e.neg(a), e.const_like(3.0, b))).results[0], inputs)


def test_conversions_in_a_row() -> None:
    names = [n for n in DTYPES if not ir.is_complex(n)]
    for source, middle, last in itertools.product(names, names, names):
        (x,) = inputs_of(source, 1)
        if x.is_floating_point():
            x = x[x.isfinite() & (x.abs() < 100) & (x >= 0)]  # elsewhere a conversion to an integer is undefined
        check(
            lambda e, x, m=middle, d=last: e.convert(e.op(prim.ConvertOp, (x,), None, (ir.like(x.type, m),)).y, d), [x]
        )


def test_booleans() -> None:
    p, q = inputs_of("i1", 2)
    (x, y) = (t[:4] for t in inputs_of("f32", 2))
    for value, cls in itertools.product((True, False), (prim.AndOp, prim.OrOp, prim.XorOp)):
        check(lambda e, p, q, v=value, c=cls: e.binary(c, p, e.const_like(v, p)), [p, q])
    check(lambda e, p, q: e.not_(e.not_(p)), [p, q], leaves=0)
    check(lambda e, p, q: e.and_(p, p), [p, q], leaves=0)
    check(lambda e, p, x, y: e.select(e.not_(p), e.select(e.not_(p), x, y), x), [p, x, y])
    for predicate in ("eq", "ne", "lt", "le", "gt", "ge"):
        for dtype in ("f32", "i32"):
            inputs = inputs_of(dtype, 2)
            build = lambda e, a, b, p=predicate: e.not_(e.cmp(p, a, b))  # noqa: E731
            check(build, inputs, leaves=1 if dtype == "i32" or predicate in ("eq", "ne") else 2)


@pytest.mark.parametrize("dtype", ["u8", "i8", "i32", "i64"])
def test_integers_wrap(dtype: str) -> None:
    (x,) = inputs_of(dtype, 1)
    for cls, v, w in itertools.product(
        (prim.AddOp, prim.SubOp, prim.MulOp, prim.MaxOp), (0, 1, 100, 127), (0, 1, 3, 127)
    ):
        check(lambda e, x, c=cls, v=v, w=w: e.op(c, (e.const_like(v, x), e.const_like(w, x))).results[0], [x])
        check(lambda e, x, c=cls, v=v: e.op(c, (x, e.const_like(v, x))).results[0], [x])
    check(lambda e, x: e.not_(e.const_like(5, x)), [x])


@given(st.floats(allow_nan=False), st.sampled_from(["f64", "f32", "bf16", "f16"]))
def test_rounding_is_torchs(value: float, dtype: str) -> None:
    expected = (
        torch.tensor(value, dtype=torch.float64)
        .to(torch.float32 if dtype == "bf16" else DTYPES[dtype])
        .to(DTYPES[dtype])
    )
    found = rounded(value, dtype)
    assert found is not None
    assert struct.pack("<d", found) == struct.pack("<d", expected.item())


@given(st.integers(-(2**70), 2**70), st.sampled_from(["u8", "i8", "i16", "i32", "i64"]))
def test_integers_keep_their_low_bits(value: int, dtype: str) -> None:
    bits = 8 * ir.itemsize(dtype)
    found = wrapped(value, dtype)
    assert (found - value) % 2**bits == 0
    assert torch.tensor(found, dtype=DTYPES[dtype]).item() == found


@st.composite
def movements(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    kinds = st.sampled_from(
        ["slice", "pad", "concat", "reverse", "transpose", "broadcast", "reshape", "add", "sin", "scale"]
    )
    small = st.integers(0, 12)
    return draw(st.lists(st.tuples(kinds, small, small, small), min_size=2, max_size=10))


def moved(e: Emitter, x: SSAValue, y: SSAValue, steps: list[tuple[str, int, int, int]]) -> SSAValue:
    for kind, i, j, n in steps:
        shape = ir.shape_of(x)
        rank, size = len(shape), ir.numel(x)
        d = i % rank
        length = shape[d]
        assert isinstance(length, int) and isinstance(size, int)
        if kind == "slice" and length:
            start = j % length
            x = e.slice(x, d, start, start + 1 + n % (length - start), 1 + j % 3)
        elif kind == "pad" and size < 500:
            x = e.pad(x, d, j % 3, n % 3, i % 2, (0.0, -0.0, 1.5)[n % 3])
        elif kind == "concat" and size < 500:
            x = e.concat([x, *([x, y] if ir.shape_of(y) == shape else [x])], d)
        elif kind == "reverse":
            x = e.reverse(x, (d,))
        elif kind == "transpose":
            x = e.transpose(x, [*range(1, rank), 0])
        elif kind == "broadcast" and size < 500 and rank < 4:
            x = e.broadcast(x, (*shape[:d], 2, *shape[d:]), [k if k < d else k + 1 for k in range(rank)])
        elif kind == "reshape":
            x = e.reshape(x, (size,) if j % 2 else (1, *shape))
        elif kind == "add":
            other = e.pad(e.slice(x, d, 0, length // 2), d, 0, length - length // 2, 0, -0.0)
            rest = e.pad(e.slice(x, d, length // 2, length), d, length // 2, 0, 0, -0.0)
            x = e.add(other, rest)
        elif kind == "sin":
            x = e.sin(x)
        elif kind == "scale":
            x = e.mul(x, e.broadcast(e.const((0.0, -0.0, 3.0)[j % 3], (), "f64"), shape, ()))
    return x


@settings(max_examples=300, deadline=None)
@given(movements())
def test_movements_in_a_row(steps: list[tuple[str, int, int, int]]) -> None:
    x = torch.arange(12, dtype=torch.float64).reshape(3, 4) - 5
    x[0, 0] = -0.0
    check(lambda e, x, y: moved(e, x, y, steps), [x, x + 0.5])


def test_what_stands_for_a_tagged_op_is_tagged() -> None:
    def build(e: Emitter, x: SSAValue) -> SSAValue:
        y = e.slice(e.slice(x, 0, 1, 8), 0, 1, 4)
        for op in (y.owner, y.owner.x.owner):  # pyright: ignore
            op.attributes[autodiff.RECOMPUTE] = Literal.of("must_recompute")  # pyright: ignore
        return y

    func = program(build, [ir.tensor((9,), "f32")], wanted=[])
    simplify(func)
    (made, _) = func.body.block.ops
    assert ir.literal(made, autodiff.RECOMPUTE) == "must_recompute"


def test_library_calls_are_not_shared() -> None:
    def build(e: Emitter, x: SSAValue) -> SSAValue:
        return e.add(*(e.opaque("bernoulli", (x,), (ir.Operand(0),), (x.type,))[0] for _ in range(2)))

    func = program(build, [ir.tensor((9,), "f32")], wanted=[])
    simplify(func)
    assert sum(isinstance(op, prim.OpaqueOp) for op in func.body.block.ops) == 2
