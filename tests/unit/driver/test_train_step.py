"""Whole training steps as one program, against the eager loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

import isthmus
from isthmus.driver.train_step import TrainStep

Make = Callable[[Iterable[Tensor]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: SGD(p, 0.1),
    "sgd momentum": lambda p: SGD(p, 0.05, momentum=0.9),
    "sgd dampening": lambda p: SGD(p, 0.05, momentum=0.9, dampening=0.3),
    "sgd nesterov": lambda p: SGD(p, 0.05, momentum=0.9, nesterov=True),
    "sgd decay": lambda p: SGD(p, 0.05, momentum=0.5, weight_decay=0.1),
    "sgd maximize": lambda p: SGD(p, 1e-4, maximize=True),
    "adam": lambda p: Adam(p, 0.01),
    "adam decay": lambda p: Adam(p, 0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-5),
    "adam amsgrad": lambda p: Adam(p, 0.01, amsgrad=True),
    "adam maximize": lambda p: Adam(p, 1e-4, maximize=True),
    "adamw": lambda p: AdamW(p, 0.01, weight_decay=0.1),
    "adamw amsgrad": lambda p: AdamW(p, 0.01, amsgrad=True),
}


def make_model(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def batches(count: int, dtype: torch.dtype = torch.float64, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(count):
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        made.append((x.to(dtype), x[:, :3].sin().to(dtype)))
    return made


def eager_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, loss_fn: Callable[..., Tensor] = mse
) -> Tensor:
    optimizer.zero_grad()
    loss = loss_fn(model, x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same(a: nn.Module, b: nn.Module, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def assert_same_state(a: Optimizer, b: Optimizer, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    left, right = a.state_dict(), b.state_dict()
    assert left["param_groups"] == right["param_groups"]
    assert list(left["state"]) == list(right["state"])
    for index, entry in left["state"].items():
        other = right["state"][index]
        assert list(entry) == list(other)
        for name, value in entry.items():
            if value is None:
                assert other[name] is None
                continue
            assert value.dtype == other[name].dtype and value.shape == other[name].shape
            torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance)


def program_count(step: TrainStep) -> int:
    return len(step.session.programs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hundred_steps_are_those_of_the_eager_loop(name: str, dtype: torch.dtype) -> None:
    eager, compiled = make_model(dtype), make_model(dtype)
    theirs, ours = OPTIMIZERS[name](eager.parameters()), OPTIMIZERS[name](compiled.parameters())
    step = isthmus.train_step(compiled, mse, ours)
    for x, y in batches(100, dtype):
        wanted = eager_step(eager, theirs, x, y)
        found = step(x, y)
        assert isinstance(found, Tensor) and not found.requires_grad
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
        assert isthmus.last_call_native()
    assert program_count(step) == 1
    assert_same(eager, compiled, dtype)
    assert_same_state(theirs, ours, dtype)
    assert all(p.grad is None for p in compiled.parameters())
