"""A loss whose gradient begins in forward: scaled, asked for twice, differentiated again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isthmus

ROWS, INPUTS, WIDTH, CLASSES = 64, 4096, 8, 512


class Model(nn.Module):
    """A body that is not narrow, and a wide head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Cross entropy."""
        return F.cross_entropy(self.head(torch.tanh(self.body(x))), target)


def scaled(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss * 0.3, leaves))


def twice(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    first = torch.autograd.grad(loss, leaves, torch.tensor(-2.5, dtype=loss.dtype), retain_graph=True)
    return [*first, *torch.autograd.grad(loss, leaves, torch.tensor(0.7, dtype=loss.dtype))]


def of_the_gradient(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad(loss * loss, leaves, create_graph=True)
    return list(torch.autograd.grad(sum(g.pow(2).sum() for g in gradients), leaves))  # pyright: ignore


@pytest.mark.row("M6")
@pytest.mark.parametrize("ask", [scaled, twice, of_the_gradient])
def test_gradients_that_begin_in_forward_are_eagers(ask: Callable[[Tensor, list[Tensor]], list[Tensor]]) -> None:
    torch.manual_seed(0)
    model, x, target = Model(), torch.randn(ROWS, INPUTS), torch.randint(CLASSES, (ROWS,))
    exact = Model().double()
    exact.load_state_dict(model.state_dict())
    wanted = ask(exact(x.double(), target), list(exact.parameters()))
    eager = ask(model(x, target), list(model.parameters()))
    found = ask(isthmus.compile(model)(x, target), list(model.parameters()))
    for true, peer, mine in zip(wanted, eager, found, strict=True):
        bound = 4 * (peer - true).abs().max().item() + 1e-7 * true.abs().max().item()
        assert (mine - true).abs().max().item() <= bound


def test_they_are_kept_in_place_of_the_logits() -> None:
    model, x, target = Model(), torch.randn(ROWS, INPUTS), torch.randint(CLASSES, (ROWS,))
    cuts = [
        isthmus.explain(model, strategy=strategy)(x, target).graphs[0].cut for strategy in ("min-cut", "min-cut-late")
    ]
    early, late = (cut.saved_bytes if cut is not None else 0 for cut in cuts)
    assert late > 4 * ROWS * CLASSES
    assert early < 4 * (WIDTH * CLASSES + CLASSES + 3 * ROWS * WIDTH)
