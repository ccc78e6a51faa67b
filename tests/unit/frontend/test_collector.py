"""The garbage collector while a program is captured and compiled."""

from __future__ import annotations

import gc
import weakref

import pytest

from isthmus.frontend.collector import FEW, collector_paused


class Node:
    """A cycle of its own."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_made_meanwhile_is_old_and_still_collected() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        kept = [Node() for _ in range(5000)]
        gone = weakref.ref(Node())
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() and len(gc.get_objects(generation=0)) < len(kept)
    assert gone() is not None
    gc.collect()
    assert gone() is None and gc.get_freeze_count() < FEW


def test_what_a_process_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with collector_paused():
            pass
        assert count >= FEW and gc.get_freeze_count() == count
    finally:
        gc.unfreeze()


def test_it_is_as_before_after_an_error() -> None:
    def fails() -> None:
        with collector_paused():
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(KeyError):
            fails()
        assert not gc.isenabled()
    finally:
        gc.enable()
