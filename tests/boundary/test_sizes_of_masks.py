"""A mask whose size moves marks the rows of a tensor whose size does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.boundary.harness import CAPTURES, compiled_by, f64


def marked(x: Tensor, index: Tensor, value: Tensor | float) -> Tensor:
    y = x.clone()
    y[index] = value
    return y


@pytest.mark.parametrize("capture", CAPTURES)
def test_indices_then_masks(capture: str):
    compiled = compiled_by(marked, capture, "native")
    x = f64(4, 3)
    for index, value in (
        (torch.tensor([0, 2]), f64(2, 3)),
        (torch.tensor([True, False, True, False]), 1.0),
        (torch.tensor([1, 3, 2]), f64(3, 3)),
    ):
        torch.testing.assert_close(compiled(x, index, value), marked(x, index, value))
