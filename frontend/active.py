"""Which trace this thread is in."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from isthmus.frontend.recorder import Recorder

_HERE = threading.local()


def active_recorder() -> Recorder | None:
    """Give the recorder of the trace that this thread is in, or None."""
    return getattr(_HERE, "recorder", None)


@contextmanager
def tracing_into(recorder: Recorder) -> Generator[None]:
    """Make this the recorder of this thread's trace."""
    before = active_recorder()
    _HERE.recorder = recorder
    try:
        yield
    finally:
        _HERE.recorder = before
