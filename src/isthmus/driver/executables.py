"""Executables around others: one that saves nothing in an arena, one that is compiled at its first call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from torch import Tensor

from isthmus.driver.progress import PROGRESS
from isthmus.frontend import autocast
from isthmus.frontend.collector import collector_paused
from isthmus.runtime.convention import Executable, Value

_COMPILING = threading.RLock()


@contextmanager
def compiling() -> Generator[None]:
    """Hold the compiler's lock, show progress, pause the cyclic garbage collector.

    Autocast is off: captured programs say themselves what is cast, and torch's derivatives of their calls cast nothing.
    """
    with _COMPILING, PROGRESS.showing(), autocast.disabled(), collector_paused():
        yield


class Plain:
    """An executable whose saved values are tensors of their own, whatever it could do besides."""

    def __init__(self, run: Executable) -> None:
        self._run = run
        self.fresh = bool(getattr(run, "fresh", False))
        self.native = bool(getattr(run, "native", False))

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run."""
        return self._run(arguments)


class Lazily:
    """An executable that is compiled when it is first called."""

    def __init__(self, make: Callable[[], Executable]) -> None:
        self._make = make
        self._made: Executable | None = None
        self._lock = threading.RLock()

    def _now(self) -> Executable:
        if self._made is None:
            with self._lock:
                self._made = self._made or self._make()
        return self._made

    @property
    def native(self) -> bool:
        """Whether the call is one native call."""
        return bool(getattr(self._now(), "native", False))

    @property
    def fresh(self) -> bool:
        """Whether results share no storage."""
        return bool(getattr(self._now(), "fresh", False))

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Compile at the first call, then run."""
        return self._now()(arguments)
