"""Packing a factor that nothing is computed on, shared by all contractions of one dtype and tile: half precision is
widened on the way.

A panel holds `width` neighbours along the factor's own dim for one step of k after the other. Where a block has no
whole number of panels the last neighbour stands for those that are missing: what they give is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus import ir
from isthmus.codegen.dtypes import MEMORY, REGISTER, from_memory
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type, Value
from isthmus.codegen.vector_math import Math
from isthmus.dialects.target import Target

AT_ONCE = 8
"""Rows of memory that are walked side by side: so many streams are read ahead, and fit into a cache set."""

LINE = 512
"""Bits of a cache line."""

UNIT = 128
"""Bits within which lanes change places in one instruction."""


@dataclass(frozen=True)
class Panels:
    """Panels of so many neighbours of a factor of a dtype, made by vectors of so many lanes.

    `turned`: steps of k lie side by side in memory, not neighbours.
    """

    dtype: str
    width: int
    lanes: int
    turned: bool

    @property
    def scalar(self) -> str:
        """The LLVM scalar of an element of a panel: half precision is widened."""
        return REGISTER[self.dtype]

    @property
    def name(self) -> str:
        """Name of the function that `emit_panels` writes."""
        kind = self.dtype if ir.is_half(self.dtype) else self.scalar
        return f"contract_{'turn' if self.turned else 'copy'}_{kind}_{self.width}x{self.lanes}"


def emit_panels(module: Module, panels: Panels, target: Target) -> None:
    """Write `void @name(ptr source, i64 stride, i64 count, i64 steps, ptr out)`.

    Element i of 0..count at step k of 0..steps is source[i·stride + k] where `turned`, else source[k·stride + i]. Up to
    a vector may be written past the last panel.
    """
    arguments = [("source", PTR), ("stride", I64), ("count", I64), ("steps", I64), ("out", PTR)]
    f = Function(module, panels.name, arguments)
    (_Turned if panels.turned else _Straight)(f, panels, Math(f, target)).emit()
    f.finish()


class _Panels:
    def __init__(self, f: Function, panels: Panels, math: Math) -> None:
        self.f, self.math, self.dtype = f, math, panels.dtype
        self.scalar, self.width, self.lanes = panels.scalar, panels.width, panels.lanes
        self.source, self.stride, self.count, self.steps, self.out = f.arguments

    def at(self, base: Value, index: Value | int) -> Value:
        """Address of an element of a panel."""
        return self.f.address(base, index, self.scalar)

    def read_at(self, base: Value, index: Value | int) -> Value:
        """Address of an element in memory."""
        return self.f.address(base, index, MEMORY[self.dtype])

    def read(self, place: Value, lanes: int) -> Value:
        """Neighbours in memory, widened."""
        return from_memory(self.math, self.f.load(place, Type.of(MEMORY[self.dtype], lanes)), self.dtype)

    def copy_one(self, source: Value, target: Value) -> None:
        self.f.store(self.read(source, 1), target)

    def existing(self, i: Value) -> Value:
        """The neighbour itself, or the last one."""
        return self.f.intrinsic("smin", i, self.count - 1)


class _Straight(_Panels):
    """Neighbours lie side by side: a few steps of k at a time, one panel after the other."""

    def emit(self) -> None:
        f, width = self.f, self.width
        whole = f.binary("sdiv", self.count, f.index(width)) * width
        with f.loop(0, self.steps, AT_ONCE) as low:
            high = f.intrinsic("smin", low + AT_ONCE, self.steps)
            with f.loop(0, whole, width) as i:
                panel = self.at(self.out, i * self.steps)
                with f.loop(low, high) as step:
                    row = self.read_at(self.read_at(self.source, step * self.stride), i)
                    target = self.at(panel, step * width)
                    for start, lanes in pieces(width, self.lanes):
                        f.store(self.read(self.read_at(row, start), lanes), self.at(target, start))
            with f.when(f.compare("slt", whole, self.count)):
                panel = self.at(self.out, whole * self.steps)
                with f.loop(low, high) as step, f.loop(0, width) as i:
                    source = self.read_at(self.source, step * self.stride + self.existing(whole + i))
                    self.copy_one(source, self.at(panel, step * width + i))


def pieces(width: int, lanes: int) -> list[tuple[int, int]]:
    """Cut a panel into vectors that fill it exactly: start and lanes of each."""
    found, start = list[tuple[int, int]](), 0
    while start < width:
        size = min(lanes, 1 << ((width - start).bit_length() - 1))
        found.append((start, size))
        start += size
    return found


class _Turned(_Panels):
    """Steps of k lie side by side: squares of UNIT bits are transposed in registers, several in one vector."""

    def __init__(self, f: Function, panels: Panels, math: Math) -> None:
        super().__init__(f, panels, math)
        width, lanes = panels.width, panels.lanes
        self.square = UNIT // Type.of(self.scalar).bits
        self.line = LINE // Type.of(MEMORY[self.dtype]).bits
        starts = range(0, width, lanes)
        exact = width % lanes == 0
        self.groups = [[s] for s in starts] if exact else [list(starts)]
        """First neighbours of vectors; those that write over their end go together, in the order of memory."""

    def emit(self) -> None:
        f = self.f
        whole = self.steps & -self.square
        with f.loop(0, self.count, self.width) as i:
            panel = self.at(self.out, i * self.steps)
            rows = [self.read_at(self.source, self.existing(i + r) * self.stride) for r in range(self.width)]
            with f.loop(0, whole, self.line) as low:
                high = f.intrinsic("smin", low + self.line, whole)
                for group in self.groups:
                    with f.loop(low, high, self.square) as step:
                        self._squares(rows, group, panel, step)
            with f.loop(whole, self.steps) as step:
                for r, row in enumerate(rows):
                    self.copy_one(self.read_at(row, step), self.at(panel, step * self.width + r))

    def _squares(self, rows: Sequence[Value], starts: Sequence[int], panel: Value, step: Value) -> None:
        """All that a few vectors of neighbours need at `square` steps."""
        made = [self._transposed([self._across(rows, start + r, step) for r in range(self.square)]) for start in starts]
        for k in range(self.square):
            target = self.at(panel, (step + k) * self.width)
            for start, vectors in zip(starts, made, strict=True):
                self.f.store(vectors[k], self.at(target, start))

    def _across(self, rows: Sequence[Value], first: int, step: Value) -> Value:
        """Steps of every `square`-th row, from the first on; of a row that is not there nothing."""
        f, unit = self.f, Type.of(self.scalar, self.square)
        chosen = range(first, first + self.lanes, self.square)
        parts = [
            self.read(self.read_at(rows[r], step), self.square) if r < len(rows) else f.poison(unit) for r in chosen
        ]
        while len(parts) > 1:
            size = parts[0].type.lanes
            parts = [f.shuffle(x, y, range(2 * size)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _transposed(self, rows: list[Value]) -> list[Value]:
        """Rows and columns of every square exchanged, by interleaving halves in log2(square) rounds."""
        distance = 1
        while distance < self.square:
            made = list(rows)
            for i in range(0, self.square, 2 * distance):
                for j in range(distance):
                    low, high = halves(self.lanes, self.square, distance)
                    x, y = rows[i + j], rows[i + j + distance]
                    made[i + 2 * j], made[i + 2 * j + 1] = self.f.shuffle(x, y, low), self.f.shuffle(x, y, high)
            rows, distance = made, 2 * distance
        return rows


def halves(lanes: int, unit: int, distance: int) -> tuple[list[int], list[int]]:
    """Masks that interleave the low and the high halves of two vectors' units, `distance` lanes at a time."""
    found: tuple[list[int], list[int]] = ([], [])
    for first in range(0, lanes, unit):
        for k, mask in enumerate(found):
            for start in range(first + k * unit // 2, first + (k + 1) * unit // 2, distance):
                mask += [*range(start, start + distance), *range(lanes + start, lanes + start + distance)]
    return found
