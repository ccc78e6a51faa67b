"""Random programs of views and writes: outputs, arguments afterwards, who shares memory with whom, gradients."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.diagnostics import CompileError
from tests.unit.passes.functionalize.harness import check_program
from tests.unit.passes.functionalize.programs import RandomProgram, draw


def outcome(program: RandomProgram) -> str:
    try:
        return check_program(program, program.arguments)
    except CompileError:
        return "has no compiled form"


@pytest.mark.row("T4", "T20", "T21", "T22", "T23", "T24", "T25")
@pytest.mark.parametrize("grad", [False, True])
def test_functional_programs_do_what_eager_does(grad: bool):
    seen: list[str] = []

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        torch.manual_seed(0)
        program = draw(lambda options: data.draw(st.sampled_from(list(options))), grad=grad, length=5)
        seen.append(outcome(program))

    run()
    assert sum(o in ("agrees", "values agree") for o in seen) > len(seen) * 3 // 4


@pytest.mark.parametrize("seed", range(60))
def test_longer_programs(seed: int):
    choose = random.Random(seed).choice
    torch.manual_seed(seed)
    outcome(draw(choose, grad=bool(seed % 3), length=12))
