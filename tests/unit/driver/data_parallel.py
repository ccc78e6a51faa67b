"""One process of several that train a model in parallel, by eager torch and compiled: gradients have to be equal."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import isthmus

FORMS = ("compiled inside", "compiled outside", "traced inside")


def train_in_processes(count: int, backend: str, device: str, port: int) -> None:
    """Start `count` processes; raises what fails in one of them. `device`: "cpu", or "cuda" for one GPU each."""
    mp.spawn(_process, args=(count, backend, device, port), nprocs=count)  # pyright: ignore[reportPrivateImportUsage]


def _process(rank: int, count: int, backend: str, kind: str, port: int) -> None:
    torch.set_num_threads(1)
    with _group(rank, count, backend, port):
        device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            torch.cuda.set_device(device)
        for form in FORMS:
            _compare(form, rank, device)


@contextmanager
def _group(rank: int, count: int, backend: str, port: int) -> Generator[None]:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(backend, rank=rank, world_size=count, timeout=timedelta(seconds=100))
    try:
        yield
    finally:
        dist.destroy_process_group()


def _parallel(model: nn.Module, device: torch.device, form: str) -> nn.Module:
    ids = [device.index] if device.type == "cuda" else None
    if form == "compiled outside":
        return isthmus.compile(DistributedDataParallel(model, device_ids=ids))
    if form.endswith("inside"):
        isthmus_model = isthmus.compile(model, capture="trace" if form.startswith("traced") else "dynamo")
        return DistributedDataParallel(_Calls(model, isthmus_model), device_ids=ids)
    return DistributedDataParallel(model, device_ids=ids)


class _Calls(nn.Module):
    """The parameters of a model, called as it is compiled."""

    def __init__(self, model: nn.Module, compiled: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._compiled = (compiled,)

    def forward(self, x: Tensor) -> Tensor:
        return self._compiled[0](x)


def _compare(form: str, rank: int, device: torch.device) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).to(device)
    mine = copy.deepcopy(plain)
    contestants = [(plain, _parallel(plain, device, "eager")), (mine, _parallel(mine, device, form))]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m, _ in contestants]
    torch.manual_seed(100 + rank)
    for _ in range(4):
        x, y = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
        for (_, parallel), optimizer in zip(contestants, optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(parallel(x), y).backward()
        for a, b in zip(plain.parameters(), mine.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6)
            total = b.grad.clone()
            dist.all_reduce(total)
            torch.testing.assert_close(total / dist.get_world_size(), b.grad)  # every process has the same
        for optimizer in optimizers:
            optimizer.step()
