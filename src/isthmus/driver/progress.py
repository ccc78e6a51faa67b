"""What the terminal shows while a compilation takes longer than a second: which program, which stage, for how long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when there is something to show: most processes never do
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

DELAY = 1.0
"""Seconds after which a compilation is long enough to be shown."""


class Progress:
    """One line on a terminal that appears after `delay` seconds and goes when the work is done; elsewhere nothing."""

    def __init__(self, console: Console | None = None, delay: float = DELAY) -> None:
        self._console = console
        self._delay = delay
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._timer: threading.Timer | None = None
        self._began = 0.0
        self._doing = ""

    @contextmanager
    def showing(self) -> Generator[None]:
        """Show what is noted meanwhile; work inside other work that is shown changes nothing."""
        if self._timer is not None or not self._is_on_terminal():
            yield
            return
        self._began = time.perf_counter()
        self._timer = threading.Timer(self._delay, self._start)
        self._timer.daemon = True
        self._timer.start()
        try:
            yield
        finally:
            self._stop()

    def note(self, program: str, stage: str) -> None:
        """Say which stage of which program has just ended."""
        if self._timer is not None:
            self._doing = f"{program}: {stage} done"
            with self._lock:
                if self._status is not None:
                    self._status.update(self._text())

    def _is_on_terminal(self) -> bool:
        return sys.stderr.isatty() if self._console is None else self._console.is_terminal

    def _text(self) -> Text:
        from rich.text import Text

        return Text(f"isthmus: compiling {self._doing} ({time.perf_counter() - self._began:.0f} s)")

    def _start(self) -> None:
        from rich.console import Console
        from rich.status import Status

        with self._lock:
            if self._timer is not None:
                self._status = Status(self._text(), console=self._console or Console(stderr=True))
                self._status.start()

    def _stop(self) -> None:
        with self._lock:
            assert self._timer is not None
            self._timer.cancel()
            self._timer = None
            if self._status is not None:
                self._status.stop()
                self._status = None


PROGRESS = Progress()
"""That of this process; compilations take turns, so one line is enough."""
