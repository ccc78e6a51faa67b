"""Random programs, fused and scheduled for a GPU, simulated: the same results as the primitives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from run_grid import simulate

from isthmus import ir
from isthmus.dialects import kernel as k
from isthmus.runtime import interpret, interpret_table

sys.path.insert(0, str(Path(__file__).parents[1] / "passes" / "fusion"))
from prim_programs import Case, apply, programs

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]


@pytest.fixture
def on_the_grid(monkeypatch):
    """Fused kernels are simulated where functions are interpreted."""

    def evaluate(op, operands, frame):
        results, error = simulate(op, operands, frame.sizes)
        assert error == 0
        return results

    monkeypatch.setitem(interpret_table.TABLE, k.FusedOp, evaluate)


@given(programs())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_threads_compute_what_the_primitives_do(on_the_grid, case: Case) -> None:
    expected = interpret.run(ir.function(case.module, "main"), case.arguments)
    after = apply(case.module.clone(), ["fuse", "schedule-gpu"])
    for result, wanted in zip(interpret.run(ir.function(after, "main"), case.arguments), expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)
