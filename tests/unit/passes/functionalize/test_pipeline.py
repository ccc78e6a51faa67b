"""Random programs of views and writes down to primitives: what eager does, with gradients by our own rules."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from isthmus.diagnostics import UnsupportedError
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from tests.unit.passes.functionalize.harness import Function, capture, check_program
from tests.unit.passes.functionalize.programs import draw


@pytest.mark.parametrize("seed", range(40))
def test_values_and_gradients(seed: int):
    def compiled(function: Function, arguments: Sequence[Tensor]):
        call = Session(Options(backend="interpret", cache=False)).compile_captured(capture(function, arguments))
        return lambda *given: call(list(given))

    torch.manual_seed(seed)
    program = draw(random.Random(seed).choice, grad=bool(seed % 4), length=8)
    try:
        check_program(program, program.arguments, compiled)
    except UnsupportedError as error:
        pytest.skip(error.what)
