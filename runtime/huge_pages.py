"""Huge pages for memory that compiled code works in, where the system gives them on request only."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

HUGE = 2 << 20
"""Bytes of a huge page on x86-64, and on other machines at most pages that are advised in vain."""

_LEAST = 2 * HUGE
_MADV_HUGEPAGE = 14


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return kind(("madvise", ctypes.CDLL(None)))


def advise_huge_pages(address: int, nbytes: int) -> None:
    """Ask for huge pages in memory from `address` on, whole ones inside it; in vain where there are none."""
    advise = _madvise()
    if nbytes < _LEAST or advise is None:
        return
    begin, end = -(-address // HUGE) * HUGE, (address + nbytes) // HUGE * HUGE
    advise(begin, end - begin, _MADV_HUGEPAGE)
