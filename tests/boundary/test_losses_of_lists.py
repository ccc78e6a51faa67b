"""Losses whose targets are lists with an end: what torch's own decomposition counts wrongly, eager does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.boundary.harness import CAPTURES, agree, f64


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_end_at_the_first_negative_one(reduction: str, capture: str):
    target = torch.tensor([[-1, 0, 0, 0], [0, 2, -1, 3], [1, 3, 2, 0]])

    def loss(x: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    agree(loss, f64(3, 4), capture=capture)
