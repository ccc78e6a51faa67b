"""Losses over many classes with their gradients as one program on a GPU: time, memory, error.

Usage: python benchmarks/gpu_losses.py [--pieces 64 128 256]
Cross-entropy of 8192 x 50304 logits in bfloat16, then of a linear layer from 4096 features. `whole`: the logits exist;
`n MiB`: they are made in pieces of at most so many mebibytes. Peak memory is counted above what was there before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu import captured, milliseconds
from torch import Tensor

import isthmus
from isthmus.passes import pipelines

ROWS, FEATURES, CLASSES, DEVICE = 8192, 4096, 50304, "cuda"
Step = Callable[..., tuple[Tensor, ...]]


def of_logits(z: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """The loss and its gradient."""
    loss = F.cross_entropy(z.float(), t)
    return loss.detach(), *torch.autograd.grad(loss, [z])


def of_features(h: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """The loss of a linear layer and both gradients."""
    loss = F.cross_entropy((h @ w.t()).float(), t)
    return loss.detach(), *torch.autograd.grad(loss, [h, w])


def row(name: str, step: Step, args: list[Tensor], exact: tuple[Tensor, ...]) -> str:
    """Measure one way to make a step."""
    found = step(*args)
    pairs = zip(found, exact, strict=True)
    error = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)
    del found
    step(*args)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(*args)
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) >> 20

    def run() -> Tensor:
        return step(*args)[0]

    ms, graph = milliseconds(run, rounds=5), captured(run)
    return f"{name:12}{ms:9.3f} {'' if graph is None else f'({graph:.3f})':>10}{peak:8} MiB{error:10.1e}"


def compiled(function: Step, mebibytes: int | None) -> Step:
    """Compile with logits in pieces of a size, or whole."""
    usual = pipelines.KERNELS
    if mebibytes is not None:
        text = f"chunk-rows{{most={mebibytes << 20}}}"
        pipelines.KERNELS = tuple(text if p == pipelines.CHUNK_ROWS else p for p in usual)
    whole = {"chunk_rows": False} if mebibytes is None else {}
    made = isthmus.compile(function, capture="trace", options={**whole, "cache": False})

    def step(*args: Tensor) -> tuple[Tensor, ...]:
        return made(*args)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", nargs="*", type=int, default=[64, 128, 256], help="mebibytes of logits at a time")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    t = torch.randint(0, CLASSES, (ROWS,), device=DEVICE)
    z = torch.randn(ROWS, CLASSES, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    usual = pipelines.KERNELS
    print(f"{'ms (graph)':12}{'':20}{'peak':>12}{'error':>10}")
    print("cross-entropy")
    exact = of_logits(z, t)
    for name, step in (("eager", of_logits), ("isthmus", compiled(of_logits, None))):
        print(row(name, step, [z, t], exact), flush=True)
    del z, exact
    torch.cuda.empty_cache()
    print("linear + cross-entropy")
    h = torch.randn(ROWS, FEATURES, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    w = (0.02 * torch.randn(CLASSES, FEATURES, device=DEVICE)).bfloat16().requires_grad_()
    exact = of_features(h, w, t)
    print(row("eager", of_features, [h, w, t], exact), flush=True)
    for mebibytes in (None, *chosen.pieces):
        step = compiled(of_features, mebibytes)
        print(row("whole" if mebibytes is None else f"{mebibytes} MiB", step, [h, w, t], exact), flush=True)
        pipelines.KERNELS = usual
        isthmus.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
