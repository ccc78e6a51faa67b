"""A function of torch's that a trace called before, on tensors that look the same, is written down, not run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import isthmus
from isthmus.driver.artifacts import module_text
from isthmus.frontend import known_nodes
from isthmus.frontend.trace import trace

Program = Callable[[Tensor, Tensor], object]


def layers(x: Tensor, w: Tensor) -> object:
    for _ in range(4):
        a, b = F.linear(x, w).chunk(2, 1)
        x = x + torch.cat([torch.sigmoid(a), F.gelu(b)], 1)
    return torch.autograd.grad(x.sum(), [w])


def half_precision(x: Tensor, w: Tensor) -> object:
    for k in range(4):
        with torch.autocast("cpu", torch.bfloat16, enabled=k % 2 == 0):
            x = x + F.layer_norm(F.linear(x, w), (4,), w[0], w[1])
    return torch.autograd.grad(x.sum(), [w])


def inner_ones(x: Tensor, w: Tensor) -> object:
    h = [F.linear(x, w)]
    for _ in range(3):
        h.append(F.linear(h[-1], w).tanh())
    return torch.autograd.grad(h[-1].square().sum(), [h[2], h[0], w])


def not_reached(x: Tensor, w: Tensor) -> object:
    made = [(*torch.meshgrid(x[0] * 2, w[0] * 3, indexing="ij"), (x * 2).detach() * w) for _ in range(3)]
    rows, columns, rest = zip(*made, strict=True)
    grads = torch.autograd.grad(rows[2].sum() + rows[1].sum(), [w, x], allow_unused=True)
    more: list[Tensor | None] = [
        *grads,
        *torch.autograd.grad(rest[2].sum() + columns[1].sum(), [x, w], allow_unused=True),
    ]
    return [g is None for g in more], [g for g in more if g is not None]


def twice(x: Tensor, w: Tensor) -> object:
    for _ in range(3):
        x = F.linear(x, w).sin()
    (g,) = torch.autograd.grad(x.sum(), [w], create_graph=True)
    return torch.autograd.grad(g.square().sum(), [w])


def written(x: Tensor, w: Tensor) -> object:
    for _ in range(3):
        x = F.linear(x, w)
    x.mul_(w)
    x.view(-1)[:4].add_(w[0])
    return torch.autograd.grad(x.sum(), [w])


def late_history(x: Tensor, w: Tensor) -> object:
    plain = [x.detach() * 2 for _ in range(3)]
    views = [p[:2] for p in plain]
    views[2].mul_(w[:2])
    return plain[2].requires_grad, torch.autograd.grad(plain[2].sum(), [w])


def written_without_history(x: Tensor, w: Tensor) -> object:
    h = [F.linear(x, w) for _ in range(3)]
    with torch.no_grad():
        h[2].mul_(2)
    return torch.autograd.grad(sum(h).sum(), [w]), h[1]  # pyright: ignore


def asks(x: Tensor, w: Tensor) -> object:
    h = [F.linear(x, w) for _ in range(3)]
    found = [t.is_leaf for t in h]
    return h[2] if found[2] else h[2] * 2, [t.grad_fn is None for t in h], h[2].view(-1)._base is None


def switched(x: Tensor, w: Tensor) -> object:
    h = [x.detach() * 2 for _ in range(3)]
    h[2].requires_grad_()
    return torch.autograd.grad((h[2] * w).sum(), [h[2], w])


def recomputed(x: Tensor, w: Tensor) -> object:
    for _ in range(3):
        x = checkpoint(lambda t: F.linear(F.linear(t, w), w).sin(), x, use_reentrant=False)  # pyright: ignore
    return torch.autograd.grad(x.sum(), [w])


def stale_view(x: Tensor, w: Tensor) -> object:
    h = F.linear(x, w)
    with torch.no_grad():
        view = h.unflatten(1, (2, -1))
        h.mul_(2)  # now torch refuses to tell the history of the view
        return view.permute(1, 0, 2), view.permute(1, 0, 2), h


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.linear(x, x) * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return g * 3


def own_rule(x: Tensor, w: Tensor) -> object:
    for _ in range(3):
        x = F.linear(x, x) + F.linear(Double.apply(x), w)  # pyright: ignore
    return torch.autograd.grad(x.sum(), [w])


def transformed(x: Tensor, w: Tensor) -> object:
    def inner(t: Tensor) -> Tensor:
        return F.linear(F.linear(t, w), w).sum()

    return isthmus.grad(inner)(x), isthmus.grad(inner)(x), torch.func.vmap(lambda t: F.linear(F.linear(t, w), w))(x)


def caught(x: Tensor, w: Tensor) -> object:
    h = [F.linear(x, w) for _ in range(3)]
    try:
        h[2].add_(1)  # a leaf of the tape, where it was made again
    except RuntimeError:
        return x
    return h[2]


def asks_of_others(x: Tensor, w: Tensor) -> object:
    made = [F.linear(x, w) for _ in range(2)]
    last = made[1].sin()  # called once, on what is made again
    assert last.grad_fn is not None
    return last, [node.name() == "MmBackward0" for node, _ in last.grad_fn.next_functions if node is not None]


PROGRAMS = {
    p.__name__: p
    for p in (
        layers,
        half_precision,
        inner_ones,
        not_reached,
        twice,
        written,
        late_history,
        written_without_history,
        asks,
        asks_of_others,
        switched,
        recomputed,
        stale_view,
        own_rule,
        transformed,
        caught,
    )
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_is_what_a_run_would_record(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch):
    args = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    chosen = (lambda leaf, dim: (leaf, dim) == (0, 0)) if dynamic and name == "layers" else None
    found = trace(PROGRAMS[name], args, dynamic=chosen)
    monkeypatch.setattr(known_nodes.KnownNodes, "run", lambda self, target, args, kwargs, run: run())
    wanted = trace(PROGRAMS[name], args, dynamic=chosen)
    assert module_text(found.captured.module) == module_text(wanted.captured.module)
    assert repr(found.output).count("OutputSlot") == repr(wanted.output).count("OutputSlot")


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_eager_gives(name: str):
    args = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    got = isthmus.compile(PROGRAMS[name], capture="trace")(*args)
    torch.testing.assert_close(got, PROGRAMS[name](*args), atol=0.1 if name == "half_precision" else 1e-5, rtol=1e-4)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.unused = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + F.gelu(part(x))
        self.unused(x)
        return x.square().mean()


def test_parameters_of_equal_layers(monkeypatch: pytest.MonkeyPatch):
    """Each is an argument of its own, and one that the loss does not reach is not updated."""
    ran: list[object] = []
    run = known_nodes.KnownNodes.run

    def counting(self: known_nodes.KnownNodes, target: known_nodes.Target, args, kwargs, call):  # pyright: ignore
        return run(self, target, args, kwargs, lambda: (ran.append(target), call())[1])

    monkeypatch.setattr(known_nodes.KnownNodes, "run", counting)
    torch.manual_seed(0)
    net = Layers()
    other = Layers()
    other.load_state_dict(net.state_dict())
    own, theirs = (torch.optim.AdamW(n.parameters(), lr=0.1, weight_decay=0.5) for n in (net, other))
    step = isthmus.train_step(net, lambda m, x: m(x), own)
    for k in range(3):
        x = torch.full((2, 6), 0.5 + k)
        loss = step(x)
        theirs.zero_grad()
        wanted = other(x)
        wanted.backward()
        theirs.step()
        torch.testing.assert_close(loss, wanted.detach())
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert sum(t is torch._C._nn.linear for t in ran) == 2  # pyright: ignore
    assert sum(t is torch._C._nn.gelu for t in ran) == 1  # pyright: ignore
