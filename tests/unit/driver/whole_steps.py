"""Models, batches and optimizers of whole steps, and how a compiled step is compared with the eager loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

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
