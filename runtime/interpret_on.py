"""The reference interpreter for programs of a GPU: what it makes anew is made there."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.runtime.convention import Executable, Value


class OnDevice:
    """An executable whose new tensors are made on a device: the reference interpreter for programs of a GPU."""

    def __init__(self, run: Executable, device: torch.device) -> None:
        self._run = run
        self._device = device
        self.fresh = bool(getattr(run, "fresh", False))
        self.native = False

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run; 0-d tensors of the host may join."""
        host = torch.device("cpu")
        with torch.device(self._device):
            return self._run(
                [a.to(self._device) if isinstance(a, Tensor) and a.device == host else a for a in arguments]
            )
