"""The inner loops of contractions, shared by all of one dtype and tile: packed panels in, a block of sums out."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.codegen.llvm_text import I1, I64, PTR, Function, Module, Type, Value

UNROLL = 4
"""Steps of k in one turn of the loop."""


@dataclass(frozen=True)
class Tile:
    """Sums that stay in registers: `rows` rows of `vectors` vectors of `lanes` elements of an LLVM scalar.

    rows·vectors + vectors + 1 vectors should fit into the machine's registers. `fused`: the machine multiplies and
    adds in one instruction.
    """

    scalar: str
    rows: int
    vectors: int
    lanes: int
    fused: bool = True

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes

    @property
    def vector(self) -> Type:
        """The type of a vector of sums."""
        return Type.of(self.scalar, self.lanes)

    @property
    def name(self) -> str:
        """Tells the tile, for names of functions."""
        return f"{self.scalar}_{self.rows}x{self.vectors}x{self.lanes}{'' if self.fused else '_unfused'}"


def block_name(tile: Tile) -> str:
    """Give the name of the function that `emit_block` writes."""
    return f"contract_block_{tile.name}"


def emit_block(module: Module, tile: Tile) -> None:
    """Write `void @name(ptr a, ptr b, i64 steps, ptr c, i64 pitch, i64 rows, i64 columns, i1 begins)`.

    c (`pitch` elements from row to row) becomes Σ over k of a[row, k] · b[k, column], plus what it was unless the sum
    begins. a and b are packed: panels of `tile.rows` rows and of `tile.columns` columns, one after the other, each with
    its elements for one step of k side by side. Nothing outside rows x columns is written.
    """
    arguments = [("a", PTR), ("b", PTR), ("steps", I64), ("c", PTR), ("pitch", I64)]
    arguments += [("rows", I64), ("columns", I64), ("begins", I1)]
    f = Function(module, block_name(tile), arguments)
    _Block(f, tile).emit()
    f.finish()


class _Block:
    """Writes the walk over the tiles of a block: the panel of B stays in the first cache, panels of A pass by."""

    def __init__(self, f: Function, tile: Tile) -> None:
        self.f, self.tile = f, tile
        self.a, self.b, self.steps, self.c, self.pitch, self.rows, self.columns, self.begins = f.arguments
        self.spare = f.slot(tile.vector, tile.rows * tile.vectors)

    def emit(self) -> None:
        f, tile = self.f, self.tile
        with f.loop(0, self.columns, tile.columns) as j:
            panel_b = f.address(self.b, j * self.steps, tile.scalar)
            width = self.columns - j
            with f.loop(0, self.rows, tile.rows) as i:
                panel_a = f.address(self.a, i * self.steps, tile.scalar)
                height = self.rows - i
                place = f.address(self.c, i * self.pitch + j, tile.scalar)
                whole = f.compare("sge", height, tile.rows) & f.compare("sge", width, tile.columns)
                self._tile(panel_a, panel_b, place, whole)
                with f.when(~whole):
                    self._edge(place, height, width)

    def _tile(self, panel_a: Value, panel_b: Value, place: Value, whole: Value) -> None:
        """One tile; a part of one goes to spare memory."""
        f, tile = self.f, self.tile
        target = f.select(whole, place, self.spare)
        pitch = f.select(whole, self.pitch, tile.columns)
        lines = [f.address(target, pitch * i, tile.scalar) for i in range(tile.rows)]
        for line in lines:
            self._fetch(line)
        sums = [[f.slot(tile.vector) for _ in range(tile.vectors)] for _ in range(tile.rows)]
        for slot in (s for row in sums for s in row):
            f.store(f.const(0.0, tile.vector), slot, 64)
        unrolled = self.steps & -UNROLL
        for low, high, count in ((f.index(0), unrolled, UNROLL), (unrolled, self.steps, 1)):
            with f.loop(low, high, count) as step:
                for u in range(count):
                    self._step(panel_a, panel_b, step, u, sums)
        with f.when(whole & ~self.begins):
            for line, row in zip(lines, sums, strict=True):
                for v, slot in enumerate(row):
                    before = f.load(f.address(line, v * tile.lanes, tile.scalar), tile.vector)
                    f.store(before + f.load(slot, tile.vector, 64), slot, 64)
        for line, row in zip(lines, sums, strict=True):
            for v, slot in enumerate(row):
                f.store(f.load(slot, tile.vector, 64), f.address(line, v * tile.lanes, tile.scalar))

    def _step(self, panel_a: Value, panel_b: Value, step: Value, u: int, sums: list[list[Value]]) -> None:
        f, tile = self.f, self.tile
        row_a = f.address(f.address(panel_a, step * tile.rows, tile.scalar), u * tile.rows, tile.scalar)
        row_b = f.address(f.address(panel_b, step * tile.columns, tile.scalar), u * tile.columns, tile.scalar)
        columns = [f.load(f.address(row_b, v * tile.lanes, tile.scalar), tile.vector) for v in range(tile.vectors)]
        for i in range(tile.rows):
            x = f.splat(f.load(f.address(row_a, i, tile.scalar), Type.of(tile.scalar)), tile.lanes)
            for slot, y in zip(sums[i], columns, strict=True):
                total = f.load(slot, tile.vector, 64)
                f.store(f.fma(x, y, total) if tile.fused else x * y + total, slot, 64)

    def _fetch(self, line: Value) -> None:
        """Bring a row of the tile into the first cache, to be written."""
        f = self.f
        kind = [Value(f, str(n), Type.of("i32")) for n in (1, 3, 1)]
        f.call_void("llvm.prefetch.p0", line, *kind)

    def _edge(self, place: Value, height: Value, width: Value) -> None:
        """Take what there is of a tile from spare memory, one element at a time."""
        f, tile = self.f, self.tile
        scalar = Type.of(tile.scalar)
        height = f.intrinsic("smin", height, f.index(tile.rows))
        width = f.intrinsic("smin", width, f.index(tile.columns))
        with f.loop(0, height) as i, f.loop(0, width) as j:
            value = f.load(f.address(self.spare, i * tile.columns + j, tile.scalar), scalar)
            target = f.address(place, i * self.pitch + j, tile.scalar)
            total = f.select(self.begins, value, f.load(target, scalar) + value)
            f.store(total, target)
