"""Bodies in stages: several walks over a strip, and the same bits as one walk, whatever the points leave over."""

from __future__ import annotations

import ctypes

import pytest
import torch
from run_kernel import compiled, same_bits

KERNEL = """
func.func @main(%x: tensor<NxTYPE>, %y: tensor<NxTYPE>) -> (tensor<NxTYPE>, tensor<NxTYPE>) {
  %r, %s = kernel.fused %x, %y {sizes = [N], classes = ["parallel"], partitions = 3, vector = 0, width = 8,
      unroll = 1} ({
    %one = prim.const {value = 1.0} : TYPE
    %v = kernel.load {operand = 0, map = [d0]} : TYPE
    %w = kernel.load {operand = 1, map = [d0]} : TYPE
    %a = prim.logistic %v : TYPE
    %b = prim.mul %a, %w : TYPE
    %c = prim.tanh %b {STAGE1} : TYPE
    %d = prim.exp %c {STAGE2} : TYPE
    %n = prim.sub %one, %a {STAGE2} : TYPE
    %e = prim.mul %d, %n {STAGE2} : TYPE
    %f = prim.add %e, %w {STAGE2} : TYPE
    kernel.store %c {result = 1, map = [d0], STAGE1}
    kernel.store %f {result = 0, map = [d0], STAGE2}
  }) : tensor<NxTYPE>, tensor<NxTYPE>
  func.return %r, %s : tensor<NxTYPE>, tensor<NxTYPE>
}
"""


def text(count: int, dtype: str, *, staged: bool) -> str:
    """The kernel, its ops marked by their stages or not."""
    kernel = KERNEL.replace("NxTYPE", f"{count}x{dtype}").replace("[N]", f"[{count}]").replace("TYPE", dtype)
    for number in (1, 2):
        mark = f"stage = {number}" if staged else ""
        kernel = kernel.replace(f", STAGE{number}", f", {mark}" if staged else "").replace(f"STAGE{number}", mark)
    return kernel


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("count", [5, 1536, 3 * 1024 + 1, 5000])
def test_stages_give_the_same_bits(count: int, dtype: str) -> None:
    kind = torch.float32 if dtype == "f32" else torch.float64
    x, y = (torch.randn(count, dtype=kind, generator=torch.Generator().manual_seed(n)) for n in range(2))
    whole, staged = (compiled(text(count, dtype, staged=s)) for s in (False, True))
    assert staged.text.count("= phi ") == whole.text.count("= phi ") + 3  # a loop over strips, and two more of vectors
    results = staged(x, y)
    assert same_bits(whole(x, y), results)
    assert same_bits(staged(x, y, calls=2), results)
    a = torch.sigmoid(x.double())
    c = torch.tanh(a * y.double())
    wide = [c.exp() * (1 - a) + y.double(), c]
    torch.testing.assert_close([r.double() for r in results], wide, rtol=2e-6, atol=2e-6)


def test_a_stage_may_write_over_what_later_ones_read() -> None:
    """As the plan allows where the store waits for the load: `%c` is written to the place of `%w`."""
    staged = compiled(text(5000, "f32", staged=True))
    x, y = (torch.randn(5000, generator=torch.Generator().manual_seed(n)) for n in range(2))
    wanted = staged(x, y)
    over, other = y.clone(), torch.empty_like(y)
    buffers = (ctypes.c_void_p * 4)(*(t.data_ptr() for t in (x, over, other, over)))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    run(staged.loaded["kernel"])(buffers, (ctypes.c_int64 * 1)(), 0, 3)
    assert same_bits(wanted, [other, over])
