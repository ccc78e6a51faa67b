"""Every primitive under vectorize, against a loop over examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region

from isthmus import ir
from isthmus.dialects import autodiff, new_context
from isthmus.ir import Literal
from isthmus.passes.vectorize.vectorize import VectorizePass
from tests.unit.passes.autodiff.oracle import interpreted, program, types_of, verified
from tests.unit.passes.autodiff.samples import SAMPLES, Sample

SIZE = 3


def _examples(tensor: Tensor) -> Tensor:
    """Examples with the same elements in other places: still in each op's domain and range."""
    return torch.stack([tensor.flatten().roll(i).reshape(tensor.shape) for i in range(SIZE)])


@pytest.mark.parametrize("which", ["all", "first", "last"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_agrees_with_a_loop(sample: Sample, which: str) -> None:
    count = len(sample.inputs)
    mapped = {"all": range(count), "first": [0], "last": [count - 1]}[which]
    inputs = [_examples(t) if i in mapped else t for i, t in enumerate(sample.inputs)]
    one = program(sample.build, types_of(sample.inputs), wanted=[])
    run_one = interpreted(one)
    loop = [run_one(*(t[k] if i in mapped else t for i, t in enumerate(inputs))) for k in range(SIZE)]

    def build(e, *operands):
        types = types_of(sample.inputs)
        block = Block(arg_types=types)
        inner = type(e)(block)
        built = sample.build(inner, *block.args)
        results = [built] if isinstance(built, ir.SSAValue) else list(built)
        block.add_op(ir.create_op(autodiff.YieldOp, results, ()))
        op = ir.create_op(
            autodiff.BatchOp,
            operands,
            [ir.tensor((SIZE, *ir.shape_of(r)), ir.dtype_of(r)) for r in results],
            {
                "mapped": Literal.of(tuple(0 if i in mapped else None for i in range(count))),
                "size": Literal.of(SIZE),
                "randomness": Literal.of("error"),
            },
            regions=[Region(block)],
        )
        e.block.add_op(op)
        return list(op.results)

    func = program(build, types_of(inputs), wanted=[])
    module = ModuleOp([func])
    VectorizePass().apply(new_context(), module)
    func = verified(ir.function(module, "main"))
    assert not any(isinstance(op, autodiff.BatchOp) for op in func.walk())
    for k, found in enumerate(interpreted(func)(*inputs)):
        wanted = torch.stack([results[k] for results in loop])
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12, equal_nan=True)
