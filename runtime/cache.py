"""What was compiled, kept by the digest of what it was compiled from: in memory, then on disk.

An entry is machine code that this process will run. So the folder must be the user's own and
closed to others, an entry carries a digest of its key and content, and whatever does not match is
rebuilt as if it were absent. Losing the disk (full, read-only, foreign) costs time, never results.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.runtime import cache_size

_MAGIC = b"isthmus-cache-1\n"
_DIGEST = 32


def digest(*parts: str | bytes) -> str:
    """A key for the given parts; different lists of parts give different keys."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(struct.pack("<Q", len(data)))
        state.update(data)
    return state.hexdigest()


def pack(sections: Mapping[str, bytes]) -> bytes:
    """Join named byte strings into one entry."""
    parts = [struct.pack("<I", len(sections))]
    for name, data in sections.items():
        label = name.encode()
        parts += [struct.pack("<IQ", len(label), len(data)), label, data]
    return b"".join(parts)


def unpack(entry: bytes) -> dict[str, bytes]:
    """Take apart what `pack` joined."""
    (count,) = struct.unpack_from("<I", entry)
    at, sections = 4, {}
    for _ in range(count):
        label, size = struct.unpack_from("<IQ", entry, at)
        at += 12
        name = entry[at : at + label].decode()
        sections[name] = entry[at + label : at + label + size]
        at += label + size
    return sections


@dataclass
class Counters:
    """How look-ups ended, since the process began or `reset`; `explain` and tests read them."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    damaged: int = 0
    written: int = 0

    def reset(self) -> None:
        """Start counting anew."""
        self.memory_hits = self.disk_hits = self.misses = self.damaged = self.written = 0


@dataclass
class Cache:
    """Entries by key. `directory` is None where only memory is used; safe to share by threads.

    `limit`: how many bytes the entries may take on disk, None where they may take any.
    """

    directory: Path | None
    limit: int | None = cache_size.DEFAULT
    counters: Counters = field(default_factory=Counters)
    _memory: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _usable: bool | None = None

    def get(self, key: str) -> bytes | None:
        """The entry of a key, None where there is none that can be trusted."""
        found = self._memory.get(key)
        if found is not None:
            self._count("memory_hits")
            return found
        found = self._read(key)
        if found is None:
            self._count("misses")
            return None
        self._count("disk_hits")
        self._memory[key] = found
        return found

    def put(self, key: str, entry: bytes) -> None:
        """Keep an entry; where the disk refuses it, in memory only."""
        self._memory[key] = entry
        if not self._ready():
            return
        assert self.directory is not None
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=cache_size.UNFINISHED)
            try:
                with os.fdopen(handle, "wb") as file:
                    size = file.write(_MAGIC + _seal(key, entry) + entry)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            self._count("written")
            if self.limit is not None:
                cache_size.note_written(self.directory, key, size, self.limit)
        except OSError as error:
            self._give_up(f"cannot be written ({error})")

    def get_or_make(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The entry of a key, made and kept where it is missing. Two threads may both make it."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def clear(self) -> tuple[int, int]:
        """Forget every entry, in memory and on disk; gives how many files that were and their bytes."""
        self._memory.clear()
        if self.directory is None or not self._ready():
            return 0, 0
        return cache_size.remove_all(self.directory)

    def forget_memory(self) -> None:
        """Forget what is in memory, as a new process would: the disk keeps its entries."""
        self._memory.clear()

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / key[:2] / f"{key}.bin"

    def _read(self, key: str) -> bytes | None:
        if not self._ready():
            return None
        try:
            handle = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                facts = os.fstat(handle)
                foreign = facts.st_uid != os.getuid() or facts.st_mode & 0o022
                data = b"" if foreign else file.read()
                cache_size.note_use(handle, facts.st_mtime)
        except OSError:
            return None
        head = len(_MAGIC) + _DIGEST
        entry = data[head:]
        if data[:head] == _MAGIC + _seal(key, entry):
            return entry
        self._count("damaged")
        return None

    def _ready(self) -> bool:
        """Whether the folder exists, is ours and closed to others; made at the first question."""
        if self._usable is None:
            self._usable = self.directory is not None
            if self.directory is not None and (reason := _refusal(self.directory)):
                self._give_up(reason)
        return self._usable

    def _give_up(self, reason: str) -> None:
        """Use memory only from now on, and say so once."""
        self._usable = False
        warnings.warn(
            f"the compile cache {self.directory} {reason}: this process compiles without it"
            " (set ISTHMUS_CACHE_DIR to a folder of your own)",
            RuntimeWarning,
            stacklevel=3,
        )

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self.counters, what, getattr(self.counters, what) + 1)


def _seal(key: str, entry: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + entry).digest()


def _refusal(directory: Path) -> str | None:
    """Why a folder must not be used, None where it may; it is made if it does not exist."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = os.stat(directory)
    except OSError as error:
        return f"cannot be made ({error})"
    if not stat.S_ISDIR(facts.st_mode):
        return "is not a folder"
    if facts.st_uid != os.getuid():
        return "belongs to another user"
    if facts.st_mode & 0o022:
        return "can be written by others"
    if facts.st_mode & 0o055:
        with contextlib.suppress(OSError):
            directory.chmod(0o700)
    return None


def default_directory() -> Path | None:
    """`ISTHMUS_CACHE_DIR`; unset, the user's cache folder; set to nothing, no disk cache."""
    chosen = os.environ.get("ISTHMUS_CACHE_DIR")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "isthmus"
    except RuntimeError:
        return None


_current: Cache | None = None
_making = threading.Lock()


def current() -> Cache:
    """The process's cache; another one once `ISTHMUS_CACHE_DIR` names another folder or `ISTHMUS_CACHE_SIZE` a size."""
    global _current
    directory, limit = default_directory(), cache_size.chosen_size()
    with _making:
        if _current is None or (_current.directory, _current.limit) != (directory, limit):
            _current = Cache(directory, limit)
        return _current


def clear() -> tuple[int, int]:
    """Forget everything that was compiled, in memory and on disk; gives how many files that were and their bytes."""
    return current().clear()
