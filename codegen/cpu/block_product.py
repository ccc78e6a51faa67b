"""Products of blocks that lie packed in scratch memory: tiles of sums in registers, one factor read as it lies."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.codegen.llvm_text import I1, I64, PTR, Function, Module, Type, Value


@dataclass(frozen=True)
class Tile:
    """Sums that stay in registers: `rows` rows of `vectors` vectors of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Layout:
    """Where elements of the factors and of the result lie, in elements.

    a[i, k] at i·row + k·step, b[k, j] at k·pitch_b + j, c[i, j] at i·pitch_c + j. `bound` says what a triangle leaves
    out: `rows` rows i > j + offset (whole tiles of them), `last` steps k > i + offset, `first` steps k < i - offset;
    none: nothing.
    """

    row: int
    step: int
    pitch_b: int
    pitch_c: int
    bound: str = "none"
    ragged: bool = False
    """Columns may end with a vector that is no whole tile."""


def emit_product(module: Module, name: str, scalar: str, tile: Tile, layout: Layout, *, fused: bool) -> None:
    """Write `void @name(ptr a, ptr b, ptr c, i64 rows, i64 columns, i64 steps, i64 offset, i1 begins)`.

    c becomes Σ over k < steps of a[i, k] · b[k, j], plus what it was unless the sum begins. Rows and columns are taken
    in whole tiles (ragged columns in whole vectors), so blocks have room for that. An element is one chain of
    multiply-adds in the order of k.
    """
    arguments = [("a", PTR), ("b", PTR), ("c", PTR), ("rows", I64), ("columns", I64), ("steps", I64), ("offset", I64)]
    f = Function(module, name, [*arguments, ("begins", I1)], linkage="internal")
    columns = f.arguments[4]
    whole = _multiple(f, columns, tile.columns) if layout.ragged else columns
    with f.loop(0, whole, tile.columns) as j:
        _tiles(f, j, scalar, tile, layout, fused)
    if layout.ragged:
        with f.loop(whole, columns, tile.lanes) as j:
            _tiles(f, j, scalar, Tile(tile.rows, 1, tile.lanes), layout, fused)
    f.finish()


def _multiple(f: Function, value: Value, of: int) -> Value:
    if of & (of - 1) == 0:
        return value & -of
    return value - f.binary("urem", value, f.index(of))


def _tiles(f: Function, j: Value, scalar: str, tile: Tile, layout: Layout, fused: bool) -> None:
    """All tiles of some columns."""
    _, _, _, rows, _, _, offset, _ = f.arguments
    end = rows
    if layout.bound == "rows":
        end = f.intrinsic("smin", rows, j + tile.columns + offset)
    with f.loop(0, end, tile.rows) as i:
        _tile(f, i, j, scalar, tile, layout, fused)


def _tile(f: Function, i: Value, j: Value, scalar: str, tile: Tile, layout: Layout, fused: bool) -> None:
    a, b, c, _, _, steps, offset, begins = f.arguments
    vector = Type.of(scalar, tile.lanes)
    first: Value = f.index(0)
    if layout.bound == "last":
        steps = f.intrinsic("smin", steps, i + tile.rows + offset)
    elif layout.bound == "first":
        first = f.intrinsic("smax", i - offset, first)
    sums = [[f.slot(vector) for _ in range(tile.vectors)] for _ in range(tile.rows)]
    for slot in (s for row in sums for s in row):
        f.store(f.const(0.0, vector), slot, 64)
    row_a, column_b = f.address(a, i * layout.row, scalar), f.address(b, j, scalar)
    with f.loop(first, steps) as k:
        at_a = f.address(row_a, k * layout.step, scalar)
        at_b = f.address(column_b, k * layout.pitch_b, scalar)
        ys = [f.load(f.address(at_b, v * tile.lanes, scalar), vector) for v in range(tile.vectors)]
        for r in range(tile.rows):
            x = f.splat(f.load(f.address(at_a, r * layout.row, scalar), Type.of(scalar)), tile.lanes)
            for slot, y in zip(sums[r], ys, strict=True):
                total = f.load(slot, vector, 64)
                f.store(f.fma(x, y, total) if fused else x * y + total, slot, 64)
    corner = f.address(f.address(c, i * layout.pitch_c, scalar), j, scalar)
    places = [
        (f.address(corner, r * layout.pitch_c + v * tile.lanes, scalar), sums[r][v])
        for r in range(tile.rows)
        for v in range(tile.vectors)
    ]
    with f.when(~begins):
        for at, slot in places:
            f.store(f.load(at, vector) + f.load(slot, vector, 64), slot, 64)
    for at, slot in places:
        f.store(f.load(slot, vector, 64), at)
