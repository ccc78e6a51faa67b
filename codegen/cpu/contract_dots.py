"""Blocks of sums of two factors that both run along k in memory: nothing is packed, vectors run along k.

An element is as many chains of fused multiply-adds as a vector has lanes, added at the end. Worth it where a factor
has few rows, so that packing the other one would cost as much as the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from isthmus.codegen.cpu.contract_panels import UNIT, halves
from isthmus.codegen.cpu.contract_tile import Block, Tile, write_block
from isthmus.codegen.llvm_text import Function, Module, Type, Value


@dataclass(frozen=True)
class DotTile:
    """Sums that stay in registers: `rows` by `columns` vectors of `lanes` steps of k.

    rows·columns + rows + 1 vectors should fit into the machine's registers. Columns are a power of two of UNIT bits.
    """

    scalar: str
    rows: int
    columns: int
    lanes: int
    fused: bool = True

    @property
    def name(self) -> str:
        """Tells the tile, for names of functions."""
        return f"{self.scalar}_{self.rows}x{self.columns}x{self.lanes}{'' if self.fused else '_unfused'}"


def dots_name(tile: DotTile) -> str:
    """Give the name of the function that `emit_dots` writes."""
    return f"contract_dots_{tile.name}"


def emit_dots(module: Module, tile: DotTile) -> None:
    """Write a function with the arguments and the meaning of `emit_block`'s, `far` elements between rows of both."""
    sums = Tile(tile.scalar, tile.rows, 1, tile.columns, tile.fused)
    write_block(module, dots_name(tile), sums, partial(_Dots, dots=tile))


class _Dots(Block):
    """A tile's row of sums becomes one vector when k ends."""

    def __init__(self, f: Function, tile: Tile, edge: str, dots: DotTile) -> None:
        super().__init__(f, tile, edge)
        self.dots = dots
        self.deep = Type.of(dots.scalar, dots.lanes)

    def fewer(self) -> list[int]:
        """None: a missing row costs little."""
        return []

    def sums(self, i: Value, j: Value, rows: int) -> list[list[Value]]:
        """Slots that become registers: a vector for each row."""
        f, dots = self.f, self.dots
        sums = self.zeros(rows, dots.columns, self.deep)
        lines_a = self.lines(self.a, self.far_a, i, rows, self.rows)
        lines_b = self.lines(self.b, self.far_b, j, dots.columns, self.columns)
        whole = self.steps & -dots.lanes
        with f.loop(0, whole, dots.lanes) as step:
            self._multiply(lines_a, lines_b, step, None, sums)
        with f.when(f.compare("slt", whole, self.steps)):
            self._multiply(lines_a, lines_b, whole, self._below(self.steps - whole), sums)
        made: list[list[Value]] = []
        for row in sums:
            slot = f.slot(self.tile.vector)
            f.store(self._added([f.load(s, self.deep, 64) for s in row]), slot, 64)
            made.append([slot])
        return made

    def _below(self, count: Value) -> Value:
        """Lanes below a count."""
        f, lanes = self.f, self.dots.lanes
        return f.compare("slt", f.lanes(range(lanes), "i64"), f.splat(count, lanes))

    def _multiply(
        self, lines_a: list[Value], lines_b: list[Value], step: Value, mask: Value | None, sums: list[list[Value]]
    ) -> None:
        xs = [self._load(line, step, mask) for line in lines_a]
        for c, line in enumerate(lines_b):
            y = self._load(line, step, mask)
            for x, row in zip(xs, sums, strict=True):
                self.add_product(row[c], x, y)

    def _load(self, line: Value, step: Value, mask: Value | None) -> Value:
        f = self.f
        at = f.address(line, step, self.dots.scalar)
        return f.load(at, self.deep) if mask is None else f.masked_load(at, mask, f.const(0.0, self.deep))

    def _added(self, vectors: list[Value]) -> Value:
        """The sums of vectors' lanes side by side."""
        unit = UNIT // Type.of(self.dots.scalar).bits
        parts = [self._added_unit(vectors[start : start + unit], unit) for start in range(0, len(vectors), unit)]
        while len(parts) > 1:
            lanes = range(2 * parts[0].type.lanes)
            parts = [self.f.shuffle(x, y, lanes) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _added_unit(self, vectors: list[Value], unit: int) -> Value:
        """As many sums as a unit has lanes: halves of two vectors' units are joined and added, then whole units."""
        f, distance = self.f, 1
        while len(vectors) > 1:
            low, high = halves(self.dots.lanes, unit, distance)
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [f.shuffle(x, y, low) + f.shuffle(x, y, high) for x, y in pairs]
            distance *= 2
        (total,) = vectors
        while total.type.lanes > unit:
            half = total.type.lanes // 2
            total = f.shuffle(total, None, range(half)) + f.shuffle(total, None, range(half, 2 * half))
        return total
