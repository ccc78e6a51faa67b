"""Stores past the caches: the same bits wherever results lie, however long they are, whoever runs the partitions."""

from __future__ import annotations

import ctypes

import pytest
import torch
from run_kernel import Compiled, compiled, same_bits

from isthmus.dialects import kernel as k
from isthmus.runtime import cpu

X86 = pytest.mark.skipif(not cpu.host_target().triple.startswith("x86_64"), reason="other code there")
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}

POINTS = """
func.func @main(%x: tensor<NxTYPE>, %y: tensor<NxTYPE>) -> (tensor<NxTYPE>, tensor<NxTYPE>) {
  %r, %s = kernel.fused %x, %y {sizes = [N], classes = ["parallel"], partitions = 3, vector = 0, width = WIDTH,
      unroll = 2, PAST} ({
    %v = kernel.load {operand = 0, map = [d0]} : TYPE
    %w = kernel.load {operand = 1, map = [d0]} : TYPE
    %a = prim.mul %v, %w : TYPE
    %b = prim.add %a, %w : TYPE
    kernel.store %a {result = 0, map = [d0]}
    kernel.store %b {result = 1, map = [d0]}
  }) : tensor<NxTYPE>, tensor<NxTYPE>
  func.return %r, %s : tensor<NxTYPE>, tensor<NxTYPE>
}
"""

ROWS = """
func.func @main(%x: tensor<37xNxTYPE>) -> (tensor<37xTYPE>, tensor<37xNxTYPE>) {
  %r, %s = kernel.fused %x {sizes = [37, N], classes = ["parallel", "row"], partitions = 5, vector = 1, width = WIDTH,
      unroll = 2, PAST} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : TYPE
    %m = kernel.reduce %v {kind = "max", dims = [1]} : TYPE
    %d = prim.sub %v, %m : TYPE
    kernel.store %m {result = 0, map = [d0]}
    kernel.store %d {result = 1, map = [d0, d1]}
  }) : tensor<37xTYPE>, tensor<37xNxTYPE>
  func.return %r, %s : tensor<37xTYPE>, tensor<37xNxTYPE>
}
"""


def text(form: str, count: int, dtype: str, past: str) -> str:
    """A kernel of so many elements; `past`: what it has in place of PAST."""
    width = 8 if dtype == "f64" else 16
    kernel = form.replace("NxTYPE", f"{count}x{dtype}").replace("N]", f"{count}]").replace("TYPE", dtype)
    return kernel.replace("WIDTH", str(width)).replace(", PAST", past)


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [5, 63, 192, 1000, 3 * 4096, 3 * 4096 + 1])
@pytest.mark.parametrize("past", [0, 1])
def test_points(count: int, dtype: str, past: int) -> None:
    plain, stored = (compiled(text(POINTS, count, dtype, p)) for p in ("", f", past_caches = [{past}]"))
    x, y = random((count,), dtype), random((count,), dtype, 1)
    for calls in (1, 3):
        assert same_bits(plain(x, y), stored(x, y, calls=calls))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [32, 96, 1056])
def test_rows(count: int, dtype: str) -> None:
    plain, stored = (compiled(text(ROWS, count, dtype, p)) for p in ("", ", past_caches = [1]"))
    x = random((37, count), dtype)
    for calls in (1, 5):
        assert same_bits(plain(x), stored(x, calls=calls))


@pytest.mark.parametrize("at", [0, 1, 3, 8, 16])
def test_results_that_begin_inside_a_line(at: int) -> None:
    made = compiled(text(POINTS, 4096, "f32", ", past_caches = [0]"))
    x, y = random((4099,), "f32")[3:], random((4097,), "f32", 1)[1:]
    first, second = torch.full((4200,), -7.0), torch.full((4096,), -7.0)
    start = (-first.data_ptr() % 64) // 4 + at
    _run(made, [x, y, first[start:], second])
    assert torch.equal(first[start : start + 4096], x * y)
    assert torch.equal(second, x * y + y)
    assert bool((first[:start] == -7).all()) and bool((first[start + 4096 :] == -7).all())


def _run(made: Compiled, tensors: list[torch.Tensor]) -> None:
    buffers = (ctypes.c_void_p * (len(tensors) + 1))(*[t.data_ptr() for t in tensors], None)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    prototype(made.loaded["kernel"])(buffers, (ctypes.c_int64 * 1)(), 0, 3)


@X86
@pytest.mark.parametrize("dtype", DTYPES)
def test_instructions(dtype: str) -> None:
    plain, stored = (compiled(text(ROWS, 96, dtype, p)).assembly() for p in ("", ", past_caches = [1]"))
    assert "movnt" not in plain and "sfence" not in plain
    assert "movnt" in stored and stored.count("sfence") == 1
    assert stored.rindex("movnt") < stored.index("sfence") < stored.rindex("ret")
    assert "movnti" not in stored  # whole vectors


def test_code_is_shared_only_with_what_stores_alike() -> None:
    plain, stored = (compiled(text(ROWS, 96, "f32", p)).kernel for p in ("", ", past_caches = [1]"))
    assert k.key(plain) != k.key(stored)
