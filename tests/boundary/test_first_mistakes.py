"""What a newcomer gets wrong first is said in a sentence, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import isthmus


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_what_cannot_be_called_cannot_be_compiled(capture: str):
    with pytest.raises(TypeError, match="a function or a module, not int"):
        isthmus.compile(3, capture=capture)  # type: ignore[type-var]


def test_the_arguments_of_train_step_have_an_order():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"a module, a loss function and an optimizer, not \(Linear, SGD, function\)"):
        isthmus.train_step(model, optimizer, lambda m, x: m(x).sum())  # type: ignore[arg-type]


def rows(x: Tensor) -> Iterator[Tensor]:
    for row in x:
        yield row * 2


@pytest.mark.parametrize("lazy", [rows, lambda x: map(torch.sin, x)])
def test_what_runs_after_the_trace_is_refused(lazy):
    with pytest.raises(isthmus.UnsupportedError, match="computed later"):
        isthmus.compile(lazy, capture="trace")(torch.ones(2, 3))
