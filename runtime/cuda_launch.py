"""Launches of one kernel: its parameters written into memory of our own, its code chosen by the buffers' addresses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence

from isthmus.diagnostics import CompileError
from isthmus.dialects.program import TensorMap, numbers
from isthmus.runtime.cuda_driver import Driver
from isthmus.runtime.cuda_kernels import Generate, KernelLoader, Loaded
from isthmus.sizes import evaluate

MAP_BYTES, MAP_ALIGNMENT = 128, 64


class _Parameters:
    """What the driver reads at a launch: words, then tensor maps, and an array of pointers to them all."""

    def __init__(self, words: int, maps: Sequence[TensorMap], driver: Driver) -> None:
        self._maps, self._driver = maps, driver
        self._words = (ctypes.c_uint64 * words)()
        self._memory = (ctypes.c_uint8 * (MAP_BYTES * len(maps) + MAP_ALIGNMENT))()
        first = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        self._places = [first + MAP_BYTES * n for n in range(len(maps))]
        start = ctypes.addressof(self._words)
        places = (*(start + 8 * k for k in range(words)), *self._places)
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        self.address = ctypes.addressof(self._pointers)
        self._shown: list[int] = []
        """The words that the maps were made for."""

    def write(self, words: list[int], sizes: Mapping[str, int]) -> None:
        """Take the words of a launch; `sizes` by the names that the maps use."""
        self._words[:] = words
        if not self._maps or words == self._shown:
            return
        for map_, place in zip(self._maps, self._places, strict=True):
            shape, strides = numbers(map_.shape, sizes), numbers(map_.strides, sizes)
            address = words[map_.buffer] + map_.offset
            ctypes.memmove(place, self._driver.tensor_map(map_.dtype, address, shape, strides, map_.box), MAP_BYTES)
        self._shown = list(words)


class Launcher:
    """Launches a loaded kernel; for buffers that are not aligned, code of its own is made when they first come."""

    def __init__(self, loader: KernelLoader, name: str, generate: Generate, loaded: Loaded) -> None:
        self._loader, self._name, self._generate = loader, name, generate
        self.aligned = loaded
        self.facts = loaded.facts
        self._unaligned: Loaded | None = None
        self._mask = loaded.facts.alignment - 1
        self._lock = threading.Lock()
        self._parameters: dict[tuple[bool, int], _Parameters] = {}

    def __call__(
        self, pointers: list[int], sizes: Mapping[str, int], symbols: Sequence[str | int], stream: int
    ) -> None:
        """Launch with these pointers, then the sizes that the symbols are."""
        low = 0
        for pointer in pointers:
            low |= pointer
        loaded = self.aligned if not low & self._mask else self.unaligned()
        facts = loaded.facts
        grid = facts.grid
        own: dict[str, int] = {}
        if symbols:
            values = [name if isinstance(name, int) else sizes[name] for name in symbols]
            own = dict(zip(facts.symbols, values, strict=False))
            if not isinstance(grid, int):
                grid = evaluate(grid, own)
            pointers = [*pointers, *(value & 0xFFFFFFFFFFFFFFFF for value in values)]
        if not isinstance(grid, int) or grid <= 0:
            return
        if facts.resident:
            grid = min(grid, facts.resident * self._loader.processors)
        with self._lock:  # the driver copies the parameters before it returns
            parameters = self._parameters_of(loaded, len(pointers))
            parameters.write(pointers, own)
            driver = self._loader.driver
            driver.launch(loaded.function, grid, facts.block, facts.shared_bytes, stream, parameters.address)

    def _parameters_of(self, loaded: Loaded, count: int) -> _Parameters:
        key = (loaded is self.aligned, count)
        found = self._parameters.get(key)
        if found is None:
            found = self._parameters[key] = _Parameters(count, loaded.facts.maps, self._loader.driver)
        return found

    def unaligned(self) -> Loaded:
        """The code for buffers at any address."""
        with self._lock:
            if self._unaligned is None:
                made = self._loader.load({self._name: self._generate}, aligned=False)[self._name]
                if isinstance(made, CompileError):
                    raise made
                self._unaligned = made
            return self._unaligned
