"""CPU time of a whole training step: the eager loop, isthmus.compile with torch's optimizer, isthmus.train_step, JAX.

They alternate in one process on one thread; what counts are the ratios. JAX's whole step (value_and_grad and the update
in one jitted program) is left out where JAX is not installed. Run: python benchmarks/train_step.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isthmus

ROUNDS = 9
STEPS_CHECKED = 3
Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """One layer of a transformer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two dense layers, each on a residual stream."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x))))


class SmallGPT(nn.Module):
    """Two layers of width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, 64), nn.Embedding(32, 64)
        self.blocks = nn.Sequential(Block(64, 4), Block(64, 4))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 128, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every place, in one row each."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def small_mlp() -> tuple[nn.Module, Batch]:
    """Batch 32, 16 -> 32 -> 4."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    return model, (torch.randn(32, 16), torch.randint(4, (32,)))


def digits_mlp() -> tuple[nn.Module, Batch]:
    """Batch 64, 784 -> 256 -> 128 -> 10."""
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), (torch.randn(64, 784), torch.randint(10, (64,)))


def small_gpt() -> tuple[nn.Module, Batch]:
    """Batch 8, 32 tokens."""
    return SmallGPT(), (torch.randint(128, (8, 32)), torch.randint(128, (256,)))


class Many(nn.Module):
    """A product of 64 parameters of 8 numbers: nothing but what each parameter costs."""

    def __init__(self) -> None:
        super().__init__()
        self.ws = nn.ParameterList(1 + 0.1 * torch.randn(8) for _ in range(64))

    def forward(self, x: Tensor) -> Tensor:
        """x · w0 · w1 · ..."""
        for w in self.ws:
            x = x * w
        return x


def ov_train() -> tuple[nn.Module, Batch]:
    """Batch 2, 8 -> 16 -> 4: nothing but what a step costs."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, (torch.randn(2, 8), torch.randint(4, (2,)))


def ov_params() -> tuple[nn.Module, Batch]:
    """One row of 8 numbers."""
    return Many(), (torch.randn(1, 8), torch.randint(8, (1,)))


def loss_fn(model: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy."""
    return F.cross_entropy(model(x), y)


def ways(make: Callable[[], tuple[nn.Module, Batch]]) -> dict[str, Callable[[], object]]:
    """Give one step of each way, each with a model of its own; see that they compute the same."""
    found: dict[str, Callable[[], object]] = {}
    for name in ("eager", "compile", "train_step"):
        torch.manual_seed(0)
        model, (x, y) = make()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        if name == "train_step":
            step = isthmus.train_step(model, loss_fn, optimizer)
            found[name] = lambda step=step, x=x, y=y: step(x, y)
            continue
        called = isthmus.compile(model) if name == "compile" else model

        def loop(called: nn.Module = called, optimizer: torch.optim.AdamW = optimizer, x: Tensor = x, y: Tensor = y):
            optimizer.zero_grad()
            loss = loss_fn(called, x, y)
            loss.backward()
            optimizer.step()
            return loss

        found[name] = loop
    if find_spec("jax") is not None:
        from jax_steps import whole_step

        torch.manual_seed(0)
        model, batch = make()
        found["jax"] = whole_step(make.__name__, model, *batch)
    for _ in range(STEPS_CHECKED):
        losses = {name: float(cast(Tensor, step()).item()) for name, step in found.items()}
    for name, loss in losses.items():
        if abs(loss - losses["eager"]) > 1e-3 * abs(losses["eager"]):
            raise AssertionError(f"{name} computes something else: {losses}")
    return found


def measure(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Give the median CPU milliseconds of a step of each way; they take turns."""
    begin = time.process_time()
    steps["eager"]()
    count = max(3, int(0.05 / max(time.process_time() - begin, 1e-5)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            begin = time.process_time()
            for _ in range(count):
                step()
            times[name].append((time.process_time() - begin) / count * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    names = ("compile", "train_step", "jax")
    print(f"{'model':12} {'eager ms':>10}" + "".join(f"{n:>11}" for n in names) + "   (ratios to eager)")
    for make in (ov_train, ov_params, small_mlp, digits_mlp, small_gpt):
        found = measure(ways(make))
        ratios = [f"{found[n] / found['eager']:11.2f}" if n in found else f"{'-':>11}" for n in names]
        print(f"{make.__name__:12} {found['eager']:10.3f}{''.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
