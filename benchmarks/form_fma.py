"""Does joining multiplications and additions pay: error against float64 beside eager's own, time, and NaNs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isthmus
from isthmus.driver import lowering


class Residual(nn.Module):
    """Normalisation, two products and gelu: the pointwise part of a transformer's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Pointwise(nn.Module):
    """A chain of polynomials and a gate, bound by memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(256)), nn.Parameter(torch.randn(256))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.a + self.b
        z = (y * 0.3 + 0.1) * y + 0.7
        return z * torch.sigmoid(y) + x * (1 - z)


class Leg(nn.Module):
    """√(x² - y²): 0 where x = y, as long as both squares are rounded."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.detach()
        return (x * x - y * y).sqrt()


def step(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])]


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Root mean square error over all results, each scaled to mean square 1."""
    pairs = [(a.double(), b) for a, b in zip(found, exact, strict=True)]
    parts = [((a - b).square().mean() / b.square().mean().clamp_min(1e-300)).item() for a, b in pairs]
    return (sum(parts) / len(parts)) ** 0.5


def seconds(calls: list[Callable[[], object]], repeats: int = 60) -> list[float]:
    """Processor time of each call, in turns, so that a busy machine is busy for all."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[i] = min(best[i], time.thread_time() - start)
    return best


def compiled(module: nn.Module, fused: bool) -> Callable[[Tensor], Tensor]:
    original = lowering.Lowering.run

    def run(self: lowering.Lowering, ir_module: object, text: str, artifact: str | None) -> None:
        original(self, ir_module, text, artifact)  # pyright: ignore
        if fused and text == "end-differentiation":
            original(self, ir_module, "form-fma", None)  # pyright: ignore

    lowering.Lowering.run = run  # pyright: ignore
    torch._dynamo.reset()
    function = isthmus.compile(module, options={"cache": False})
    step(module, function, INPUTS[type(module)])
    lowering.Lowering.run = original
    return function


def share_of_nans(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    return function(x.requires_grad_()).isnan().double().mean().item()


INPUTS = {Leg: torch.randn(4096), Residual: torch.randn(64, 128), Pointwise: torch.randn(4096, 256)}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{'program':12} {'':8} {'error':>10} {'ms/step':>9}")
    for module in (Residual(128), Pointwise()):
        x = torch.randn_like(INPUTS[type(module)])
        double = step(module.double(), module, x.double())
        exact = [t.clone() for t in double]
        module.float()
        functions = {"eager": module, "apart": compiled(module, False), "fused": compiled(module, True)}
        times = seconds([partial(step, module, function, x) for function in functions.values()])
        for (name, function), spent in zip(functions.items(), times, strict=True):
            e = error(step(module, function, x), exact)
            print(f"{type(module).__name__:12} {name:8} {e:10.2e} {1e3 * spent:9.3f}")
    leg, x = Leg(), torch.randn(4096)
    shares = [share_of_nans(leg, f, x) for f in (leg, compiled(leg, False), compiled(leg, True))]
    print("NaNs of √(x² - y²) at x = y: eager {:.0%}, apart {:.0%}, fused {:.0%}".format(*shares))


if __name__ == "__main__":
    main()
