"""Kernels on a GPU: from the cache or generated and linked in threads, loaded once per device."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects.program import TensorMap
from isthmus.runtime import cache
from isthmus.runtime.build import source_version
from isthmus.runtime.cpu import LLVM_VERSION, unlock_compilation
from isthmus.runtime.cuda_driver import Driver
from isthmus.runtime.stored import dump, restore
from isthmus.sizes import Dim

_THREADS = min(16, os.cpu_count() or 1)
"""That make PTX and link at once."""


@dataclass(frozen=True)
class LaunchFacts:
    """How a kernel is launched: `grid` blocks of `block` threads; its pointers are multiples of `alignment`.

    `symbols`: how the sizes that are its last numbers are called in `grid`; each program has names of its own. `maps`:
    its parameters after those. `resident`: blocks that one processor runs at once; no more are launched. 0: all.
    """

    entry: str
    block: int
    grid: Dim
    shared_bytes: int
    alignment: int
    symbols: tuple[str, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    resident: int = 0


@dataclass(frozen=True)
class Generated:
    """A kernel on its way: what makes its PTX (called in a thread of its own), and how it is launched."""

    ptx: Callable[[], str]
    facts: LaunchFacts


Generate = Callable[[str, bool], Generated]
"""`generate(arch, aligned)`: the text of a kernel; not `aligned` for buffers at any address."""


class Loaded:
    """A kernel in a device's memory, as long as this object lives."""

    def __init__(self, driver: Driver, image: bytes, facts: LaunchFacts, device: int) -> None:
        self.facts = facts
        module = driver.load(image, device)
        self.function = driver.function(module, facts.entry, facts.shared_bytes, device)
        self._finalizer = weakref.finalize(self, _let_go, driver, module, device)
        self._finalizer.atexit = False


_abandoned: list[tuple[Driver, object, int]] = []
"""Modules that nobody calls any more; unloading waits for the device, so it waits for a compilation."""


def _let_go(driver: Driver, module: object, device: int) -> None:
    _abandoned.append((driver, module, device))


def _unload_abandoned() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    while _abandoned:
        driver, module, device = _abandoned.pop()
        with contextlib.suppress(RuntimeError):  # a context that failed has no modules
            driver.unload(module, device)


_loaded: weakref.WeakValueDictionary[tuple[int, int, str, bool], Loaded] = weakref.WeakValueDictionary()
_loading = threading.RLock()


class KernelLoader:
    """Loads kernels by name into one device. A kernel's name tells its code."""

    def __init__(self, driver: Driver, device: int, *, use_cache: bool = True) -> None:
        self.driver = driver
        self.device = device
        self.arch = driver.arch(device)
        self._use_cache = use_cache

    @functools.cached_property
    def processors(self) -> int:
        """How many multiprocessors the device has."""
        return self.driver.processors(self.device)

    def load(self, kernels: Mapping[str, Generate], *, aligned: bool = True) -> dict[str, Loaded | CompileError]:
        """Give each kernel by name, or why it has no form on a GPU.

        Text is made only for those that neither this process nor the cache has.
        """
        unlock_compilation()
        with _loading:
            _unload_abandoned()
            found: dict[str, Loaded | CompileError] = {}
            waiting: dict[str, Future[bytes]] = {}
            with ThreadPoolExecutor(_THREADS) as pool:
                for name, generate in kernels.items():
                    there = _loaded.get(self._place(name, aligned)) if self._use_cache else None
                    if there is not None:
                        found[name] = there
                        continue
                    try:
                        waiting[name] = self._entry(pool, name, generate, aligned)
                    except CompileError as error:
                        found[name] = error
            for name, entry in waiting.items():
                try:
                    found[name] = made = self._load(entry.result())
                except UnsupportedError as error:
                    found[name] = error
                    continue
                if self._use_cache:
                    _loaded[self._place(name, aligned)] = made
            return found

    def _place(self, name: str, aligned: bool) -> tuple[int, int, str, bool]:
        return id(self.driver), self.device, name, aligned

    def _key(self, name: str, aligned: bool) -> str:
        versions = (LLVM_VERSION, source_version(), self.driver.linker)
        return cache.digest("gpu kernel", name, self.arch, str(aligned), *versions)

    def _entry(self, pool: ThreadPoolExecutor, name: str, generate: Generate, aligned: bool) -> Future[bytes]:
        """The cache's entry of a kernel: image and launch facts; linked in a thread where it is missing."""
        done: Future[bytes] = Future()
        store = cache.current()
        known = store.get(self._key(name, aligned)) if self._use_cache else None
        if known is not None:
            done.set_result(known)
            return done
        text = generate(self.arch, aligned)

        def link() -> bytes:
            image = self.driver.link(text.ptx(), self.arch)
            entry = cache.pack({"image": image, "facts": dump(text.facts)})
            if self._use_cache:
                store.put(self._key(name, aligned), entry)
            return entry

        return pool.submit(link)

    def _load(self, entry: bytes) -> Loaded:
        sections = cache.unpack(entry)
        facts = restore(sections["facts"])
        assert isinstance(facts, LaunchFacts)
        return Loaded(self.driver, sections["image"], facts, self.device)
