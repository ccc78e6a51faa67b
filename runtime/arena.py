"""Memory that compiled code works in: kept between calls, so that no call pays for page faults.

An arena is a torch tensor of bytes, so that torch's own accounting sees it. A running call takes
one and gives it back: a second thread, or a second forward before the first backward, gets its
own. Arenas only grow, few are kept, and all go with the compiled object that owns the pool.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from isthmus.runtime.huge_pages import advise_huge_pages
from isthmus.runtime.torch_private import no_dispatch_modes, storage_uses

ALIGNMENT = 64
"""Bytes; torch's CPU allocator aligns to it, and planned offsets are multiples of it."""


class ArenaPool:
    """Arenas of one compiled function on one device; safe to use from several threads. `keep=0`: torch's keeps them."""

    def __init__(self, keep: int = 4, device: str = "cpu") -> None:
        self.keep = keep
        self._device = torch.device(device)
        self.free: list[Tensor] = []  # popped and appended to without a lock: each is one bytecode
        self._lock = threading.Lock()
        self._largest = 0

    def take(self, nbytes: int) -> Tensor:
        """Check out an arena of at least `nbytes` bytes; its content is undefined."""
        try:
            arena = self.free.pop()  # one bytecode: no lock on the usual path
        except IndexError:
            arena = None
        if arena is not None and arena.numel() >= nbytes:
            return arena
        with self._lock:
            self._largest = max(self._largest, nbytes, 1)
            size = self._largest if self.keep else max(nbytes, 1)
        del arena
        # An inference tensor could not be saved on a tape; a mode might give memory that is not there.
        with torch.inference_mode(False), no_dispatch_modes():
            arena = torch.empty(size, dtype=torch.uint8, device=self._device)
        if self._device.type == "cpu":
            advise_huge_pages(arena.data_ptr(), size)
        return arena

    def give(self, arena: Tensor) -> None:
        """Give an arena back; dropped where enough are kept, or a larger one is wanted since."""
        if len(self.free) < self.keep and arena.numel() >= self._largest:
            self.free.append(arena)

    def lend(self, nbytes: int) -> Lease:
        """Check out an arena whose owner is an object: it returns when the object goes."""
        return Lease(self.take(nbytes), self)

    def clear(self) -> None:
        """Drop the free arenas."""
        self.free.clear()

    @property
    def free_bytes(self) -> int:
        """What is kept at the moment for calls to come."""
        return sum(arena.numel() for arena in list(self.free))


class Lease:
    """An arena that somebody owns: it goes back to its pool on `release`, at the latest when the
    lease is collected."""

    __slots__ = ("__weakref__", "_pool", "tensor")

    def __init__(self, tensor: Tensor, pool: ArenaPool) -> None:
        self.tensor: Tensor | None = tensor
        self._pool = pool

    def release(self) -> None:
        """Give the arena back; a second call does nothing.

        Memory that a view still looks at is left to the view: it is not reused.
        """
        tensor, self.tensor = self.tensor, None
        if tensor is not None and self._pool.keep and storage_uses(tensor) <= 1:
            self._pool.give(tensor)

    def __del__(self) -> None:
        self.release()
