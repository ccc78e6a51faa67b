"""Every primitive under vectorize, against a loop over examples: values, gradients through it, gradients inside."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from isthmus import ir
from isthmus.dialects import autodiff, new_context, prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Signature
from isthmus.ir import Literal
from isthmus.passes.vectorize.table import LOOPED, rule_of
from isthmus.passes.vectorize.vectorize import VectorizePass
from tests.unit.passes.autodiff.oracle import Build, cotangents, interpreted, joint_of, program, types_of, verified
from tests.unit.passes.autodiff.sample import Sample
from tests.unit.passes.autodiff.samples import SAMPLES
from tests.unit.passes.vectorize.samples import MORE_SAMPLES

SIZE = 3
ALL_SAMPLES = [*SAMPLES, *MORE_SAMPLES]


def examples(tensor: Tensor, dim: int = 0) -> Tensor:
    """Examples with the same elements in other places: still in each op's domain and range."""
    return torch.stack([tensor.flatten().roll(i).reshape(tensor.shape) for i in range(SIZE)], dim)


def mapped_inputs(sample: Sample, which: str) -> list[int]:
    count = len(sample.inputs)
    return {"all": list(range(count)), "first": [0], "last": [count - 1]}[which]


def batch(e: Emitter, build: Build, operands: Sequence[SSAValue], dims: Sequence[int | None]) -> list[SSAValue]:
    """`autodiff.batch` of what `build` makes for one example."""
    types: list[ir.Attribute] = []
    for operand, at in zip(operands, dims, strict=True):
        shape = ir.shape_of(operand)
        types.append(ir.tensor(shape if at is None else (*shape[:at], *shape[at + 1 :]), ir.dtype_of(operand)))
    block = Block(arg_types=types)
    built = build(Emitter(block), *block.args)
    results = [built] if isinstance(built, SSAValue) else list(built)
    block.add_op(ir.create_op(autodiff.YieldOp, results, ()))
    mapped = [(v, at) for v, at in zip(operands, dims, strict=True) if at is not None]
    size = ir.shape_of(mapped[0][0])[mapped[0][1]]
    literals = {"mapped": Literal.of(tuple(dims)), "size": Literal.of(size), "randomness": Literal.of("error")}
    whole = [ir.tensor((size, *ir.shape_of(r)), ir.dtype_of(r)) for r in results]
    op = ir.create_op(autodiff.BatchOp, operands, whole, literals, regions=[Region(block)])
    e.block.add_op(op)
    return list(op.results)


def vectorized(build: Build, inputs: Sequence[Tensor], wanted: Sequence[int] | None = ()):
    module = ModuleOp([program(build, types_of(inputs), wanted)])
    VectorizePass().apply(new_context(), module)
    func = verified(ir.function(module, "main"))
    assert not any(isinstance(op, autodiff.BatchOp) for op in func.walk())
    return func


def loop(function, inputs: Sequence[Tensor], mapped: Sequence[int], dim: int = 0) -> list[Tensor]:
    """The results example by example, stacked."""
    pick = [[t.select(dim, k) if i in mapped else t for i, t in enumerate(inputs)] for k in range(SIZE)]
    return [torch.stack(column) for column in zip(*(function(*one) for one in pick), strict=True)]


