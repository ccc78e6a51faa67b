"""A contraction of our own as a function: blocks are packed while the prologue is applied, tiles stay in registers.

A partition is a block of the result. It walks k in steps of KC: the columns of B are packed (KC x NR panels), then MC
rows of A at a time (KC x MR panels), and each pair of panels is multiplied in registers. What each panel holds is
computed by the prologue where it is packed; the last step of k hands finished tiles to the epilogue.

Every element of the result is the same sum whoever computes it: chains of fused multiply-adds over KC steps of k, the
chains added in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from isthmus import ir
from isthmus.codegen.cpu.contract_tile import emit_tile
from isthmus.codegen.cpu.pack import Finish, Pack
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.dtypes import MEMORY
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type, Value
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target
from isthmus.sizes import Dim

LINE = 64
"""Bytes: blocks begin at a line."""


@dataclass(frozen=True)
class Blocking:
    """The decisions about one contraction. A tile has `mr` rows of `nv` vectors of `lanes` elements."""

    mr: int
    nv: int
    lanes: int
    mc: int
    kc: int
    nc: int
    grid: tuple[Dim, Dim, Dim]

    @property
    def nr(self) -> int:
        """Columns of a tile."""
        return self.nv * self.lanes

    @staticmethod
    def of(kernel: k.ContractOp) -> Blocking:
        """Read the attributes; UnsupportedError where schedule has not run."""
        if kernel.tile is None or kernel.block_sizes is None or kernel.grid is None:
            raise UnsupportedError("has no tile: schedule has not run", op=kernel.name)
        tile = cast("tuple[int, int, int]", kernel.tile.data)
        block = cast("tuple[int, int, int]", kernel.block_sizes.data)
        if block[0] % tile[0] or block[2] % (tile[1] * tile[2]):
            raise UnsupportedError("has blocks that are no whole tiles", op=kernel.name)
        return Blocking(*tile, *block, cast("tuple[Dim, Dim, Dim]", kernel.grid.data))


def emit_contraction(module: Module, kernel: k.ContractOp, target: Target, name: str) -> str:
    """Add the functions of a contraction to a module and give the name of the one to call.

    `void @name(ptr buffers, ptr sizes, i64 begin, i64 end)` computes partitions begin <= p < end.
    Raises UnsupportedError for dtypes without tiles.
    """
    dtype = ir.dtype_of(kernel.dot.y)
    if dtype not in ("f32", "f64"):
        raise UnsupportedError(f"has no CPU code for {dtype}", op=kernel.dot.name, location=ir.source_location(kernel))
    blocking = Blocking.of(kernel)
    m, n, _ = kernel.mnk
    a = Pack(module, kernel, target, f"{name}_a", kernel.dot.a, m, blocking.mr, blocking.lanes)
    b = Pack(module, kernel, target, f"{name}_b", kernel.dot.b, n, blocking.nr, blocking.lanes)
    finish = Finish(module, kernel, target, f"{name}_end", min(blocking.nr, 2 * blocking.lanes))
    for part in (a, b, finish):
        part.emit()
    tile = f"{name}_tile"
    emit_tile(module, tile, MEMORY[dtype], blocking.mr, blocking.nv, blocking.lanes, fused=target.has("fma"))
    _Blocks(module, kernel, blocking, name, (a, b, finish, tile)).emit()
    return name


class _Blocks:
    """Writes the walk over partitions, blocks and tiles."""

    def __init__(
        self,
        module: Module,
        kernel: k.ContractOp,
        blocking: Blocking,
        name: str,
        parts: tuple[Pack, Pack, Finish, str],
    ) -> None:
        arguments = [("buffers", PTR), ("sizes", PTR), ("begin", I64), ("end", I64)]
        self.a, self.b, self.finish, self.tile = parts
        self.plain = self.finish.plain
        quick = "" if self.plain else "noinline optnone"  # what only counts and calls is compiled fast
        self.f = Function(module, name, arguments, attributes=quick)
        self.kernel, self.blocking = kernel, blocking
        buffers, sizes, _, _ = self.f.arguments
        with self.f.at_entry():
            symbols = {
                symbol: self.f.load(self.f.address(sizes, position, "i64"), I64)
                for position, symbol in enumerate(kernel.symbols_)
            }
        self.size = SizeValues(self.f, symbols)
        self.m, self.n, self.k = (self.size(kernel.sizes_[d]) for d in kernel.mnk)
        self.scalar = MEMORY[ir.dtype_of(kernel.dot.y)]
        self.buffers, self.sizes = buffers, sizes
        self.batch = self.f.slot(I64, max(1, len(kernel.batch)), align=8)

    # ---- partitions

    def emit(self) -> None:
        f, b = self.f, self.blocking
        _, _, begin, end = f.arguments
        itemsize = ir.itemsize(ir.dtype_of(self.kernel.dot.y))
        wide = self._least(self._rounded(self.n, b.nr), b.nc)
        self.pitch = wide + b.nr  # rows are no power of two apart
        blocks = [self._room(e, itemsize) for e in self._elements()]
        memory = f.call("malloc", PTR, blocks[0] + blocks[1] + blocks[2] + LINE)
        aligned = f.emit(f"ptrtoint ptr {memory.name} to i64", I64)
        aligned = (aligned + (LINE - 1)) & -LINE
        base = f.emit(f"inttoptr i64 {aligned.name} to ptr", PTR)
        self.block_a = base
        self.block_b = f.address(base, blocks[0], "i8")
        self.sums = f.address(self.block_b, blocks[1], "i8")
        counts = [self.size(g) for g in b.grid]
        with f.loop(begin, end) as p:
            column, rest = self._split(p, counts[2])
            row, outer = self._split(rest, counts[1])
            self.row_part = rest
            rows = self._range(self.m, b.mr, row, counts[1])
            columns = self._range(self.n, b.nr, column, counts[2])
            self._clear(rest, counts[0] * counts[1], columns)
            self._batches(outer, counts[0], rows, columns)
        f.call_void("free", memory)
        f.finish()

    def _clear(self, part: Value, parts: Value, columns: tuple[Value, Value]) -> None:
        """Sums over rows start with 0; so do the partial results that no part of the rows has."""
        f, kernel = self.f, self.kernel
        for op in kernel.block.ops:
            if not isinstance(op, k.AccumulateOp):
                continue
            value = k.result_of(kernel, op)
            (linear,) = k.linear_map(kernel, op).data
            buffer = k.buffer_of(kernel, op)
            with f.at_entry():
                base = f.load(f.address(self.buffers, buffer, "ptr"), PTR)
            last = f.compare("eq", part + 1, parts)
            end = f.select(last, self.size(ir.shape_of(value)[0]), part + 1)
            stride = self.size(linear.coefficient(kernel.mnk[1]))
            zero = f.const(0.0, Type.of(MEMORY[ir.dtype_of(value)]))
            with f.loop(part, end) as entry:
                start = entry * self.size(k.strides_of(value)[0]) + self.size(
                    linear.constant - k.starts(kernel)[buffer]
                )
                with f.loop(columns[0], columns[1]) as j:
                    f.store(zero, f.address(base, start + j * stride, zero.type.scalar))

    def _room(self, elements: Value, itemsize: int) -> Value:
        """Bytes of so many elements in whole lines."""
        return (elements * itemsize + (LINE - 1)) & -LINE

    def _elements(self) -> tuple[Value, Value, Value]:
        """Elements of a block of A, of one of B, and of sums; a panel may be written past its end."""
        b = self.blocking
        depth = self._least(self.k, b.kc)
        slack = b.lanes * (b.nr + b.mr)
        a = self._least(self._rounded(self.m, b.mr), b.mc) * depth + slack
        columns = self._least(self._rounded(self.n, b.nr), b.nc)
        rows = self._rounded(self.m, b.mr)
        return a, columns * depth + slack, (self._least(rows, b.mc) if self._one_step else rows) * self.pitch

    @property
    def _one_step(self) -> bool:
        """Whether k is known to be walked in one step: sums then never leave a tile."""
        return self.k.constant is not None and self.k.constant <= self.blocking.kc

    def _least(self, value: Value, bound: int) -> Value:
        if value.constant is not None:
            return self.f.index(min(value.constant, bound))
        return self.f.intrinsic("smin", value, self.f.index(bound))

    def _rounded(self, value: Value, multiple: int) -> Value:
        return self._divided(value + (multiple - 1), multiple) * multiple

    def _divided(self, value: Value, by: Value | int) -> Value:
        by = self.f.index(by)
        if by.constant == 1:
            return value
        if value.constant is not None and by.constant is not None:
            return self.f.index(value.constant // by.constant)
        return self.f.binary("udiv", value, by)

    def _split(self, value: Value, count: Value) -> tuple[Value, Value]:
        """Remainder and quotient."""
        if count.constant == 1:
            return self.f.index(0), value
        return self.f.binary("urem", value, count), self.f.binary("udiv", value, count)

    def _range(self, extent: Value, step: int, part: Value, count: Value) -> tuple[Value, Value]:
        """Part `part` of `count` of a dim, in whole panels."""
        f = self.f
        if count.constant == 1:
            return f.index(0), extent
        panels = self._divided(extent + (step - 1), step)
        low = self._divided(panels * part, count) * step
        high = self._divided(panels * (part + 1), count) * step
        return low, f.intrinsic("smin", high, extent)

    def _batches(self, part: Value, count: Value, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        kernel, f = self.kernel, self.f
        if not kernel.batch:
            self._columns(rows, columns)
            return
        extents = [self.size(kernel.sizes_[d]) for d in kernel.batch]
        total = extents[0]
        for extent in extents[1:]:
            total = total * extent
        low, high = self._range(total, 1, part, count)
        with f.loop(low, high) as point:
            rest = point
            for d in reversed(kernel.batch[1:]):
                here, rest = self._split(rest, extents[d])
                f.store(here, f.address(self.batch, d, "i64"), align=8)
            f.store(rest, self.batch, align=8)
            self._columns(rows, columns)

    # ---- blocks

    def _columns(self, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        f, b = self.f, self.blocking
        once = self.k.constant == 0 or self.k.constant is None
        depth = f.intrinsic("smax", self.k, f.index(1)) if once else self.k  # without terms the sum is 0
        with f.loop(columns[0], columns[1], b.nc) as jc:
            width = f.intrinsic("smin", columns[1] - jc, f.index(b.nc))
            with f.loop(0, depth, b.kc) as pc:
                steps = f.intrinsic("smin", self.k - pc, f.index(b.kc))
                self._pack(self.b, jc, width, b.nr, (pc, steps), self.block_b)
                with f.loop(rows[0], rows[1], b.mc) as ic:
                    height = f.intrinsic("smin", rows[1] - ic, f.index(b.mc))
                    self._pack(self.a, ic, height, b.mr, (pc, steps), self.block_a)
                    self._tiles((ic, height), (jc, width), (pc, steps), rows[0])

    def _pack(
        self, side: Pack, first: Value, count: Value, panel: int, deep: tuple[Value, Value], block: Value
    ) -> None:
        f, (start, steps) = self.f, deep
        with f.loop(0, count, panel) as i:
            inside = f.intrinsic("smin", count - i, f.index(panel))
            target = f.address(block, i * steps, self.scalar)
            f.call_void(side.name, self.buffers, self.sizes, self.batch, first + i, inside, start, steps, target)

    def _tiles(
        self, down: tuple[Value, Value], across: tuple[Value, Value], deep: tuple[Value, Value], top: Value
    ) -> None:
        f, b = self.f, self.blocking
        (ic, height), (jc, width), (start, steps) = down, across, deep
        begins = f.compare("eq", start, 0)
        ends = f.compare("sge", start + b.kc, self.k)
        corner = f.index(0) if self._one_step else (ic - top) * self.pitch
        sums = f.address(self.sums, corner, self.scalar)
        with f.loop(0, width, b.nr) as j:
            panel_b = f.address(self.block_b, j * steps, self.scalar)
            columns = f.intrinsic("smin", width - j, f.index(b.nr))
            with f.loop(0, height, b.mr) as i:
                panel_a = f.address(self.block_a, i * steps, self.scalar)
                rows = f.intrinsic("smin", height - i, f.index(b.mr))
                tile = f.address(sums, i * self.pitch + j, self.scalar)
                if not self.plain:
                    f.call_void(self.tile, panel_a, panel_b, steps, tile, self.pitch, begins)
                else:
                    whole = f.compare("eq", rows, b.mr) & f.compare("eq", columns, b.nr)
                    result, stride = self._result(ic + i, jc + j)
                    target, step = f.select(whole, result, tile), f.select(whole, stride, self.pitch)
                    f.call_void(self.tile, panel_a, panel_b, steps, target, step, begins)
                    with f.when(ends & ~whole):
                        self._finish((ic + i, rows, jc + j, columns), tile)
        if not self.plain:  # whole rows at once: memory is then read ahead
            with f.when(ends):
                self._finish((ic, height, jc, width), sums)

    def _result(self, row: Value, column: Value) -> tuple[Value, Value]:
        """Address of an element of the one result, and the step from row to row."""
        f, kernel = self.f, self.kernel
        access = self.finish.store
        (linear,) = k.linear_map(kernel, access).data
        buffer = k.buffer_of(kernel, access)
        linear = linear - k.starts(kernel)[buffer]
        m, n, _ = kernel.mnk
        stride = self.size(linear.coefficient(m))
        at = self.size(linear.constant) + row * stride + column * self.size(linear.coefficient(n))
        for d in kernel.batch:
            at = at + f.load(f.address(self.batch, d, "i64"), I64) * self.size(linear.coefficient(d))
        with f.at_entry():
            base = f.load(f.address(self.buffers, buffer, "ptr"), PTR)
        return f.address(base, at, self.scalar), stride

    def _finish(self, place: Sequence[Value], sums: Value) -> None:
        parts = (self.buffers, self.sizes, self.batch, *place, sums, self.pitch, self.row_part)
        self.f.call_void(self.finish.name, *parts)
