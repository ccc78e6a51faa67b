"""The kernels that the CPU's code is tested with, as GPU code: scheduled, simulated, against the interpreter."""

from __future__ import annotations

import pytest
import test_kernels
import torch
from run_grid import on_grid
from test_kernels import (  # noqa: F401
    TOLERANCE,
    test_argmax_takes_the_first_and_nan,
    test_booleans_are_bytes_in_memory,
    test_cumulative,
    test_cumulative_complex,
    test_every_dtype_loads_stores_and_sums,
    test_gathers_predicates_flips_and_quotients,
    test_levels_and_accumulations,
    test_rows_of_two_dims_with_every_residence,
    test_scatter_in_order,
    test_sums_over_everything,
    test_three_parallel_dims_cut_anywhere,
    test_transposed_reads_and_writes,
)

from isthmus.passes.memory.schedule_gpu import schedule


def check(text, inputs, vectors=(), calls=(), tolerance=None, target=None):
    """Compare a scheduled kernel with the interpreter."""
    c = on_grid(text)
    schedule(c.kernel)
    for result, wanted in zip(c(*inputs), c.interpreted(*inputs), strict=True):
        if result.dtype.is_floating_point or result.dtype.is_complex:
            t = tolerance or TOLERANCE.get(result.dtype, 1e-5)
            torch.testing.assert_close(result, wanted, rtol=t, atol=t, equal_nan=True)
        else:
            assert torch.equal(result, wanted)


@pytest.fixture(autouse=True)
def on_the_grid(monkeypatch):
    monkeypatch.setattr(test_kernels, "check", check)
    torch.manual_seed(0)
