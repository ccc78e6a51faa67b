"""What the demo measures, on a model small enough to count by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from demo.measure import largest_difference, saved_bytes, train


class Loss(nn.Module):
    """Σ sin(sin(w x)): eager keeps w·x and sin(w·x), the parameter and the batch are alive anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x).sin().sin().sum()


def run(compile=lambda model: model):
    model, x = Loss(), torch.linspace(0, 1, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps: list[int] = []
    result = train("run", model, compile, optimizer, [(x,)] * 3, lambda: steps.append(1))
    return result, model, x, steps


def test_saved_bytes_leave_out_what_is_alive_anyway() -> None:
    _, model, x, _ = run()
    assert saved_bytes(model, model, (x,)) == 2 * 64 * 4


def test_views_of_one_storage_are_counted_once() -> None:
    model = Loss()
    x = torch.ones(64)

    def twice(x: Tensor) -> Tensor:
        y = (model.w * x).exp()  # keeps its result, of which both halves are views
        return (y[:32].sin() + y[32:].sin()).sum()

    assert saved_bytes(twice, model, (x,)) == 64 * 4


def test_a_run_has_losses_gradients_memory_and_progress() -> None:
    result, _, _, steps = run()
    assert len(result.losses) == len(steps) == 3 and result.losses[0] > result.losses[-1]
    assert result.memory.peak >= 2 * 64 * 4 and result.step > 0


def test_equal_runs_have_no_difference_and_another_gradient_shows() -> None:
    (first, *_), (second, *_) = run(), run()
    assert largest_difference(first, second) == 0
    second.gradients["w"] = second.gradients["w"] * 1.5
    assert largest_difference(first, second) > 0.4
