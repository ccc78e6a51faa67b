"""What an optimizer does to equal parameters is traced once: the program is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isthmus
from isthmus.driver.session import Session
from isthmus.frontend.optimizers import AdamRule
from isthmus.frontend.repeats import Repeats
from isthmus.passes.pipelines import module_text

PARTS = (nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2))


def model() -> nn.Module:
    torch.manual_seed(3)
    found = nn.Sequential(*(type(p)(p.in_features, p.out_features) if isinstance(p, nn.Linear) else p for p in PARTS))
    found[2].weight = found[0].weight  # tied
    return found


def steps(net: nn.Module, **settings: object) -> list[float]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1, **settings)  # pyright: ignore
    step = isthmus.train_step(net, lambda m, x: m(x).square().mean(), optimizer)
    return [float(step(torch.full((4, 6), 0.1 * k))) for k in range(1, 4)]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    compile_captured = Session.compile_captured

    def keep(self: Session, program):
        texts.append(module_text(program.module))
        return compile_captured(self, program)

    monkeypatch.setattr(Session, "compile_captured", keep)
    return texts


@pytest.mark.parametrize("amsgrad", [False, True])
def test_the_program_is_the_same(monkeypatch: pytest.MonkeyPatch, captured: list[str], amsgrad: bool) -> None:
    ran: list[torch.Size] = []
    update = AdamRule.update
    noted = staticmethod(lambda *given: (ran.append(given[2].shape), update(*given))[1])
    monkeypatch.setattr(AdamRule, "update", noted)
    net = model()
    found = steps(net, amsgrad=amsgrad)
    shapes = 4 if amsgrad else 1  # of seven parameters; without it all is done element by element
    assert len(ran) == shapes == len(set(ran))
    monkeypatch.setattr(Repeats, "run", lambda self, piece, tensors, shared, key: piece())
    other = model()
    wanted = steps(other, amsgrad=amsgrad)
    assert captured[0] == captured[1] and found == wanted
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_groups_with_other_settings_are_traced_apart(monkeypatch: pytest.MonkeyPatch, captured: list[str]) -> None:
    def grouped(net: nn.Module) -> list[float]:
        groups = [{"params": [net[0].weight]}, {"params": [net[4].weight], "weight_decay": 0.0, "lr": 0.5}]
        step = isthmus.train_step(net, lambda m, x: m(x).square().mean(), torch.optim.AdamW(groups, lr=1e-2))
        return [float(step(torch.full((4, 6), 0.1 * k))) for k in range(1, 4)]

    found = grouped(model())
    monkeypatch.setattr(Repeats, "run", lambda self, piece, tensors, shared, key: piece())
    assert grouped(model()) == found and captured[0] == captured[1]


def test_outside_of_a_trace_pieces_just_run() -> None:
    x, ran = torch.zeros(2), []
    repeats = Repeats()
    for _ in range(2):
        repeats.run(lambda: ran.append(x.add_(1)), [x], [], "key")
    assert len(ran) == 2 and x.tolist() == [2.0, 2.0]
