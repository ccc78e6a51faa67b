"""Kernels that ask for the next row: the same bits, one question a line, nothing touched behind the last row."""

from __future__ import annotations

import pytest
import torch
from run_kernel import compiled, same_bits

from isthmus.runtime import cpu

KERNEL = """
func.func @main(%x: tensor<7xNxTYPE>) -> tensor<7xTYPE> {
  %r = kernel.fused %x {sizes = [7, N], classes = ["parallel", "row"], partitions = 3, vector = 1, width = 32,
      unroll = 1AHEAD} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : TYPE
    %m = kernel.reduce %v {kind = "max", dims = [1]} : TYPE
    %d = prim.sub %v, %m : TYPE
    %e = prim.exp %d : TYPE
    %s = kernel.reduce %e {kind = "add", dims = [1]} : TYPE
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<7xTYPE>
  func.return %r : tensor<7xTYPE>
}
"""


def text(count: int, dtype: str, ahead: str) -> str:
    kernel = KERNEL.replace("NxTYPE", f"{count}x{dtype}").replace("N]", f"{count}]").replace("AHEAD", ahead)
    return kernel.replace("TYPE", dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("count", [31, 64, 1000])
def test_the_same_bits(count: int, dtype: str) -> None:
    plain, ahead = (compiled(text(count, dtype, a)) for a in ("", ", ahead = 1"))
    kinds = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
    x = torch.randn(7, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(kinds[dtype])
    assert same_bits(plain(x), ahead(x))


@pytest.mark.skipif(not cpu.host_target().triple.startswith("x86_64"), reason="other instructions there")
@pytest.mark.parametrize(("dtype", "lines"), [("f32", 2), ("f64", 4), ("bf16", 1)])
def test_a_question_for_each_line(dtype: str, lines: int) -> None:
    plain, ahead = (compiled(text(1024, dtype, a)).assembly() for a in ("", ", ahead = 1"))
    assert plain.count("prefetch") == 0
    assert ahead.count("prefetcht1") == lines
