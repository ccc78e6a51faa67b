"""Training steps and abandoned forwards leave memory as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import isthmus
from tests.boundary.harness import CAPTURES, compiled_by

PAGE = 4096


def resident() -> int:
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc")
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_thousand_steps_and_abandoned_forwards_leave_memory_flat(capture: str):
    """A leak of one saved arena (256 KiB) per abandoned forward would be 50 MiB, of one tensor per step 500 MiB."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Dropout(0.1), nn.Linear(128, 64))
    compiled = compiled_by(model, capture, "native")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(512, 64)

    def step() -> None:
        optimizer.zero_grad()
        compiled(x).pow(2).sum().backward()
        optimizer.step()

    def settle() -> int:
        gc.collect()
        return resident()

    for _ in range(50):
        step()
        compiled(x)
    before = settle()
    for _ in range(1000):
        step()
    after_steps = settle()
    for _ in range(200):
        compiled(x)
    after_forwards = settle()
    assert after_steps - before < 8 << 20
    assert after_forwards - after_steps < 8 << 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc")
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_thousand_whole_steps_leave_memory_flat(micro_batches: int):
    """A leak of one gradient (32 KiB) per step would be 32 MiB; state is written in place."""
    torch.manual_seed(0)
    isthmus.reset()
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Dropout(0.1), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    step = isthmus.train_step(model, lambda m, x, y: (m(x) - y).pow(2).mean(), optimizer, micro_batches=micro_batches)

    def settle() -> tuple[int, int]:
        gc.collect()
        return resident(), len(gc.get_objects())

    for _ in range(50):
        step(x, y)
    places = [p.data_ptr() for p in model.parameters()]
    for _ in range(3):  # what others left settles now and then; a leak grows each time
        before, objects = settle()
        for _ in range(1000):
            step(x, y)
        after, objects_after = settle()
        if after - before < 4 << 20 and objects_after - objects < 100:
            break
    else:
        pytest.fail(f"{after - before} bytes and {objects_after - objects} objects more")
    assert [p.data_ptr() for p in model.parameters()] == places
