"""Whole steps whose products are kernels of ours, against eager torch in float64."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isthmus
from isthmus.driver import native
from isthmus.runtime import cpu

OWN = {"contractions": "own"}
"""Products here are small: by default the library's."""


class Gated(nn.Module):
    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(d) + 0.5)
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.scale
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Mlp(nn.Module):
    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def step(model: nn.Module, run, x: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    y = run(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    gradients = torch.autograd.grad((y * weights).sum(), [x, *model.parameters()])
    return [y.detach(), *gradients]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("model", [Mlp, Gated])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [33, 100])
def test_a_step_agrees_with_float64(model, dtype, rows):
    m = model(48, 70).to(dtype)
    x = torch.randn(3, rows, 48, dtype=dtype)
    truth = copy.deepcopy(m).double()
    expected, found = step(truth, truth, x.double()), step(m, isthmus.compile(m, options=OWN), x)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-12
    for e, r in zip(expected, found, strict=True):
        assert (r.double() - e).abs().max() <= tolerance * max(1.0, e.abs().max())


def test_its_products_are_kernels_and_explained():
    report = isthmus.explain(Mlp(64, 128), capture="trace", **OWN)(torch.randn(256, 64, requires_grad=True))
    (graph,) = report.graphs
    assert any(d.products for d in graph.directions)
    assert "of our own" in str(report)
    assert re.search(r"product 256 x 128 x 64: .*, parts: \d+; \d+ us at 100 GFLOPS, \d+ by the library", str(report))


@pytest.mark.parametrize("rows", [1, 2, 5, 32])
def test_a_step_of_few_rows_agrees_with_float64(rows):
    m = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    x = torch.randn(rows, 784)
    truth = copy.deepcopy(m).double()
    expected, found = step(truth, truth, x.double()), step(m, isthmus.compile(m), x)
    for e, r in zip(expected, found, strict=True):
        assert (r.double() - e).abs().max() <= 2e-5 * max(1.0, e.abs().max())


def test_any_number_of_rows_with_one_program():
    m = Mlp(48, 64)
    compiled = isthmus.compile(m, dynamic=True, options=OWN)
    for rows in (33, 1, 130, 64):
        x = torch.randn(rows, 48)
        for e, r in zip(step(m, m, x), step(m, compiled, x), strict=True):
            torch.testing.assert_close(r, e, rtol=1e-4, atol=1e-4)


def test_threads_change_no_bit():
    m = Mlp(64, 128)
    compiled, x = isthmus.compile(m, options=OWN), torch.randn(700, 64)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(step(m, compiled, x))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][:2], other[:2], strict=True))


def test_a_row_that_is_no_number_stays_alone():
    m = Mlp(48, 64)
    x = torch.randn(40, 48)
    x[7, 3], x[20] = float("nan"), float("inf")
    y = isthmus.compile(m, options=OWN)(x)
    assert torch.equal(y.isfinite(), m(x).isfinite())


@pytest.mark.parametrize("rows", [1, 2, 5, 17, 68, 300])
@pytest.mark.parametrize("wide", [5, 32, 96])
def test_a_bias_that_neither_the_kernel_nor_the_call_takes(rows, wide):
    """Sizes around those where prices change: a product of ours with as many factors as it may read, then a bias."""
    m = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, wide))
    x = torch.randn(rows, 32)
    truth = copy.deepcopy(m).double()
    for found, true in zip(step(m, isthmus.compile(m, fullgraph=True), x), step(truth, truth, x.double()), strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [Mlp, Gated])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_in_half_precision_is_as_near_to_float64_as_eager(model, dtype):
    m = model(48, 70).to(dtype)
    x = torch.randn(3, 33, 48, dtype=dtype)
    truth = copy.deepcopy(m).double()
    expected, eager = step(truth, truth, x.double()), step(m, m, x)
    found = step(m, isthmus.compile(m, options=OWN), x)
    for e, r, ours in zip(expected, eager, found, strict=True):
        assert ours.dtype == dtype
        least = torch.finfo(dtype).eps * max(1.0, e.abs().max())
        assert (ours.double() - e).abs().max() <= 1.25 * (r.double() - e).abs().max() + least


@pytest.mark.skipif(cpu.host_target().has(native.MATRIX_UNIT), reason="this machine's library has a unit for them")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_in_half_precision_are_kernels_by_default(dtype):
    x = torch.randn(64, 64, dtype=dtype, requires_grad=True)
    report = isthmus.explain(Mlp(64, 128).to(dtype), capture="trace")(x)
    (graph,) = report.graphs
    assert all(d.products for d in graph.directions)


def test_a_machine_with_a_unit_for_tiles_leaves_half_precision_to_the_library(monkeypatch):
    host = cpu.host_target()
    found = replace(host, features=f"{host.features},+{native.MATRIX_UNIT}")
    monkeypatch.setattr(native.cpu, "host_target", lambda: found)
    assert native.for_host("fuse{contractions=auto}") == "fuse{contractions=auto half=library}"
