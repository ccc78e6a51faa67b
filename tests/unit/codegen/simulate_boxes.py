"""What a grid does with boxes: copies by the engine, done at once, and fragments that leave for shared memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import simulate_tensor_cores
from simulate_memory import SHARED
from simulate_tensor_cores import COLUMN, ROW, SimulationError
from simulate_text import Instruction, split, typed

from isthmus.dialects.program import TensorMap

ITEM = 2
"""Bytes of the elements of boxes."""


class Grid(simulate_tensor_cores.Grid):
    """A launch whose pointers beyond the buffers are the numbers of tensor maps."""

    maps: Sequence[TensorMap] = ()
    boxes_in = boxes_out = 0

    def _call(self, i: Instruction) -> np.ndarray | None:
        found = re.search(r'asm sideeffect "(.*?)", ".*?"\((.*)\)', i.text)
        if found is None:
            return super()._call(i)
        text, values = found[1], [self.value(*typed(t)) for t in split(found[2])]
        if text.startswith("bar.sync"):
            threads = int(text.rsplit(" ", 1)[1])
            for cta in np.unique(self.cta[self.active]):
                if (self.cta[self.active] == cta).sum() % threads:
                    raise SimulationError("a barrier that not all its threads reach")
            self.memory.barrier(np.unique(self.cta[self.active]))
        elif "mbarrier.try_wait" in text:  # copies are done at once: who waits sees them
            self.memory.barrier(np.unique(self.cta[self.active]))
        elif text.startswith("stmatrix"):
            self._store_fragments(values[0], values[1:])
        elif text.startswith("cp.async.bulk.tensor"):
            inwards = ".shared::cluster.global" in text
            for n, thread in enumerate(self.active):
                at = [int(np.int32(v[n])) for v in (values[3:] if inwards else values[2:])]
                self._box(int(values[1][n]), int(values[0][n]), at, thread, inwards=inwards)
        else:
            assert re.match(r"cp\.async\.bulk\.(commit|wait)|fence|mbarrier", text), text
        return None

    def _store_fragments(self, address: np.ndarray, words: list[np.ndarray]) -> None:
        elements = np.zeros((len(self.active) // 32, 4, 8, 8), np.uint16)
        for n, word in enumerate(words):
            pairs = np.ascontiguousarray(self._warps(word)).view(np.uint16).reshape(-1, 32, 2)
            for e in range(2):
                elements[:, n, ROW, COLUMN + e] = pairs[:, :, e]
        raw = elements.reshape(-1, 8).view(np.uint8)
        self.memory.write(address, raw, 16, self.active, self.cta[self.active], False)

    def _box(self, number: int, shared: int, at: list[int], thread: int, *, inwards: bool) -> None:
        """Copy a box of two dims and one place in all further ones; rows of 128 bytes, swizzled."""
        map_ = self.maps[number]
        start = self.memory.addresses[map_.buffer] + map_.offset
        start += sum(int(p) * int(s) for p, s in zip(at[2:], map_.strides[1:], strict=True))
        if (shared - SHARED) % 1024 or math.prod(map_.box) != 64 * map_.box[1]:
            raise SimulationError("a box that is no rows of 128 bytes from a multiple of 1024")
        row, column = (x.reshape(-1) for x in np.mgrid[0 : map_.box[1], 0:64])
        there = (shared + row * 128 + (((column // 8) ^ (row % 8)) * 8 + column % 8) * ITEM).astype(np.uint64)
        here = (start + (at[0] + column) * ITEM + (at[1] + row) * int(map_.strides[0])).astype(np.uint64)
        inside = (at[0] + column < map_.shape[0]) & (at[1] + row < map_.shape[1])
        who = np.full(len(row), thread)
        cta, own, far = self.cta[who], who[inside], here[inside]
        if inwards:
            raw = np.zeros((len(row), ITEM), np.uint8)
            raw[inside] = self.memory.read(far, ITEM, ITEM, own, self.cta[own])
            self.memory.write(there, raw, ITEM, who, cta, False)
        else:
            raw = self.memory.read(there, ITEM, ITEM, who, cta)
            self.memory.write(far, raw[inside], ITEM, own, self.cta[own], False)
        self.boxes_in, self.boxes_out = self.boxes_in + inwards, self.boxes_out + (not inwards)
