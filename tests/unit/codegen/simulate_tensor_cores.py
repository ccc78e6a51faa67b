"""What a grid does with tensor cores: fragments, products of warps, and copies that are done only when waited for.

A copy under way leaves NaN where it will write, so that whoever reads too early is found out.
"""

from __future__ import annotations

import re

import numpy as np
import simulate_grid
from simulate_grid import SimulationError
from simulate_text import Instruction, Kind

LANES = np.arange(32)
ROW, COLUMN = LANES // 4, LANES % 4 * 2
"""Where the first of a lane's two elements is in an 8 x 8 matrix."""
NAN = 0xFF
"""Bytes of NaN in every 16-bit format."""


CUT = np.uint32(0xFFFFE000)
"""The bits of an f32 that a product in TF32 looks at."""


def floats(words: np.ndarray, dtype: str) -> np.ndarray:
    """Two numbers of each 32-bit word, along a new last axis."""
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 2)
    if dtype == "bf16":
        return (halves.astype(np.uint32) << 16).view(np.float32)
    return halves.view(np.float16).astype(np.float32)


def matrix(parts: list[np.ndarray], dtype: str, rows: int) -> np.ndarray:
    """The matrix [warps, rows, 16] of fragments [warps, 32]; blocks of 8 x 8, down first; of f32 half the columns."""
    if dtype == "f32":
        found = np.zeros((len(parts[0]), rows, 8), np.float32)
        for n, part in enumerate(parts):
            down, across = divmod(n, rows // 8)[::-1]
            found[:, ROW + 8 * down, LANES % 4 + 4 * across] = (part & CUT).view(np.float32)
        return found
    found = np.zeros((len(parts[0]), rows, 16), np.float32)
    for n, part in enumerate(parts):
        down, across = divmod(n, rows // 8)[::-1]
        for e in range(2):
            found[:, ROW + 8 * down, COLUMN + e + 8 * across] = floats(part, dtype)[..., e]
    return found


class Grid(simulate_grid.Grid):
    """A launch whose warps may multiply matrices."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.copies: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[]]
        """Groups of copies under way, the open one last: threads, addresses, bytes."""

    def _extractvalue(self, i: Instruction) -> np.ndarray:
        found = re.fullmatch(r"\{.*\} %([\w.]+), (\d+)", i.text)
        assert found, i.text
        return self.env[found[1]][self.active][:, int(found[2])]

    def _nvvm(self, name: str, arguments: list[tuple[Kind, str]]) -> np.ndarray | None:
        if name.startswith("ldmatrix."):
            return self._load_fragments(self.value(*arguments[0]), turned="trans" in name)
        if name.startswith(("mma.m16n8k16.row.col", "mma.m16n8k8.row.col")):
            dtype = {"bf16": "bf16", "tf32": "f32"}.get(name.rsplit(".", 1)[1], "f16")
            return self._multiply(dtype, [self.value(*a) for a in arguments])
        if name == "f2tf32.rna":
            x = np.ascontiguousarray(self.value(*arguments[0]), np.float32)
            return np.where(np.isnan(x), x.view(np.uint32), (x.view(np.uint32) + 0x1000) & CUT).view(np.int32)
        if name.startswith("cp.async.c") and "shared.global" in name:
            return self._copy(int(re.findall(r"global\.(\d+)", name)[0]), [self.value(*a) for a in arguments])
        if name == "cp.async.commit.group":
            self._everybody()
            self.copies.append([])
            return None
        if name == "cp.async.wait.group":
            return self._wait(int(arguments[0][1]))
        if name == "cp.async.wait.all":
            return self._wait_for_own()
        return super()._nvvm(name, arguments)

    def _everybody(self) -> None:
        if len(self.active) != self.count:
            raise SimulationError("threads that are apart count their copies")

    def _warps(self, x: np.ndarray) -> np.ndarray:
        """A value of each active thread as [warps, 32]."""
        if len(self.active) % 32 or (self.tid[self.active].reshape(-1, 32) % 32 != LANES).any():
            raise SimulationError("a warp that is not whole multiplies")
        return x.reshape(-1, 32, *x.shape[1:])

    # ---- copies

    def _copy(self, size: int, values: list[np.ndarray]) -> None:
        target, source = values[:2]
        there = np.full(len(self.active), size) if len(values) == 2 else values[2].astype(np.int64)
        data = np.zeros((len(self.active), size), np.uint8)
        for count in np.unique(there[there > 0]):
            on = there == count
            threads = self.active[on]
            if (source[on] % size).any():
                raise SimulationError("a copy from an address that its size does not divide")
            data[on, :count] = self.memory.read(source[on], int(count), 1, threads, self.cta[threads])
        cta = self.cta[self.active]
        self.memory.write(target, np.full_like(data, NAN), size, self.active, cta, False)
        self.copies[-1].append((self.active, target, data))

    def _wait(self, left: int) -> None:
        self._everybody()
        done = self.copies[: len(self.copies) - 1 - left]
        del self.copies[: len(done)]
        for threads, target, data in (c for group in done for c in group):
            self.memory.write(target, data, 1, threads, self.cta[threads], False)

    def _wait_for_own(self) -> None:
        """All that the active threads copy is there now; the copies of others go on."""
        for group in self.copies:
            for n, (threads, target, data) in enumerate(group):
                here = np.isin(threads, self.active)
                self.memory.write(target[here], data[here], 1, threads[here], self.cta[threads[here]], False)
                group[n] = threads[~here], target[~here], data[~here]

    # ---- fragments

    def _load_fragments(self, address: np.ndarray, *, turned: bool) -> np.ndarray:
        raw = self.memory.read(address, 16, 16, self.active, self.cta[self.active])
        elements = self._warps(np.ascontiguousarray(raw).view(np.uint16)).reshape(-1, 4, 8, 8)
        if turned:
            elements = elements.swapaxes(2, 3)
        pairs = np.stack([elements[:, :, ROW, COLUMN + e] for e in range(2)], -1)  # warps, matrices, lanes, 2
        words = np.ascontiguousarray(pairs).view(np.uint32)[..., 0]
        return words.swapaxes(1, 2).reshape(-1, 4)

    def _multiply(self, dtype: str, values: list[np.ndarray]) -> np.ndarray:
        words = [np.ascontiguousarray(v).view(np.uint32).reshape(len(v)) for v in values[:6]]
        parts = [self._warps(w) for w in words]
        a, b = matrix(parts[:4], dtype, 16), matrix(parts[4:], dtype, 8)
        with np.errstate(all="ignore"):
            product = np.einsum("wik,wjk->wij", a.astype(np.float64), b.astype(np.float64))
            sums = np.zeros((len(a), 32, 4), np.float32)
            for n in range(4):
                sums[:, :, n] = product[:, ROW + n // 2 * 8, COLUMN + n % 2]
            return np.stack(values[6:], -1) + sums.reshape(-1, 4)


__all__ = ["Grid", "SimulationError"]
