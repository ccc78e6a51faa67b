"""Random programs, fused and scheduled, run as machine code and interpreted: the same results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from run_kernel import launch, native, same_bits

from isthmus import ir
from isthmus.dialects import kernel as k
from isthmus.runtime import cpu, interpret, interpret_table

sys.path.insert(0, str(Path(__file__).parents[1] / "passes" / "fusion"))
from prim_programs import Case, apply, programs

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]


@pytest.fixture
def machine_code(monkeypatch):
    """Fused kernels run as machine code where functions are interpreted; cut into calls, the bits stay."""
    target = cpu.host_target()
    loaded: dict[str, tuple[str, cpu.Loaded]] = {}

    def evaluate(op, operands, frame):
        name = k.key(op)
        if name not in loaded:
            loaded[name] = native(op, target)
        results, error = launch(op, loaded[name][1], operands, frame.sizes)
        assert error == 0
        again, _ = launch(op, loaded[name][1], operands, frame.sizes, calls=3)
        assert same_bits(results, again)
        return results

    monkeypatch.setitem(interpret_table.TABLE, k.FusedOp, evaluate)


@given(programs())
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
def test_machine_code_equals_the_primitives(machine_code, case: Case) -> None:
    expected = interpret.run(ir.function(case.module, "main"), case.arguments)
    after = apply(case.module.clone(), ["fuse", "schedule{vector_bits=256}"])
    for result, wanted in zip(interpret.run(ir.function(after, "main"), case.arguments), expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)
