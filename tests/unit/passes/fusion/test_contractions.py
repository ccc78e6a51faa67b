"""Products with pointwise work around them keep their meaning when they become kernels of ours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prim_programs import Program, check
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.prim import Emitter

OWN = "fuse{contractions=own}"
UNARY = (prim.NegOp, prim.TanhOp, prim.AbsOp, prim.ErfOp)
BIG = st.sampled_from([32, 40, 48])


def pointwise(e: Emitter, draw: st.DrawFn, value: SSAValue, others: list[SSAValue]) -> SSAValue:
    """Some steps on a value, with rows and columns of others."""
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            value = e.unary(draw(st.sampled_from(UNARY)), value)
        else:
            other = draw(st.sampled_from(others))
            dims = tuple(d for d, s in enumerate(ir.shape_of(value)) if ir.shape_of(other) == (s,))[:1]
            if ir.shape_of(other) == ir.shape_of(value):
                value = e.mul(value, other)
            elif dims:
                value = e.add(value, e.broadcast(other, ir.shape_of(value), dims))
    return value


@st.composite
def programs(draw):
    m, n, k = draw(BIG), draw(BIG), draw(BIG)
    batch = draw(st.sampled_from([(), (3,)]))
    turned = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    shapes = [(*batch, m, k), (*batch, n, k) if turned else (*batch, k, n), (m,), (n,), (k,), (*batch, m, n)]
    arguments = [torch.randn(s, generator=generator, dtype=torch.float64) * 0.3 for s in shapes]
    program = Program(arguments)
    e, args = program.e, list(program.args)
    a, b = pointwise(e, draw, args[0], args[2:5]), pointwise(e, draw, args[1], args[2:5])
    r = len(batch)
    batches = tuple(range(r))
    y = e.dot(a, b, ((r + 1,), (r + 1 if turned else r,)), (batches, batches))
    z = pointwise(e, draw, y, args[2:])
    results = [z]
    if draw(st.booleans()):
        results.append(e.reduce("add", z, dims=tuple(range(r + 1))))
    if draw(st.booleans()):
        results.append(y)
    if draw(st.booleans()):
        results.append(a)
    return program.module(results), arguments


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_products(case):
    module, arguments = case
    check(module, arguments, [OWN, "schedule", "plan-memory"])


@pytest.mark.parametrize("own", [True, False])
def test_a_factor_is_not_written_for_the_product(own):
    x, w = (torch.randn(64, 64, dtype=torch.float64) for _ in range(2))
    program = Program([x, w])
    e = program.e
    y = e.dot(e.neg(program.args[0]), program.args[1], ((1,), (0,)))
    after = check(program.module([y]), [x, w], [OWN if own else "fuse", "schedule", "plan-memory"])
    func = ir.function(after, "main")
    kinds = [type(op) for op in kernel.launches(func)]
    assert kinds == ([kernel.ContractOp] if own else [kernel.FusedOp, kernel.ExternOp])
    assert func.attributes["isthmus.temporary_bytes"].data == (0 if own else x.nbytes)  # pyright: ignore


def test_sums_over_rows_have_an_entry_for_each_part_of_the_grid():
    x, w = (torch.randn(m, 64, dtype=torch.float64) for m in (4096, 64))
    program = Program([x, w])
    e = program.e
    y = e.dot(program.args[0], program.args[1], ((1,), (0,)))
    z = e.tanh(y)
    after = check(program.module([z, e.reduce("add", z, dims=(0,))]), [x, w], [OWN, "schedule", "plan-memory"])
    contraction, _ = kernel.launches(ir.function(after, "main"))
    assert isinstance(contraction, kernel.ContractOp)
    outer, down, _ = contraction.grid.data  # pyright: ignore
    assert 1 < outer * down <= ir.shape_of(contraction.results[1])[0]