def close(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_every_primitive_has_a_rule_and_a_sample() -> None:
    made = {s.cls for s in ALL_SAMPLES}
    nothing_to_map = (prim.SourceOp, prim.YieldOp)
    for cls in (c for c in prim.PRIM_OPS if not issubclass(c, nothing_to_map)):
        assert rule_of(cls) is not None, f"{cls.name} would be looped"
        assert any(issubclass(m, cls) for m in made) or cls in INDIRECT, f"{cls.name} has no sample"


INDIRECT = {
    *(prim.CmpOp, prim.AndOp, prim.OrOp, prim.XorOp, prim.NotOp, prim.ShlOp, prim.ShrOp),  # on integers, below
    *(prim.RngOp, prim.OpaqueOp),  # random numbers and library calls, below
}
"""Primitives that are tested otherwise."""


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("which", ["all", "first", "last"])
@pytest.mark.parametrize("sample", ALL_SAMPLES, ids=lambda s: f"{s.cls.name[5:]} {s.name}".strip())
def test_values(sample: Sample, which: str, dim: int) -> None:
    mapped = mapped_inputs(sample, which)
    if dim == 1 and any(sample.inputs[i].dim() == 0 for i in mapped):
        pytest.skip("a number has no dimension 1")
    inputs = [examples(t, dim) if i in mapped else t for i, t in enumerate(sample.inputs)]
    dims = [dim % t.dim() if i in mapped else None for i, t in enumerate(inputs)]
    func = vectorized(lambda e, *xs: batch(e, sample.build, xs, dims), inputs)
    one = interpreted(program(sample.build, types_of(sample.inputs), wanted=[]))
    close(interpreted(func)(*inputs), loop(one, inputs, mapped, dim))
    assert not any(LOOPED in op.attributes for op in func.walk())


@pytest.mark.parametrize("sample", ALL_SAMPLES, ids=lambda s: f"{s.cls.name[5:]} {s.name}".strip())
def test_nested(sample: Sample) -> None:
    """The inner vmap maps the first input, the outer one all others and the first along its last dimension."""
    first = examples(examples(sample.inputs[0], 0), -1)
    inputs = [first, *(examples(t) for t in sample.inputs[1:])]
    outer = [first.dim() - 1, *(0 for _ in inputs[1:])]
    inner = [0, *(None for _ in inputs[1:])]
    build = lambda e, *xs: batch(e, lambda e, *ys: batch(e, sample.build, ys, inner), xs, outer)  # noqa: E731
    one = interpreted(program(sample.build, types_of(sample.inputs), wanted=[]))
    columns = [loop(one, [first[..., k], *(t[k] for t in inputs[1:])], [0]) for k in range(SIZE)]
    close(interpreted(vectorized(build, inputs))(*inputs), [torch.stack(c) for c in zip(*columns, strict=True)])


@pytest.mark.parametrize("which", ["all", "first", "last"])
@pytest.mark.parametrize("sample", ALL_SAMPLES, ids=lambda s: f"{s.cls.name[5:]} {s.name}".strip())
def test_gradients_through_and_inside(sample: Sample, which: str) -> None:
    mapped = mapped_inputs(sample, which)
    inputs = [examples(t) if i in mapped else t for i, t in enumerate(sample.inputs)]
    dims = [0 if i in mapped else None for i in range(len(inputs))]
    one = joint_of(program(sample.build, types_of(sample.inputs)))
    signature = Signature.of(one)
    if not signature.gradients:
        return
    whole = joint_of(vectorized(lambda e, *xs: batch(e, sample.build, xs, dims), inputs, None))
    values = interpreted(vectorized(lambda e, *xs: batch(e, sample.build, xs, dims), inputs))(*inputs)
    assert Signature.of(whole).gradients.keys() == signature.gradients.keys()
    assert tuple(Signature.of(whole).tangents) == tuple(signature.tangents)
    seeds = cotangents([values[k] for k in signature.tangents], 1)
    per_example = range(len(inputs), len(inputs) + len(seeds))
    apart = loop(interpreted(one), [*inputs, *seeds], [*mapped, *per_example])
    found = interpreted(whole)(*inputs, *seeds)
    for i, place in signature.gradients.items():
        wanted = apart[place] if i in mapped else apart[place].sum(0)
        close([found[Signature.of(whole).gradients[i]]], [wanted])
    # the same request for gradients, made for each example in the mapped function
    count = len(sample.inputs)
    wanted = [place for i, place in signature.gradients.items()]

    def gradient(e: Emitter, *xs: SSAValue) -> list[SSAValue]:
        built = sample.build(e, *xs[:count])
        outs = [built] if isinstance(built, SSAValue) else list(built)
        outs = [outs[k] for k in signature.tangents]
        ins = [xs[i] for i in signature.gradients]
        literals = {
            "outs": len(outs),
            "ins": len(ins),
            "seeds": tuple(ir.Operand(len(outs) + len(ins) + k) for k in range(len(outs))),
            "create_graph": True,
            "present": tuple(range(len(ins))),
        }
        op = ir.create_op(
            autodiff.VjpOp,
            [*outs, *ins, *xs[count:]],
            [v.type for v in ins],
            {k: Literal.of(v) for k, v in literals.items()},
        )
        e.block.add_op(op)
        return list(op.results)

    inside = vectorized(lambda e, *xs: batch(e, gradient, xs, [*dims, *(0 for _ in seeds)]), [*inputs, *seeds])
    close(interpreted(inside)(*inputs, *seeds), [apart[place] for place in wanted])


def test_integers() -> None:
    a, b = torch.arange(12).reshape(3, 4), torch.tensor([3, 1, 2, 0])

    def build(e: Emitter, a: SSAValue, b: SSAValue) -> list[SSAValue]:
        classes = (prim.AndOp, prim.OrOp, prim.XorOp, prim.ShlOp, prim.ShrOp)
        return [*(e.binary(c, a, b) for c in classes), e.unary(prim.NotOp, a), e.cmp("lt", a, b)]

    func = vectorized(lambda e, *xs: batch(e, build, xs, [0, None]), [a, b])
    wanted = [a & b, a | b, a ^ b, a << b, a >> b, ~a, a < b]
    close(interpreted(func)(a, b), wanted)


def test_random_numbers_of_examples_are_apart() -> None:
    """Two draws a key; each example has numbers that no other example and no other draw has."""
    keys = torch.tensor([5, 6, 7])

    def build(e: Emitter, key: SSAValue) -> list[SSAValue]:
        return [e.rng(key, "uniform", offset, (4,), "f64") for offset in (0, 4)]

    first, second = interpreted(vectorized(lambda e, *xs: batch(e, build, xs, [0]), [keys]))(keys)
    assert torch.cat([first, second]).unique().numel() == 24
    same = interpreted(
        vectorized(lambda e, x, k: batch(e, lambda e, _, k: build(e, k), [x, k], [0, None]), [keys, keys[0]])
    )
    for one, wanted in zip(
        same(keys, keys[0]), interpreted(program(build, types_of([keys[0]]), []))(keys[0]), strict=True
    ):
        torch.testing.assert_close(one, wanted.expand(3, 4))


def test_a_library_call_that_nobody_can_batch_is_a_loop_that_says_so() -> None:
    x = torch.randn(3, 4)
    build = lambda e, x: e.opaque("histc.default", (x,), (ir.Operand(0), 4, -1.0, 1.0), (x.type,))  # noqa: E731
    func = vectorized(lambda e, *xs: batch(e, build, xs, [0]), [x])
    (looped,) = (op for op in func.walk() if LOOPED in op.attributes)
    assert isinstance(looped, prim.ScanOp)
    assert ir.literal(looped, LOOPED) == ("histc.default", "torch has no batched form of this library call")
    close(interpreted(func)(x), [torch.stack([torch.histc(row, 4, -1, 1) for row in x])])
