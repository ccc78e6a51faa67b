"""The inner loops of contractions, shared by all of one dtype and tile: panels in, a block of sums out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.codegen.cpu.contract_pairs import added_pairs
from isthmus.codegen.llvm_text import I1, I64, PTR, Function, Module, Type, Value

UNROLL = 4
"""Steps of k in one turn of the loop."""


@dataclass(frozen=True)
class Tile:
    """Sums that stay in registers: `rows` rows of `vectors` vectors of `lanes` elements of an LLVM scalar.

    rows·vectors + vectors + 1 vectors should fit into the machine's registers. `fused`: the machine multiplies and
    adds in one instruction. A factor is packed, or read as it lies: `rows_lie` where rows of A run along k in memory,
    `columns_lie` where rows of B run along the columns.
    """

    scalar: str
    rows: int
    vectors: int
    lanes: int
    fused: bool = True
    rows_lie: bool = False
    columns_lie: bool = False
    pairs: bool = False
    """Whether an element of a panel is a word of two steps of k in bf16 (`contract_pairs`)."""

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
        lie = ("_a" if self.rows_lie else "") + ("_b" if self.columns_lie else "")
        kind = "_pairs" if self.pairs else "" if self.fused else "_unfused"
        return f"{self.scalar}_{self.rows}x{self.vectors}x{self.lanes}{lie}{kind}"


def block_name(tile: Tile) -> str:
    """Give the name of the function that `emit_block` writes."""
    return f"contract_block_{tile.name}"


def emit_block(module: Module, tile: Tile) -> None:
    """Write `void @name(a, i64 far_a, b, i64 far_b, i64 steps, c, i64 pitch, i64 rows, i64 columns, i1 begins)`.

    c (`pitch` elements from row to row) becomes Σ over k of a[row, k] · b[k, column], plus what it was unless the sum
    begins. Packed factors are panels of `tile.rows` rows and of `tile.columns` columns, one after the other, each with
    its elements for one step of k side by side. Of a factor that is read as it lies, rows of memory are `far` elements
    apart, and there are whole tiles of columns. Nothing outside rows x columns is written, or read as it lies.
    """
    write_block(module, block_name(tile), tile, Block)


def write_block(module: Module, name: str, tile: Tile, writer: Callable[[Function, Tile, str], Block]) -> None:
    """Write the function of a block, and the one that takes what there is of a tile from spare memory."""
    f = Function(module, f"{name}_edge", EDGE_ARGUMENTS, linkage="internal", attributes="noinline")
    _Edge(f, tile).emit()
    f.finish()
    f = Function(module, name, ARGUMENTS)
    writer(f, tile, f"{name}_edge").emit()
    f.finish()


ARGUMENTS = [
    *(("a", PTR), ("far_a", I64), ("b", PTR), ("far_b", I64), ("steps", I64), ("c", PTR), ("pitch", I64)),
    *(("rows", I64), ("columns", I64), ("begins", I1)),
]
"""Of a function that makes a block of sums."""

EDGE_ARGUMENTS = [("spare", PTR), ("place", PTR), ("pitch", I64), ("height", I64), ("width", I64), ("begins", I1)]


class Block:
    """Writes the walk over the tiles of a block: the panel of B stays in the first cache, panels of A pass by."""

    def __init__(self, f: Function, tile: Tile, edge: str) -> None:
        self.f, self.tile, self.edge = f, tile, edge
        self.a, self.far_a, self.b, self.far_b, self.steps, *rest = f.arguments
        self.c, self.pitch, self.rows, self.columns, self.begins = rest
        self.spare = f.slot(tile.vector, tile.rows * tile.vectors)

    def emit(self) -> None:
        f, tile = self.f, self.tile
        whole = f.binary("sdiv", self.rows, f.index(tile.rows)) * tile.rows
        left, fewer = self.rows - whole, self.fewer()
        end = f.select(f.compare("sgt", left, fewer[-1] if fewer else 0), whole + tile.rows, whole)
        with f.loop(0, self.columns, tile.columns) as j:
            with f.loop(0, end, tile.rows) as i:
                self._tile(i, j, tile.rows)
            least = 0
            for rows in fewer:
                with f.when(f.compare("sgt", left, least) & f.compare("sle", left, rows)):
                    self._tile(whole, j, rows)
                least = rows

    def fewer(self) -> list[int]:
        """Rows of the tiles that end a block: each some two thirds of the next."""
        found, rows = list[int](), self.tile.rows
        while rows > 2:
            rows = rows * 2 // 3
            found.insert(0, rows)
        return found

    def _tile(self, i: Value, j: Value, rows: int) -> None:
        """One tile of so many rows; a part of one goes to spare memory."""
        f, tile = self.f, self.tile
        place = f.address(self.c, i * self.pitch + j, tile.scalar)
        height, width = self.rows - i, self.columns - j
        whole = f.compare("sge", height, rows) & f.compare("sge", width, tile.columns)
        target = f.select(whole, place, self.spare)
        pitch = f.select(whole, self.pitch, tile.columns)
        lines = [f.address(target, pitch * r, tile.scalar) for r in range(rows)]
        for line in lines:
            self._fetch(line)
        sums = self.sums(i, j, rows)
        with f.when(whole & ~self.begins):
            for line, row in zip(lines, sums, strict=True):
                for v, slot in enumerate(row):
                    before = f.load(f.address(line, v * tile.lanes, tile.scalar), tile.vector)
                    f.store(before + f.load(slot, tile.vector, 64), slot, 64)
        for line, row in zip(lines, sums, strict=True):
            for v, slot in enumerate(row):
                f.store(f.load(slot, tile.vector, 64), f.address(line, v * tile.lanes, tile.scalar))
        with f.when(~whole):
            height = f.intrinsic("smin", height, f.index(tile.rows))
            f.call_void(self.edge, self.spare, place, self.pitch, height, width, self.begins)

    def sums(self, i: Value, j: Value, rows: int) -> list[list[Value]]:
        """Slots that become registers: row by row the vectors of sums."""
        f, tile = self.f, self.tile
        sums = self.zeros(rows, tile.vectors, tile.vector)
        lines = self.lines(self.a, self.far_a, i, rows, self.rows) if tile.rows_lie else []
        panel_a = f.address(self.a, i * self.steps, tile.scalar)
        panel_b = f.address(self.b, j if tile.columns_lie else j * self.steps, tile.scalar)
        unrolled = self.steps & -UNROLL
        walks = (f.index(0), unrolled, UNROLL), (unrolled, self.steps, 1)
        for low, high, count in walks if rows == tile.rows else [(f.index(0), self.steps, 1)]:
            with f.loop(low, high, count) as step:
                for u in range(count):
                    row_b = self._row(panel_b, step, u, tile.columns, self.far_b if tile.columns_lie else None)
                    if lines:
                        a = [f.address(f.address(line, step, tile.scalar), u, tile.scalar) for line in lines]
                    else:
                        row_a = self._row(panel_a, step, u, tile.rows, None)
                        a = [f.address(row_a, r, tile.scalar) for r in range(rows)]
                    self._step(a, row_b, sums)
        return sums

    def zeros(self, rows: int, columns: int, type_: Type) -> list[list[Value]]:
        """Slots of zeros."""
        sums = [[self.f.slot(type_) for _ in range(columns)] for _ in range(rows)]
        for slot in (s for row in sums for s in row):
            self.f.store(self.f.const(0.0, type_), slot, 64)
        return sums

    def lines(self, base: Value, far: Value, first: Value, count: int, extent: Value) -> list[Value]:
        """Where rows of memory begin; the last one stands for those that are missing."""
        f = self.f
        at = [f.intrinsic("smin", first + r, extent - 1) for r in range(count)]
        return [f.address(base, r * far, self.tile.scalar) for r in at]

    def _row(self, panel: Value, step: Value, u: int, near: int, far: Value | None) -> Value:
        """A row of a panel, `near` elements after the one before, or `far` where it lies in memory."""
        f, scalar = self.f, self.tile.scalar
        if far is not None:
            return f.address(panel, (step + u) * far, scalar)
        return f.address(f.address(panel, step * near, scalar), u * near, scalar)

    def _step(self, a: list[Value], row_b: Value, sums: list[list[Value]]) -> None:
        f, tile = self.f, self.tile
        columns = [f.load(f.address(row_b, v * tile.lanes, tile.scalar), tile.vector) for v in range(tile.vectors)]
        for at, row in zip(a, sums, strict=True):
            x = f.splat(f.load(at, Type.of(tile.scalar)), tile.lanes)
            for slot, y in zip(row, columns, strict=True):
                self.add_product(slot, x, y)

    def add_product(self, slot: Value, x: Value, y: Value) -> None:
        """One multiply-add, into a slot."""
        total = self.f.load(slot, x.type, 64)
        if self.tile.pairs:
            self.f.store(added_pairs(self.f, total, x, y), slot, 64)
            return
        self.f.store(self.f.fma(x, y, total) if self.tile.fused else x * y + total, slot, 64)

    def _fetch(self, line: Value) -> None:
        """Bring a row of the tile into the first cache, to be written."""
        f = self.f
        kind = [Value(f, str(n), Type.of("i32")) for n in (1, 3, 1)]
        f.call_void("llvm.prefetch.p0", line, *kind)


class _Edge:
    """Whole rows of a part of a tile are taken as vectors, parts of rows one by one."""

    def __init__(self, f: Function, tile: Tile) -> None:
        self.f, self.tile = f, tile
        self.spare, self.place, self.pitch, self.height, self.width, self.begins = f.arguments

    def emit(self) -> None:
        f, tile = self.f, self.tile
        whole = f.compare("sge", self.width, tile.columns)
        with f.loop(0, self.height) as i:
            source = f.address(self.spare, i * tile.columns, tile.scalar)
            target = f.address(self.place, i * self.pitch, tile.scalar)
            with f.when(whole), f.loop(0, tile.columns, tile.lanes) as j:
                self._move(source, target, j, tile.vector)
            with f.when(~whole), f.loop(0, self.width) as j:
                self._move(source, target, j, Type.of(tile.scalar))

    def _move(self, source: Value, target: Value, at: Value, type_: Type) -> None:
        f, scalar = self.f, self.tile.scalar
        place = f.address(target, at, scalar)
        value = f.load(f.address(source, at, scalar), type_)
        f.store(f.select(self.begins, value, f.load(place, type_) + value), place)
