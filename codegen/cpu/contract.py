"""A contraction of our own as a function: blocks are packed while the prologue is applied, tiles stay in registers.

A partition is a block of the result; those of the same columns that are run by one call are walked as one, and so are
those of all rows where rows are not cut. The walk takes k in steps of KC: the columns of B are packed (KC x NR panels),
then MC rows of A at a time (KC x MR panels), and a block of sums is made of both (`contract_tile`). A factor that
nothing is computed on is packed by a shared function (`contract_panels`), any other by one that applies the prologue;
after the last step of k whole rows of sums go to the epilogue, unless the sums are all there is to write.

Every element of the result is the same sum whoever computes it: chains of fused multiply-adds over KC steps of k, the
chains added in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from isthmus import ir
from isthmus.codegen.cpu.contract_blocking import Blocking, block_of
from isthmus.codegen.cpu.contract_dots import DotTile
from isthmus.codegen.cpu.contract_pairs import emit_pairs, pairs_name
from isthmus.codegen.cpu.contract_panels import Panels, emit_panels
from isthmus.codegen.cpu.contract_tile import Tile
from isthmus.codegen.cpu.counts import Counts
from isthmus.codegen.cpu.pack import Finish, Pack
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.cpu.workspace import leave_workspace, take_workspace
from isthmus.codegen.dtypes import MEMORY
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type, Value
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel.factors import Factor, factor_of
from isthmus.dialects.target import Target


def shared_by(kernel: k.ContractOp, target: Target) -> dict[str, Callable[[Module], None]]:
    """Give the functions that a contraction calls and other contractions too: name -> what writes it into a module."""
    blocking = Blocking.of(kernel)
    tile = blocking.tile(kernel, target)
    name, write = block_of(tile)
    found: dict[str, Callable[[Module], None]] = {name: write}
    m, n, _ = kernel.mnk
    for side, value, own, width in (("a", kernel.dot.a, m, blocking.mr), ("b", kernel.dot.b, n, blocking.nr)):
        factor = factor_of(kernel, value, own)
        if factor is not None and side not in blocking.direct:
            panels = Panels(ir.dtype_of(value), width, tile.lanes, factor.turned)
            found[panels.name] = partial(emit_panels, panels=panels, target=target)
        if isinstance(tile, Tile) and tile.pairs:
            found[pairs_name(width, tile.lanes)] = partial(emit_pairs, width=width, lanes=tile.lanes)
    return found


def emit_contraction(module: Module, kernel: k.ContractOp, target: Target, name: str) -> str:
    """Add the functions of a contraction to a module, all but the shared ones, and give the name of the one to call.

    `void @name(ptr buffers, ptr sizes, i64 begin, i64 end)` computes partitions begin <= p < end.
    Raises UnsupportedError for dtypes without tiles.
    """
    blocking = Blocking.of(kernel)
    tile = blocking.tile(kernel, target)
    m, n, _ = kernel.mnk
    lanes = blocking.lanes
    a = factor_of(kernel, kernel.dot.a, m) or Pack(
        module, kernel, target, f"{name}_a", kernel.dot.a, m, blocking.mr, blocking.kc, lanes
    )
    b = factor_of(kernel, kernel.dot.b, n) or Pack(
        module, kernel, target, f"{name}_b", kernel.dot.b, n, blocking.nr, blocking.kc, lanes
    )
    for side in (a, b):
        if isinstance(side, Pack):
            side.emit()
    finish = Finish(module, kernel, target, f"{name}_end", min(blocking.nr, 2 * lanes))
    if not finish.plain:
        finish.emit()
    _Blocks(module, kernel, blocking, tile, name, (a, b, finish)).emit()
    return name


class _Blocks(Counts):
    """Writes the walk over partitions and blocks."""

    def __init__(
        self,
        module: Module,
        kernel: k.ContractOp,
        blocking: Blocking,
        tile: Tile | DotTile,
        name: str,
        parts: tuple[Factor | Pack, Factor | Pack, Finish],
    ) -> None:
        arguments = [("buffers", PTR), ("sizes", PTR), ("begin", I64), ("end", I64)]
        self.a, self.b, self.finish = parts
        self.plain = self.finish.plain
        # It only counts and calls: compiled fast.
        self.f = Function(module, name, arguments, attributes="noinline optnone")
        self.kernel, self.blocking, self.tile = kernel, blocking, tile
        buffers, sizes, _, _ = self.f.arguments
        with self.f.at_entry():
            symbols = {
                symbol: self.f.load(self.f.address(sizes, position, "i64"), I64)
                for position, symbol in enumerate(kernel.symbols_)
            }
        self.size = SizeValues(self.f, symbols)
        self.m, self.n, self.k = (self.size(kernel.sizes_[d]) for d in kernel.mnk)
        self.scalar = tile.scalar
        self.pairs = isinstance(tile, Tile) and tile.pairs
        self.buffers, self.sizes = buffers, sizes
        self.batch = self.f.slot(I64, max(1, len(kernel.batch)), align=8)

    # ---- partitions

    def emit(self) -> None:
        f, b = self.f, self.blocking
        _, _, begin, end = f.arguments
        itemsize = ir.itemsize(self.kernel.sums)
        wide = self.least(self.rounded(self.n, b.nr), b.nc)
        self.pitch = wide + b.nr  # rows are no power of two apart
        blocks = [self._room(e, itemsize) for e in self._elements()]
        self.block_a = take_workspace(f, blocks[0] + blocks[1] + blocks[2])
        self.block_b = f.address(self.block_a, blocks[0], "i8")
        self.sums = f.address(self.block_b, blocks[1], "i8")
        self.counts = [self.size(g) for g in b.grid]
        _, down, across = self.counts
        by_columns = down.constant == 1
        parts = across if by_columns else down
        last = self.divided(end + (parts - 1), parts)
        with f.loop(self.divided(begin, parts), last) as group:  # partitions of the same columns, or of all rows
            first = f.intrinsic("smax", begin - group * parts, f.index(0))
            behind = f.intrinsic("smin", end - group * parts, parts)
            if by_columns:
                outer, rows = group, (f.index(0), f.index(1))
                left, right = (self._range(self.n, b.nr, part, across) for part in (first, behind - 1))
                columns = left[0], right[1]
            else:
                column, outer = self.split(group, across)
                rows, columns = (first, behind), self._range(self.n, b.nr, column, across)
            self._clear((outer * down + rows[0], outer * down + rows[1]), columns)
            self._batches(outer, rows, columns)
        leave_workspace(f, self.block_a)
        f.finish()

    def _clear(self, parts: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """Sums over rows start with 0; so do the partial results that no part of the rows has."""
        f, kernel = self.f, self.kernel
        total = self.counts[0] * self.counts[1]
        for op in kernel.block.ops:
            if not isinstance(op, k.AccumulateOp):
                continue
            value = k.result_of(kernel, op)
            (linear,) = k.linear_map(kernel, op).data
            buffer = k.buffer_of(kernel, op)
            with f.at_entry():
                base = f.load(f.address(self.buffers, buffer, "ptr"), PTR)
            last = f.compare("eq", parts[1], total)
            end = f.select(last, self.size(ir.shape_of(value)[0]), parts[1])
            stride = self.size(linear.coefficient(kernel.mnk[1]))
            zero = f.const(0, Type.of(MEMORY[ir.dtype_of(value)]))
            with f.loop(parts[0], end) as entry:
                start = entry * self.size(k.strides_of(value)[0]) + self.size(
                    linear.constant - k.starts(kernel)[buffer]
                )
                with f.loop(columns[0], columns[1]) as j:
                    f.store(zero, f.address(base, start + j * stride, zero.type.scalar))

    def _room(self, elements: Value, itemsize: int) -> Value:
        """Bytes of so many elements in whole lines."""
        return (elements * itemsize + (k.LINE - 1)) & -k.LINE

    def _elements(self) -> tuple[Value, Value, Value]:
        """Elements of a block of A, of one of B, and of sums; a panel may be written past its end."""
        b = self.blocking
        depth = self.least(self.k, b.kc)
        slack = b.lanes * (b.nr + b.mr)
        zero = self.f.index(0)
        a = self.least(self.rounded(self.m, b.mr), b.mc) * depth + slack
        columns = self.least(self.rounded(self.n, b.nr), b.nc)
        rows = self.rounded(self.m, b.mr)
        sums = (self.least(rows, b.mc) if self._one_step else rows) * self.pitch
        packed = [zero if "a" in b.direct else a, zero if "b" in b.direct else columns * depth + slack]
        return packed[0], packed[1], zero if self.plain else sums

    @property
    def _one_step(self) -> bool:
        """Whether k is known to be walked in one step: sums then never leave a block."""
        return self.k.constant is not None and self.k.constant <= self.blocking.kc

    def _range(self, extent: Value, step: int, part: Value, count: Value) -> tuple[Value, Value]:
        """Part `part` of `count` of a dim, in whole panels."""
        f = self.f
        if count.constant == 1:
            return f.index(0), extent
        panels = self.divided(extent + (step - 1), step)
        low = self.divided(panels * part, count) * step
        high = self.divided(panels * (part + 1), count) * step
        return low, f.intrinsic("smin", high, extent)

    def _batches(self, part: Value, parts: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        kernel, f = self.kernel, self.f
        if not kernel.batch:
            self._columns(part, parts, columns)
            return
        extents = [self.size(kernel.sizes_[d]) for d in kernel.batch]
        total = extents[0]
        for extent in extents[1:]:
            total = total * extent
        low, high = self._range(total, 1, part, self.counts[0])
        with f.loop(low, high) as point:
            rest = point
            for d in reversed(kernel.batch[1:]):
                here, rest = self.split(rest, extents[d])
                f.store(here, f.address(self.batch, d, "i64"), align=8)
            f.store(rest, self.batch, align=8)
            self._columns(part, parts, columns)

    # ---- blocks

    def _columns(self, outer: Value, parts: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        f, b = self.f, self.blocking
        once = self.k.constant == 0 or self.k.constant is None
        depth = f.intrinsic("smax", self.k, f.index(1)) if once else self.k  # without terms the sum is 0
        top, _ = self._range(self.m, b.mr, parts[0], self.counts[1])
        with f.loop(columns[0], columns[1], b.nc) as jc:
            width = f.intrinsic("smin", columns[1] - jc, f.index(b.nc))
            with f.loop(0, depth, b.kc) as pc:
                steps = f.intrinsic("smin", self.k - pc, f.index(b.kc))
                block_b = self._panels("b", jc, width, (pc, steps))
                with f.loop(parts[0], parts[1]) as part:
                    self.row_part = outer * self.counts[1] + part
                    rows = self._range(self.m, b.mr, part, self.counts[1])
                    with f.loop(rows[0], rows[1], b.mc) as ic:
                        height = f.intrinsic("smin", rows[1] - ic, f.index(b.mc))
                        factors = *self._panels("a", ic, height, (pc, steps)), *block_b
                        self._block(factors, (ic, height), (jc, width), (pc, steps), top)

    def _panels(self, name: str, first: Value, count: Value, deep: tuple[Value, Value]) -> tuple[Value, Value]:
        """Where a part of a factor is read from, and how far rows of memory are apart: packed, or as it lies."""
        b = self.blocking
        side, panel, block = (self.a, b.mr, self.block_a) if name == "a" else (self.b, b.nr, self.block_b)
        if name not in b.direct:
            self._pack(side, first, count, panel, deep, block)
            return block, self.f.index(0)
        assert isinstance(side, Factor)
        address, stride = self._lying(side, first, deep[0])
        return address, stride

    def _lying(self, side: Factor, first: Value, start: Value) -> tuple[Value, Value]:
        """Address of a factor's element in memory, and the step to the next row there."""
        stride = self.size(side.stride)
        far, near = (first, start) if side.turned else (start, first)
        return self._element(side.access, self._offset(side.access) + far * stride + near), stride

    def _pack(
        self, side: Factor | Pack, first: Value, count: Value, panel: int, deep: tuple[Value, Value], block: Value
    ) -> None:
        f, (start, steps) = self.f, deep
        if isinstance(side, Factor):
            dtype = ir.dtype_of(side.access.results[0])
            name = Panels(dtype, panel, self.tile.lanes, side.turned).name
            f.call_void(name, *self._lying(side, first, start), count, steps, block)
        else:
            self._compute(side, first, count, panel, deep, block)
        if self.pairs:
            f.call_void(pairs_name(panel, self.tile.lanes), block, count, steps)

    def _compute(
        self, side: Pack, first: Value, count: Value, panel: int, deep: tuple[Value, Value], block: Value
    ) -> None:
        """Pack with the prologue, panel by panel."""
        f, (start, steps) = self.f, deep
        with f.loop(0, count, panel) as i:
            inside = f.intrinsic("smin", count - i, f.index(panel))
            target = f.address(block, i * steps, self.scalar)
            f.call_void(side.name, self.buffers, self.sizes, self.batch, first + i, inside, start, steps, target)

    def _block(
        self,
        factors: tuple[Value, ...],
        down: tuple[Value, Value],
        across: tuple[Value, Value],
        deep: tuple[Value, Value],
        top: Value,
    ) -> None:
        """A block of sums, and where k ends what becomes of it."""
        f, b = self.f, self.blocking
        (ic, height), (jc, width), (start, steps) = down, across, deep
        begins = f.compare("eq", start, 0)
        if self.plain:
            target, pitch = self._result(ic, jc)
        else:
            corner = f.index(0) if self._one_step else (ic - top) * self.pitch
            target, pitch = f.address(self.sums, corner, self.scalar), self.pitch
        name, _ = block_of(self.tile)
        steps = self.divided(steps + 1, 2) if self.pairs else steps
        f.call_void(name, *factors, steps, target, pitch, height, width, begins)
        if not self.plain:
            with f.when(f.compare("sge", start + b.kc, self.k)):
                place = (ic, height, jc, width, target, pitch)
                f.call_void(self.finish.name, self.buffers, self.sizes, self.batch, *place, self.row_part)

    def _result(self, row: Value, column: Value) -> tuple[Value, Value]:
        """Address of an element of the one result, and the step from row to row."""
        kernel, access = self.kernel, self.finish.store
        (linear,) = k.linear_map(kernel, access).data
        stride = self.size(linear.coefficient(kernel.mnk[0]))
        return self._element(access, self._offset(access) + row * stride + column), stride

    def _offset(self, access: k.LoadOp | k.SinkOp) -> Value:
        """The element at the batch's point where m, n and k are 0."""
        f, kernel = self.f, self.kernel
        (linear,) = k.linear_map(kernel, access).data
        at = self.size(linear.constant - k.starts(kernel)[k.buffer_of(kernel, access)])
        for d in kernel.batch:
            at = at + f.load(f.address(self.batch, d, "i64"), I64) * self.size(linear.coefficient(d))
        return at

    def _element(self, access: k.LoadOp | k.SinkOp, at: Value) -> Value:
        with self.f.at_entry():
            base = self.f.load(self.f.address(self.buffers, k.buffer_of(self.kernel, access), "ptr"), PTR)
        value = access.results[0] if isinstance(access, k.LoadOp) else k.result_of(self.kernel, access)
        return self.f.address(base, at, MEMORY[ir.dtype_of(value)])
