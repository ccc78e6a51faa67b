"""Kernels that read and write more places than there are registers: right, and one hidden index a loop."""

from __future__ import annotations

import pytest
import torch
from kernel_text import PARALLEL, ROW, function, tensor
from run_kernel import compiled, parse

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.cpu.plan import MANY_STREAMS
from isthmus.codegen.llvm_text import Module
from isthmus.dialects import kernel as k
from isthmus.runtime import cpu

SIZES = [5, 37]
HIDDEN = 'asm "", "=r,0"'


def sums(streams: int, classes: list[str]) -> str:
    """Adds up so many operands."""
    lines, total = ["%v0 = kernel.load {operand = 0, map = [d0, d1]} : f32"], "%v0"
    for i in range(1, streams):
        lines.append(f"%v{i} = kernel.load {{operand = {i}, map = [d0, d1]}} : f32")
        lines.append(f"%s{i} = prim.add {total}, %v{i} : f32")
        total = f"%s{i}"
    lines.append(f"kernel.store {total} {{result = 0, map = [d0, d1]}}")
    return function([tensor(SIZES)] * streams, [tensor(SIZES)], SIZES, classes, "\n".join(lines), vector=1)


def text_of(text: str) -> str:
    out = Module()
    emit_kernel(out, k.launches(ir.function(parse(text), "f"))[0], cpu.host_target())
    return str(out)


@pytest.mark.parametrize("classes", [[PARALLEL, PARALLEL], [PARALLEL, ROW]])
def test_many_streams(classes: list[str]) -> None:
    text = sums(MANY_STREAMS + 6, classes)
    c = compiled(text)
    inputs = [torch.randn(SIZES) for _ in range(MANY_STREAMS + 6)]
    for got, wanted in zip(c(*inputs), c.interpreted(*inputs), strict=True):
        assert torch.equal(got, wanted)
    assert HIDDEN in text_of(text)
    assert HIDDEN not in text_of(sums(8, classes))


@pytest.mark.parametrize(
    ("sizes", "classes", "partitions", "masked"),
    [
        ([64], [PARALLEL], 4, False),  # partitions of 16
        ([64], [PARALLEL], 3, True),
        ([72], [PARALLEL], 4, True),  # of 18
        ([6, 16], [PARALLEL, PARALLEL], 3, False),  # of two rows
        ([6, 16], [PARALLEL, PARALLEL], 4, True),  # of one and a half
        ([6, 20], [PARALLEL, PARALLEL], 3, True),
    ],
)
def test_a_rest_that_is_never_there_is_not_written(
    sizes: list[int], classes: list[str], partitions: int, masked: bool
) -> None:
    place = ", ".join(f"d{i}" for i in range(len(sizes)))
    body = f"""%v = kernel.load {{operand = 0, map = [{place}]}} : f32
    %w = prim.mul %v, %v : f32
    kernel.store %w {{result = 0, map = [{place}]}}"""
    text = function(
        [tensor(sizes)], [tensor(sizes)], sizes, classes, body, partitions=partitions, vector=len(sizes) - 1
    )
    c, x = compiled(text), torch.randn(sizes)
    assert torch.equal(c(x)[0], x * x)
    assert ("llvm.masked.store" in text_of(text)) == masked
