"""Torch's global switches that a program may turn: put back when capture is over."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def restored_modes() -> Generator[None]:
    """Keep grad mode and autocast as they were, whatever the program leaves behind."""
    grad = torch.is_grad_enabled()
    devices = ("cpu", "cuda")
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
