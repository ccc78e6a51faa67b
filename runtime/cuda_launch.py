"""Launches of one kernel: its parameters written into memory of our own, its code chosen by the buffers' addresses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence

from isthmus.diagnostics import CompileError
from isthmus.runtime.cuda_kernels import Generate, KernelLoader, Loaded
from isthmus.sizes import evaluate


class Launcher:
    """Launches a loaded kernel; for buffers that are not aligned, code of its own is made when they first come."""

    def __init__(self, loader: KernelLoader, name: str, generate: Generate, loaded: Loaded) -> None:
        self._loader, self._name, self._generate = loader, name, generate
        self._aligned = loaded
        self._unaligned: Loaded | None = None
        self._mask = loaded.facts.alignment - 1
        self._lock = threading.Lock()
        self._count = -1
        self._words = (ctypes.c_uint64 * 0)()
        self._parameters = (ctypes.c_void_p * 0)()

    def __call__(self, pointers: list[int], sizes: Mapping[str, int], symbols: Sequence[str], stream: int) -> None:
        """Launch with these pointers, then the sizes that the symbols are."""
        low = 0
        for pointer in pointers:
            low |= pointer
        loaded = self._aligned if not low & self._mask else self._unaligned_now()
        facts = loaded.facts
        grid = facts.grid
        if symbols:
            values = [sizes[name] for name in symbols]
            if not isinstance(grid, int):
                grid = evaluate(grid, dict(zip(facts.symbols, values, strict=True)))
            pointers = [*pointers, *(value & 0xFFFFFFFFFFFFFFFF for value in values)]
        if not isinstance(grid, int) or grid <= 0:
            return
        with self._lock:  # the driver copies the parameters before it returns
            if len(pointers) != self._count:
                self._make_room(len(pointers))
            self._words[:] = pointers
            address = ctypes.addressof(self._parameters)
            self._loader.driver.launch(loaded.function, grid, facts.block, facts.shared_bytes, stream, address)

    def _make_room(self, count: int) -> None:
        self._count = count
        self._words = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self._words)
        self._parameters = (ctypes.c_void_p * count)(*(start + 8 * k for k in range(count)))

    def _unaligned_now(self) -> Loaded:
        with self._lock:
            if self._unaligned is None:
                made = self._loader.load({self._name: self._generate}, aligned=False)[self._name]
                if isinstance(made, CompileError):
                    raise made
                self._unaligned = made
            return self._unaligned
