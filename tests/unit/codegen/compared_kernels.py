"""A kernel as machine code, compared with the interpreter's."""

from __future__ import annotations

import torch
from kernel_text import PARALLEL, ROW, function, tensor
from run_kernel import compiled, same_bits

TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 5e-3}


def check(text, inputs, vectors=(None,), calls=(3,), tolerance=None, target=None):
    """Compare with the interpreter, and cut the partitions into several calls."""
    for vector in vectors:
        c = compiled(text, target, vector=vector)
        expected = c.interpreted(*inputs)
        results = c(*inputs)
        for result, wanted in zip(results, expected, strict=True):
            if result.dtype.is_floating_point or result.dtype.is_complex:
                t = tolerance or TOLERANCE.get(result.dtype, 1e-5)
                torch.testing.assert_close(result, wanted, rtol=t, atol=t, equal_nan=True)
            else:
                assert torch.equal(result, wanted)
        for count in calls:
            assert same_bits(results, c(*inputs, calls=count))


SOFTMAX = """
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %b = kernel.load {operand = 1, map = [d1]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %r : f32
    %e = prim.exp %d : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %q = prim.div %e, %s : f32
    %t = prim.add %q, %b : f32
    kernel.store %t {result = 0, map = [d0, d1]}
    kernel.store %s {result = 1, map = [d0]}
    kernel.accumulate %v {result = 2, kind = "add", map = [d1]}
    kernel.accumulate %t {result = 3, kind = "max", map = []}
    kernel.accumulate %r {result = 4, kind = "add", map = []}"""


def softmax(m, n, **more):
    return function(
        [tensor([m, n]), tensor([n])],
        [tensor([m, n]), tensor([m]), tensor([3, n]), tensor([3]), tensor([3])],
        [m, n],
        [PARALLEL, ROW],
        SOFTMAX,
        **more,
    )


def element_of(dtype):
    return {"u8": "ui8"}.get(dtype, dtype)
