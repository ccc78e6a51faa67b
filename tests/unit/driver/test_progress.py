"""The line that a long compilation shows."""

from __future__ import annotations

import io
import time

from rich.console import Console

from isthmus.driver.progress import Progress


def _progress(delay: float, *, terminal: bool = True) -> tuple[Progress, io.StringIO]:
    written = io.StringIO()
    return Progress(Console(file=written, force_terminal=terminal), delay), written


def test_long_work_says_what_it_does() -> None:
    progress, written = _progress(0.01)
    with progress.showing():
        time.sleep(0.1)
        with progress.showing():  # a backward that is compiled inside is part of it
            progress.note("train", "fuse")
        time.sleep(0.2)
    assert "isthmus: compiling train: fuse done" in written.getvalue()
    length = len(written.getvalue())
    progress.note("train", "emit")
    assert len(written.getvalue()) == length, "nothing is shown after the end"


def test_short_work_and_files_show_nothing() -> None:
    for progress, written in (_progress(60), _progress(0, terminal=False)):
        with progress.showing():
            progress.note("train", "fuse")
            time.sleep(0.05)
        assert written.getvalue() == ""
