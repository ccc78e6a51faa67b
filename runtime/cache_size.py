"""The bound on what the cache keeps on disk: the entries that were not used for the longest time go first.

The first digit of a key divides the entries into 16 shares, each of which may take a 16th of the bound. A share's
tally is a file with one byte for each block that was written since it was counted: appending is atomic, so processes
need no lock for it, and its length says when a share must be looked at. Only then its files are listed; down to
`_KEPT` of the bound they are removed, so that this happens once in many entries. When an entry was last used is its
file's time. A removed entry that somebody is reading stays readable for him, and is made again by others.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

DEFAULT = 2 << 30
"""Bytes on disk where `ISTHMUS_CACHE_SIZE` says nothing."""

BLOCK = 4096
"""What a file takes on disk is counted in these."""

UNFINISHED = ".new-"
"""What the name of a file begins with that is being written."""
_FINISHED = re.compile(r"[0-9a-f]{64}\.bin")

_KEPT = 0.8
_SHARES = "0123456789abcdef"
_USE = 60.0
"""Seconds within which a second use is not noted."""
_ABANDONED = 3600.0
"""Seconds after which a file that is not finished belongs to a process that has ended."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def chosen_size() -> int | None:
    """`ISTHMUS_CACHE_SIZE`: bytes, or with K, M, G or T behind; None (no bound) for 0."""
    text = os.environ.get("ISTHMUS_CACHE_SIZE", "").strip()
    return _size_of(text) if text else DEFAULT


@functools.cache
def _size_of(text: str) -> int | None:
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        message = f"ISTHMUS_CACHE_SIZE={text!r} is no size: write 2G, 500M, a number of bytes, or 0 for no bound"
        warnings.warn(f"{message}; the cache keeps {readable(DEFAULT)}", RuntimeWarning, stacklevel=4)
        return DEFAULT
    size = Decimal(found[1]) * _UNITS[found[2].upper()]
    return math.ceil(size) or None


def readable(size: int) -> str:
    """Give a number of bytes as people write it."""
    unit = next((u for u in "TGMK" if size >= _UNITS[u]), "")
    return f"{size / _UNITS[unit]:.1f} {unit}iB" if unit else f"{size} bytes"


@dataclass(frozen=True)
class Entry:
    """A file of the cache."""

    path: str
    bytes: int
    """That it takes on disk."""
    used: float
    """When it was last read or written."""
    finished: bool = True


def entries(directory: Path, share: str = "") -> Iterator[Entry]:
    """Every file of a cache, or of one share; files of somebody else's in the folder are none."""
    for folder in _scan(directory):
        if len(folder.name) == 2 and folder.name.startswith(share):
            for file in _scan(folder.path):
                finished = _FINISHED.fullmatch(file.name) is not None and file.name.startswith(folder.name)
                if not finished and not file.name.startswith(UNFINISHED):
                    continue
                with contextlib.suppress(OSError):  # another process has removed it
                    facts = file.stat(follow_symlinks=False)
                    taken = -(-facts.st_size // BLOCK) * BLOCK
                    yield Entry(file.path, taken, facts.st_mtime, finished)


def _scan(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []


def note_use(handle: int, used: float) -> None:
    """Say that an open entry is in use; `used` is what its file says."""
    if time.time() - used > _USE:
        with contextlib.suppress(OSError):  # a folder that may only be read
            os.utime(handle)


def note_written(directory: Path, key: str, size: int, limit: int) -> None:
    """Count an entry that was written, and make room where its share has more than it may. OSError as the disk says."""
    share = key[0]
    tally = os.open(_tally(directory, share), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        counted = os.fstat(tally).st_size
        blocks = -(-size // BLOCK)
        os.write(tally, b"." * blocks)
        if counted and (counted + blocks) * BLOCK <= limit // len(_SHARES):
            return
        with contextlib.suppress(BlockingIOError):  # another process is making room
            fcntl.flock(tally, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = _make_room(directory, share, limit // len(_SHARES))
            os.ftruncate(tally, max(1, left // BLOCK))
    finally:
        os.close(tally)


def _make_room(directory: Path, share: str, limit: int) -> int:
    """Remove what was not used for the longest time, where a share is above its limit; gives the bytes that stay."""
    found = sorted(entries(directory, share), key=lambda e: e.used)
    total = sum(e.bytes for e in found)
    goal = limit * _KEPT if total > limit else total
    now = time.time()
    for entry in found:
        if total > goal if entry.finished else now - entry.used > _ABANDONED:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
            total -= entry.bytes
    return total


def remove_all(directory: Path) -> tuple[int, int]:
    """Remove every entry; gives how many there were and their bytes."""
    count = size = 0
    for entry in entries(directory):
        with contextlib.suppress(OSError):
            os.unlink(entry.path)
            count, size = count + 1, size + entry.bytes
    for share in _SHARES:
        with contextlib.suppress(OSError):
            os.unlink(_tally(directory, share))
    return count, size


def _tally(directory: Path, share: str) -> Path:
    return directory / f"written-{share}"
