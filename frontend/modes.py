"""Torch's global switches that a program may turn: put back when capture is over."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from isthmus.frontend.captured import Compiled, Value
from isthmus.frontend.torch_private import leave_transforms, transform_depth


@contextmanager
def restored_modes() -> Generator[None]:
    """Keep grad mode, autocast and torch.func's levels as they were, whatever the program leaves behind.

    Hooks on saved tensors (a checkpoint around the first call) do not see what capture saves.
    """
    grad = torch.is_grad_enabled()
    depth = transform_depth()
    devices = ("cpu", "cuda")
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    try:
        with saved_tensors_hooks(_itself, _itself):
            yield
    finally:
        leave_transforms(depth)
        torch.set_grad_enabled(grad)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def leaving(compiled: Compiled, grad_mode: bool | None) -> Compiled:
    """Give what also turns the grad mode as the program does; None: it does not."""
    if grad_mode is None:
        return compiled

    def run(arguments: list[Value]) -> Sequence[Value]:
        results = compiled(arguments)
        torch.set_grad_enabled(grad_mode)
        return results

    return run
