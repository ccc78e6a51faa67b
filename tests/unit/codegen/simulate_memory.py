"""Memory of a simulated GPU: addresses by kind of memory, and who touched each byte since the last barrier."""

from __future__ import annotations

import numpy as np

GLOBAL, SHARED, LOCAL = 1 << 40, 2 << 40, 3 << 40
GUARD = 256
"""Bytes between buffers that nobody may touch."""
NOBODY = -1


class MemoryError_(AssertionError):
    """An access that a GPU would not forgive."""


class _Watched:
    """Bytes, and per byte: whether they may be touched, the last writer and reader and when that was."""

    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)
        self.valid = np.zeros(size, bool)
        self.written = np.zeros(size, bool)
        self.writer = np.full(size, NOBODY)
        self.reader = np.full(size, NOBODY)
        self.write_time = np.zeros(size, np.int64)
        self.read_time = np.zeros(size, np.int64)


class Memory:
    """Buffers in global memory, `shared` bytes for each of `blocks` blocks."""

    def __init__(
        self, buffers: list[np.ndarray], blocks: int, threads: int, shared: int, constants: dict[str, np.ndarray]
    ) -> None:
        self.threads = threads
        given = len(buffers)
        buffers = [*buffers, *(words.view(np.uint8) for words in constants.values())]
        total = sum(len(b) + 2 * GUARD for b in buffers) + GUARD
        self.main = _Watched(total)
        self.addresses: list[int] = []
        at = GUARD
        for b in buffers:
            at = -(-at // GUARD) * GUARD
            self.main.bytes[at : at + len(b)] = b
            self.main.valid[at : at + len(b)] = True
            self.main.written[at : at + len(b)] = True
            self.addresses.append(GLOBAL + at)
            at += len(b) + GUARD
        self.constants = dict(zip(constants, self.addresses[given:], strict=True))
        del self.addresses[given:]
        self.shared_size = max(shared, 1)
        self.shared = _Watched(blocks * self.shared_size)
        self.shared.valid[:] = True
        self.local = np.zeros((blocks * threads, 0), np.uint8)
        self.clock = np.zeros(blocks, np.int64)

    def buffer(self, number: int, size: int) -> np.ndarray:
        """What a buffer holds now."""
        at = self.addresses[number] - GLOBAL
        return self.main.bytes[at : at + size].copy()

    def barrier(self, ctas: np.ndarray) -> None:
        """Threads of these blocks have met."""
        self.clock[ctas] += 1

    def grow_local(self, size: int) -> None:
        """Give every thread that many bytes of its own."""
        more = size - self.local.shape[1]
        self.local = np.pad(self.local, ((0, 0), (0, more)))

    def _places(self, address, size, align, cta) -> tuple[_Watched, np.ndarray]:
        where = address.astype(np.int64)
        if (where % align).any():
            raise MemoryError_(f"an access of {size} bytes is not aligned to {align}")
        base = where[0] >> 40
        assert ((where >> 40) == base).all()
        offset = where & ((1 << 40) - 1)
        if base == SHARED >> 40:
            if (offset + size > self.shared_size).any():
                raise MemoryError_("an access outside shared memory")
            return self.shared, (cta * self.shared_size + offset)[:, None] + np.arange(size)
        assert base == GLOBAL >> 40, "a wild pointer"
        return self.main, offset[:, None] + np.arange(size)

    def _check_valid(self, memory: _Watched, places: np.ndarray) -> None:
        inside = (places >= 0) & (places < len(memory.bytes))
        if not inside.all() or not memory.valid[places].all():
            raise MemoryError_("an access outside all buffers")

    def _foreign(self, memory, who, when, places, threads, cta) -> np.ndarray:
        """Whether another thread touched these bytes with no barrier since: one of another block always counts."""
        previous = who[places]
        others = (previous != NOBODY) & (previous != threads[:, None])
        other_block = previous // self.threads != cta[:, None]
        return others & (other_block | (when[places] == self.clock[cta][:, None]))

    def read(self, address, size, align, threads, cta) -> np.ndarray:
        if not len(address):
            return np.zeros((0, size), np.uint8)
        if int(address[0]) >> 40 == LOCAL >> 40:
            offset = (address.astype(np.int64) & ((1 << 40) - 1))[:, None] + np.arange(size)
            return self.local[threads[:, None], offset]
        memory, places = self._places(address, size, align, cta)
        self._check_valid(memory, places)
        if not memory.written[places].all():
            raise MemoryError_("shared memory is read that nobody wrote")
        if self._foreign(memory, memory.writer, memory.write_time, places, threads, cta).any():
            raise MemoryError_("a thread reads what another one writes, with no barrier between")
        memory.reader[places] = threads[:, None]
        memory.read_time[places] = self.clock[cta][:, None]
        return np.ascontiguousarray(memory.bytes[places])

    def write(self, address, raw, align, threads, cta, atomic: bool) -> None:
        if not len(address):
            return
        if int(address[0]) >> 40 == LOCAL >> 40:
            offset = (address.astype(np.int64) & ((1 << 40) - 1))[:, None] + np.arange(raw.shape[1])
            self.local[threads[:, None], offset] = raw
            return
        memory, places = self._places(address, raw.shape[1], align, cta)
        self._check_valid(memory, places)
        if atomic:
            memory.bytes[places] = raw
            return
        same = memory.bytes[places] == raw
        if (self._foreign(memory, memory.writer, memory.write_time, places, threads, cta) & ~same).any():
            raise MemoryError_("two threads write the same place, with no barrier between")
        if self._foreign(memory, memory.reader, memory.read_time, places, threads, cta).any():
            raise MemoryError_("a thread writes what another one reads, with no barrier between")
        memory.bytes[places] = raw
        if not (memory.bytes[places] == raw).all():
            raise MemoryError_("two threads write different values to one place at once")
        memory.written[places] = True
        memory.writer[places] = threads[:, None]
        memory.write_time[places] = self.clock[cta][:, None]


__all__ = ["GLOBAL", "LOCAL", "SHARED", "Memory", "MemoryError_"]
