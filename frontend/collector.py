"""The cyclic garbage collector, paused while a program is captured and compiled."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

FEW = 10_000
"""Some interpreters begin with a few hundred frozen objects; a process that freezes has all that it imported."""


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the collector: graphs and IR are cyclic, young and needed meanwhile, and torch's own objects are many."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _grow_old()
            gc.enable()


def _grow_old() -> None:
    """Let the next collection of the young pass over what was made meanwhile: most of it is kept, or freed already.

    Objects go to the oldest generation, unread; a full collection finds those that nobody holds. What the process has
    frozen itself stays frozen.
    """
    if gc.get_freeze_count() < FEW:
        gc.freeze()
        gc.unfreeze()
