"""`loss.backward()` inside a traced function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import isthmus


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def simple(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def twice(model: nn.Module, x: Tensor) -> Tensor:
    first, second = model(x).square().mean(), model(x * 2).sum()
    first.backward()
    second.backward(torch.full((), 0.5, dtype=x.dtype))
    return first.detach() + second.detach()


def several(model: nn.Module, x: Tensor) -> list[Tensor]:
    y = model(x)
    torch.autograd.backward([y, y.sum()], [torch.ones_like(y), None])
    return [y.detach()]


def only_some(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward(inputs=[model.get_parameter("0.weight")])
    return loss.detach()


@pytest.mark.parametrize("capture", ["trace", "dynamo"])
@pytest.mark.parametrize("program", [simple, twice, several, only_some])
def test_gradients_are_accumulated_as_eager_does(program: Callable[..., object], capture: str) -> None:
    eager, model = make(), make()
    eager[2].bias.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    compiled = isthmus.compile(lambda x: program(model, x), capture=capture)
    for i in range(4):
        x = torch.randn(5, 6).double()
        torch.testing.assert_close(compiled(x), program(eager, x))
        if capture == "trace":
            assert isthmus.last_call_native()
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if q.grad is not None:
                torch.testing.assert_close(p.grad, q.grad)
        if i == 1:
            eager.zero_grad()
            model.zero_grad()


def test_an_optimizer_outside_trains_as_eager_does() -> None:
    eager, model = make(), make()
    compiled = isthmus.compile(lambda x: simple(model, x), capture="trace")
    theirs, ours = torch.optim.Adam(eager.parameters(), 0.01), torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(20):
        x = torch.randn(5, 6).double()
        for optimizer, run in ((theirs, lambda x: simple(eager, x)), (ours, compiled)):
            optimizer.zero_grad()
            run(x)
            optimizer.step()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_what_would_be_wrong_at_the_second_call_is_refused() -> None:
    model, x = make(), torch.randn(5, 6).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def whole(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        return simple(model, x)

    def reads(x: Tensor) -> Tensor:
        simple(model, x)
        grad = model.get_parameter("0.weight").grad
        assert grad is not None
        return grad.norm()

    for program in (whole, reads):
        with pytest.raises(isthmus.UnsupportedError, match="\\.grad"):
            isthmus.compile(program, capture="trace")(x)
    with pytest.raises(isthmus.UnsupportedError, match="argument"):
        isthmus.compile(lambda x: simple(model, x), capture="trace")(x.clone().requires_grad_())
    with pytest.raises(isthmus.UnsupportedError, match="create_graph"):
        isthmus.compile(lambda x: model(x).sum().backward(create_graph=True), capture="trace")(x)
    handle = model.get_parameter("0.weight").register_hook(lambda g: g * 2)
    with pytest.raises(isthmus.UnsupportedError, match="hooks"):
        isthmus.compile(lambda x: simple(model, x), capture="trace")(x)
    handle.remove()
