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
        whole = f.binary("sdiv", self.rows, f.index(tile.rows)) * tile.rows
        with f.loop(0, self.columns, tile.columns) as j:
            with f.loop(0, whole, tile.rows) as i:
                self._tile(i, j, tile.rows)
            least = 0
            for rows in (*_fewer(tile.rows), tile.rows):
                left = self.rows - whole
                with f.when(f.compare("sgt", left, least) & f.compare("sle", left, rows)):
                    self._tile(whole, j, rows)
                least = rows

    def _tile(self, i: Value, j: Value, rows: int) -> None:
        """One tile of so many rows; a part of one goes to spare memory."""
        f, tile = self.f, self.tile
        panel_a = f.address(self.a, i * self.steps, tile.scalar)
        panel_b = f.address(self.b, j * self.steps, tile.scalar)
        place = f.address(self.c, i * self.pitch + j, tile.scalar)
        height, width = self.rows - i, self.columns - j
        whole = f.compare("sge", height, rows) & f.compare("sge", width, tile.columns)
        target = f.select(whole, place, self.spare)
        pitch = f.select(whole, self.pitch, tile.columns)
        lines = [f.address(target, pitch * r, tile.scalar) for r in range(rows)]
        for line in lines:
            self._fetch(line)
        sums = self._sums(panel_a, panel_b, rows)
        with f.when(whole & ~self.begins):
            for line, row in zip(lines, sums, strict=True):
                for v, slot in enumerate(row):
                    before = f.load(f.address(line, v * tile.lanes, tile.scalar), tile.vector)
                    f.store(before + f.load(slot, tile.vector, 64), slot, 64)
        for line, row in zip(lines, sums, strict=True):
            for v, slot in enumerate(row):
                f.store(f.load(slot, tile.vector, 64), f.address(line, v * tile.lanes, tile.scalar))
        with f.when(~whole):
            self._edge(place, height, width)

    def _sums(self, panel_a: Value, panel_b: Value, rows: int) -> list[list[Value]]:
        """Slots that become registers: row by row the vectors of sums."""
        f, tile = self.f, self.tile
        sums = [[f.slot(tile.vector) for _ in range(tile.vectors)] for _ in range(rows)]
        for slot in (s for row in sums for s in row):
            f.store(f.const(0.0, tile.vector), slot, 64)
        unrolled = self.steps & -UNROLL
        for low, high, count in ((f.index(0), unrolled, UNROLL), (unrolled, self.steps, 1)):
            with f.loop(low, high, count) as step:
                for u in range(count):
                    self._step(panel_a, panel_b, step, u, sums)
        return sums

    def _step(self, panel_a: Value, panel_b: Value, step: Value, u: int, sums: list[list[Value]]) -> None:
        f, tile = self.f, self.tile
        row_a = f.address(f.address(panel_a, step * tile.rows, tile.scalar), u * tile.rows, tile.scalar)
        row_b = f.address(f.address(panel_b, step * tile.columns, tile.scalar), u * tile.columns, tile.scalar)
        columns = [f.load(f.address(row_b, v * tile.lanes, tile.scalar), tile.vector) for v in range(tile.vectors)]
        for i, row in enumerate(sums):
            x = f.splat(f.load(f.address(row_a, i, tile.scalar), Type.of(tile.scalar)), tile.lanes)
            for slot, y in zip(row, columns, strict=True):
                total = f.load(slot, tile.vector, 64)
                f.store(f.fma(x, y, total) if tile.fused else x * y + total, slot, 64)

    def _fetch(self, line: Value) -> None:
        """Bring a row of the tile into the first cache, to be written."""
        f = self.f
        kind = [Value(f, str(n), Type.of("i32")) for n in (1, 3, 1)]
        f.call_void("llvm.prefetch.p0", line, *kind)

    def _edge(self, place: Value, height: Value, width: Value) -> None:
        """Take what there is of a tile from spare memory: whole rows as vectors, parts of rows one by one."""
        f, tile = self.f, self.tile
        height = f.intrinsic("smin", height, f.index(tile.rows))
        whole = f.compare("sge", width, tile.columns)
        with f.loop(0, height) as i:
            source = f.address(self.spare, i * tile.columns, tile.scalar)
            target = f.address(place, i * self.pitch, tile.scalar)
            with f.when(whole):
                for v in range(tile.vectors):
                    self._move(source, target, f.index(v * tile.lanes), tile.vector)
            with f.when(~whole), f.loop(0, width) as j:
                self._move(source, target, j, Type.of(tile.scalar))

    def _move(self, source: Value, target: Value, at: Value, type_: Type) -> None:
        f, scalar = self.f, self.tile.scalar
        place = f.address(target, at, scalar)
        value = f.load(f.address(source, at, scalar), type_)
        f.store(f.select(self.begins, value, f.load(place, type_) + value), place)


def _fewer(rows: int) -> list[int]:
    """Rows of the tiles that end a block: each some two thirds of the next."""
    found = list[int]()
    while rows > 2:
        rows = rows * 2 // 3
        found.insert(0, rows)
    return found
