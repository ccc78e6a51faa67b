"""Running combinations along a row: one position at a time, and in the lanes of vectors."""

from __future__ import annotations

import math

import pytest
import torch
from compared_kernels import check, element_of
from kernel_text import PARALLEL, ROW, function, tensor
from run_kernel import TORCH, compiled


@pytest.mark.parametrize("reverse", ["true", "false"])
@pytest.mark.parametrize("length", [1, 7, 8, 24, 67])
@pytest.mark.parametrize(
    "kind,dtype", [("add", "f64"), ("mul", "f32"), ("mul", "f64"), ("min", "f32"), ("max", "u8"), ("or", "i1")]
)
def test_cumulative_in_lanes(kind, dtype, length, reverse):
    """Vectors along the scan, whole and rest: NaN and infinities go on, nothing beyond the row comes in."""
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {element_of(dtype)}
    %c = kernel.cumulative %v {{kind = "{kind}", dim = 1, reverse = {reverse}}} : {element_of(dtype)}
    kernel.store %c {{result = 0, map = [d0, d1]}}"""
    shape = tensor([3, length], dtype)
    x = torch.randn(3, length).mul(2).abs().to(TORCH[dtype])
    if dtype in ("f32", "f64"):
        x[1, length // 2], x[2, length // 2] = math.nan, math.inf
    check(function([shape], [shape], [3, length], [PARALLEL, ROW], body), [x], (1,))


def test_products_of_f64_do_not_overflow_in_between():
    body = """
    %v = kernel.load {operand = 0, map = [d0]} : f64
    %c = kernel.cumulative %v {kind = "mul", dim = 0, reverse = false} : f64
    kernel.store %c {result = 0, map = [d0]}"""
    x = torch.tensor([1e-300, 1e300, 1e300, 1e-300] * 4, dtype=torch.float64)
    shape = tensor([16], "f64")
    c = compiled(function([shape], [shape], [16], [ROW], body), vector=0)
    torch.testing.assert_close(c(x)[0], torch.cumprod(x, 0))


@pytest.mark.parametrize("vector", [None, 0])
def test_cumulative_sum_is_that_of_eager_bit_by_bit(vector):
    """In f64 inside: neither order shows in f32."""
    body = """
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %c = kernel.cumulative %v {kind = "add", dim = 0, reverse = false} : f32
    kernel.store %c {result = 0, map = [d0]}"""
    x = torch.randn(10000)
    (y,) = compiled(function([tensor([10000])], [tensor([10000])], [10000], [ROW], body), vector=vector)(x)
    assert torch.equal(y, torch.cumsum(x, 0))
