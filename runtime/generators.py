"""Torch's random generators as they were at a call, so that a derivative which draws again draws the same numbers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Generators:
    """The states of the CPU's generator and of those of the devices that some tensors lie on."""

    __slots__ = ("_cpu", "_cuda")

    def __init__(self, tensors: Sequence[object]) -> None:
        devices = {t.device.index for t in tensors if isinstance(t, Tensor) and t.is_cuda}
        self._cpu = torch.get_rng_state()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices}

    @contextmanager
    def replayed(self) -> Generator[None]:
        """Draw again what was drawn from then on; afterwards the generators go on where they are now."""
        with torch.random.fork_rng(devices=list(self._cuda)):
            torch.set_rng_state(self._cpu)
            for device, state in self._cuda.items():
                torch.cuda.set_rng_state(state, device)
            yield
