"""Type promotion against torch's."""

from __future__ import annotations

import itertools

import pytest
import torch
from xdsl.ir import Block

from isthmus import ir
from isthmus.passes.decompose.promotion import common_dtype, promote, rounded
from isthmus.runtime.interpret_table import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@pytest.mark.parametrize("a", DTYPES)
def test_promote_is_torchs_table(a: str) -> None:
    for b in DTYPES:
        assert promote(a, b) == NAMES[torch.promote_types(DTYPES[a], DTYPES[b])], (a, b)


@pytest.mark.parametrize(("shape", "other"), itertools.product([(2,), ()], [(2,), (), None]))
def test_common_dtype_is_torchs_result_type(shape: tuple[int, ...], other: tuple[int, ...] | None) -> None:
    """Tensors come before 0-d tensors, and these before Python numbers."""
    numbers = [True, 3, 0.5, 1j]
    for a in DTYPES:
        x = torch.zeros(shape, dtype=DTYPES[a])
        seconds = [torch.zeros(other, dtype=d) for d in DTYPES.values()] if other is not None else numbers
        for y in seconds:
            types = [ir.tensor(tuple(v.shape), NAMES[v.dtype]) for v in (x, y) if isinstance(v, torch.Tensor)]
            values = list(Block(arg_types=types).args)
            operands = values if isinstance(y, torch.Tensor) else [*values, y]
            expected = torch.result_type(x, y)
            if expected is not torch.complex32:  # of f16 and complex; it has no compiled form
                assert common_dtype(operands) == NAMES[expected], (a, shape, y)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("number", [0.1, -0.3, 1.00390625, 3.0e-5, 65519.0, 7e4, -7e4, 0.0, float("inf"), float("nan")])
def test_numbers_round_as_torch_rounds_them(dtype: str, number: float) -> None:
    expected = torch.tensor(number).to(DTYPES[dtype]).item()
    actual = rounded(number, dtype)
    assert actual == expected or (actual != actual and expected != expected)
