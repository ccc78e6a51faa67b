"""Torch's global switches that a program may turn: put back when capture is over."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from isthmus.frontend.torch_private import leave_transforms, transform_depth


@contextmanager
def restored_modes() -> Generator[None]:
    """Keep grad mode, autocast and torch.func's levels as they were, whatever the program leaves behind."""
    grad = torch.is_grad_enabled()
    depth = transform_depth()
    devices = ("cpu", "cuda")
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    try:
        yield
    finally:
        leave_transforms(depth)
        torch.set_grad_enabled(grad)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
