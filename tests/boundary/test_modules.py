"""A compiled module: what changes between calls, state, hooks, copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from tests.boundary.harness import CAPTURES, compiled_by, f64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 4)
        self.norm, self.drop = nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.tanh(self.norm(self.first(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x.argmax(-1) % 6))


def step(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    y = model(x)
    if y.requires_grad:
        y.pow(2).sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def trained_equally(mine: nn.Module, compiled: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    """Compare gradients and the state afterwards; both draw the same masks only where there are none."""
    got, want = step(compiled, x), step(theirs, x)
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            torch.testing.assert_close(g, w)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


@pytest.mark.row("A15", "T19")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("change", ["plain", "freeze", "unfreeze", "eval", "replace", "load", "tied", "apply"])
def test_modules_that_change_between_calls(change: str, capture: str):
    mine, theirs = (Tied() if change == "tied" else Net() for _ in range(2))
    for model in (mine, theirs):
        if change != "tied":
            model.drop.p = 0.0
    compiled = compiled_by(mine, capture, "native")
    x = f64(3, 4, grad=False)
    trained_equally(mine, compiled, theirs, x)
    for model in (mine, theirs):
        if change == "freeze":
            model.first.requires_grad_(False)
        elif change == "unfreeze":
            model.requires_grad_(False)
        elif change == "eval":
            model.eval()
        elif change == "replace":
            model.second.weight = nn.Parameter(f64(4, 5, grad=False))
        elif change == "load":
            model.load_state_dict({k: v * 2 for k, v in Net().double().state_dict().items()})
        elif change == "apply":
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)
    trained_equally(mine, compiled, theirs, x)
    for model in (mine, theirs):
        model.train()
        model.requires_grad_(True)
    trained_equally(mine, compiled, theirs, x)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_compiled_module_is_still_a_module(capture: str):
    mine, theirs = Net().eval(), Net().eval()
    compiled = compiled_by(mine, capture, "native")
    x = f64(3, 4, grad=False)
    torch.testing.assert_close(compiled(x), theirs(x))
    assert isinstance(compiled, nn.Module)
    assert [p.shape for p in compiled.parameters()] == [p.shape for p in theirs.parameters()]
    compiled.load_state_dict(compiled.state_dict())
    clone = copy.deepcopy(compiled)
    with torch.no_grad():
        for p in clone.parameters():
            p.mul_(2)
    torch.testing.assert_close(compiled(x), theirs(x))
    doubled = Net().eval()
    with torch.no_grad():
        for p in doubled.parameters():
            p.mul_(2)
    torch.testing.assert_close(clone(x), doubled(x))


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_compiled_module_can_be_pickled(capture: str):
    mine = Net().eval()
    compiled = compiled_by(mine, capture, "native")
    x = f64(3, 4, grad=False)
    want = compiled(x)
    again = pickle.loads(pickle.dumps(compiled))
    torch.testing.assert_close(again(x), want)


@pytest.mark.parametrize("capture", CAPTURES)
def test_module_hooks_run(capture: str):
    mine, theirs = (Net().eval() for _ in range(2))
    for model in (mine, theirs):
        model.first.register_forward_hook(lambda m, a, y: y * 2)
        model.second.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    compiled = compiled_by(mine, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    outer = []
    for model in (compiled, theirs):
        model.register_forward_hook(lambda m, a, y: outer.append(y.sum().detach()))
        model.register_forward_pre_hook(lambda m, a: outer.append(a[0].sum()))
    x = f64(3, 4, grad=False)
    trained_equally(mine, compiled, theirs, x)
    torch.testing.assert_close(outer[: len(outer) // 2], outer[len(outer) // 2 :])
