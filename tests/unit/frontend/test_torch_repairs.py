"""Shapes that some versions of torch infer wrongly are put right before a program is captured."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._decomp import decompositions

import isthmus
from isthmus.frontend.torch_repairs import with_shapes_of_states


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, (h, c) = self.lstm(x)
        return states + (h[-1] * torch.sigmoid(c[-1])).repeat(1, 2)[:, None]


def as_in_2_11(monkeypatch: pytest.MonkeyPatch, *, repaired: bool) -> None:
    layer = getattr(decompositions.one_layer_lstm, "__wrapped__", decompositions.one_layer_lstm)

    def wrong(inp, hidden, params, has_biases, reverse=False):
        states, (h, c) = layer(inp, hidden, params, has_biases, reverse)
        return states, (h.unsqueeze(0), c.unsqueeze(0))

    monkeypatch.setattr(decompositions, "one_layer_lstm", with_shapes_of_states(wrong) if repaired else wrong)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_last_states_of_an_lstm_have_no_dimension_of_time(monkeypatch: pytest.MonkeyPatch, capture: str) -> None:
    net, x = Net(), torch.randn(2, 5, 4, requires_grad=True)
    as_in_2_11(monkeypatch, repaired=True)
    y = isthmus.compile(net, fullgraph=True, capture=capture)(x)
    torch.testing.assert_close(y, net(x))
    (found,) = torch.autograd.grad(y.sum(), x)
    (wanted,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(found, wanted)


def test_without_the_repair_the_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_2_11(monkeypatch, repaired=False)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="fake tensor"):
        isthmus.compile(Net(), fullgraph=True)(torch.randn(2, 5, 4, requires_grad=True))
