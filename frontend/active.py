"""Which trace this thread is in, and whether transforms are part of what Dynamo traces."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from torch._dynamo import assume_constant_result

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


@assume_constant_result
def joins_the_graph() -> bool:
    """Tell Dynamo, which asks when it meets a transform of ours, whether to trace it as torch's own."""
    _HERE.met = True
    return not getattr(_HERE, "apart", False)


class MeetingTransforms:
    """While Dynamo traces a frame. `any` tells whether it met a transform; `apart`: those are programs of their own."""

    def __init__(self, *, apart: bool) -> None:
        self.any = False
        self._apart = apart

    def __enter__(self) -> None:
        self._before = getattr(_HERE, "met", False), getattr(_HERE, "apart", False)
        _HERE.met, _HERE.apart = False, self._apart

    def __exit__(self, *error: object) -> None:
        self.any = _HERE.met
        _HERE.met, _HERE.apart = self._before
