"""The form of a contraction for every GPU since sm_80: threads copy stages in, warps multiply 16 x 8 fragments.

A block computes one tile. Its shared memory is a ring of stages with 128 bytes along k of both factors each, filled two
or three stages ahead, 16 bytes at a time where memory is aligned to that, else by as much as it is. A warp has 64 rows
and a part of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.codegen.llvm_text import F32, I32, I64, Function, Module, Type, Value
from isthmus.codegen.nvptx import tensor_cores as cores
from isthmus.codegen.nvptx.contract import Contraction
from isthmus.codegen.nvptx.contract_epilogue import batch_indices, lane_of
from isthmus.codegen.nvptx.contract_plan import ContractPlan, Matrix
from isthmus.codegen.nvptx.shared_memory import copy_in, end_group_in, meet, shared, wait_groups_in
from isthmus.codegen.nvptx.tensor_cores import BOX_BYTES, ROW_BYTES
from isthmus.dialects.target import Target
from isthmus.sizes import Dim

SHARED_BYTES = 163 << 10
"""Shared memory that a block of an sm_80 can have."""
MOST_STAGES = 4
WARP_ROWS = 64
PIECES, PIECE_BYTES = 8, 16
"""Pieces of a row of shared memory, which are copied one by one."""


def warps_across(columns: int) -> int:
    """Warps that share the columns of a tile: 32 to 64 columns each."""
    return 4 if columns >= 128 else max(1, columns // 32)


@dataclass(frozen=True)
class _Side:
    """One factor: its matrix, its dim beside k, how many of that dim a tile has, where in a stage it lies."""

    matrix: Matrix
    own: int
    extent: int
    start: int
    turned: bool
    """Whether rows of shared memory run along the own dim, not along k."""


class Copier:
    """What one thread copies of a factor into each stage: a piece of every so many rows of shared memory."""

    def __init__(self, form: Warps, side: _Side, origin: Value) -> None:
        """`origin`: the tile's first place along the own dim, i64."""
        self.form, self.side, self.f = form, side, form.f
        f, state, plan = self.f, form.state, form.plan
        self.itemsize = side.matrix.itemsize
        self.element = Type.of(f"i{8 * self.itemsize}")
        self.piece_size = PIECE_BYTES // self.itemsize
        """Elements of a piece."""
        self.passes = side.extent * PIECES // form.threads
        self.rows = form.threads // PIECES
        """Rows that the block copies at once."""
        self.line = f.binary("lshr", form.thread, f.const(3, I32))
        self.piece = form.thread & 7
        self.target = cores.swizzled(f, self.line, self.piece) + side.start
        inner = plan.inner(side.matrix, side.own)
        self.unit = self._unit(inner)
        self.along_own, self.along_k = (state.size(side.matrix.stride(d)) for d in (side.own, plan.k))
        sizes = plan.sizes
        self.own_size, self.k_size = state.size(sizes[side.own]), state.size(sizes[plan.k])
        self.ragged_own = not _divides(side.extent, sizes[side.own])
        self.ragged_k = not _divides(plan.depth, sizes[plan.k])
        base = state.size(side.matrix.position.constant)
        for d in side.matrix.batch_dims(plan.batch):
            base = base + state.indices[d] * state.size(side.matrix.stride(d))
        self.base = f.address(state.buffers[side.matrix.buffer], base, self.element.scalar)
        self.origin = origin
        line, piece = (f.cast("zext", x, I64) for x in (self.line, self.piece))
        self.line64, self.first = line, piece * self.piece_size

    def _unit(self, inner: int) -> int:
        """Bytes that are copied at once: 16, 8, 4, or an element where neighbours are no neighbours in memory."""
        matrix, plan = self.side.matrix, self.form.plan
        if not plan.aligned or matrix.stride(inner) != 1:
            return self.itemsize
        return max(self.itemsize, matrix.known_alignment(inner))

    def copy(self, stage: Value, k0: Value) -> None:
        """Begin to copy the stage that starts at byte `stage` (i32) from the term `k0` (i64) on."""
        for n in range(self.passes):
            own, k, step_own, step_k = self._place(n, k0)
            target = shared(self.f, self.target + stage + n * self.rows * ROW_BYTES)
            for at in range(0, self.piece_size, self.unit // self.itemsize):
                self._unit_in(target, at, own + at * step_own, k + at * step_k)

    def _place(self, n: int, k0: Value) -> tuple[Value, Value, int, int]:
        """The first element of pass n: places along own dim and k, and which of them its neighbours count up."""
        if not self.side.turned:
            return self.origin + (self.line64 + n * self.rows), k0 + self.first, 0, 1
        box, line = divmod(n * self.rows, 64)
        return self.origin + (self.first + box * 64), k0 + (self.line64 + line), 1, 0

    def _unit_in(self, target: Value, at: int, own: Value, k: Value) -> None:
        f, unit, element = self.f, self.unit, self.element
        place = shared_after(f, target, at * self.itemsize)
        source = f.address(self.base, own * self.along_own + k * self.along_k, element.scalar)
        left = self._left(own, k)
        if unit > 2:
            copy_in(f, place, source, unit, left)
            return
        value = f.slot(element)
        f.store(f.const(0, element), value)
        if left is None:
            f.store(f.load(source, element), value)
        else:
            with f.when(f.compare("sgt", left, 0)):
                f.store(f.load(source, element), value)
        f.line(f"store {f.load(value, element)!r}, {place!r}, align 2")

    def _left(self, own: Value, k: Value) -> Value | None:
        """Bytes of a unit that exist (i32); None where all of them do."""
        f = self.f
        pairs = ((own, self.own_size, self.ragged_own), (k, self.k_size, self.ragged_k))
        (along, size, ragged), (other, bound, cut) = pairs if self.side.turned else pairs[::-1]
        count: Value | None = None
        if ragged:
            left = f.intrinsic("smin", (size - along) * self.itemsize, f.index(self.unit))
            count = f.cast("trunc", f.intrinsic("smax", left, f.index(0)), I32)
        if cut:
            whole = f.const(self.unit, I32) if count is None else count
            count = f.select(f.compare("slt", other, bound), whole, 0)
        return count


class Warps(Contraction):
    """The code of one contraction, as one thread runs it."""

    def __init__(self, module: Module, plan: ContractPlan, target: Target, name: str) -> None:
        self.down, self.across = max(1, plan.rows // WARP_ROWS), warps_across(plan.columns)
        self.warp_columns = plan.columns // self.across
        super().__init__(module, plan, target, name, 32 * self.down * self.across, (), ())
        self.stage_bytes = (plan.rows + plan.columns) * ROW_BYTES
        self.stages = min(MOST_STAGES, SHARED_BYTES // self.stage_bytes)
        sums = self.down * plan.columns * 4 * len(plan.sinks)
        self.shared_bytes = max(self.stages * self.stage_bytes, sums)
        starts = (0, plan.rows * ROW_BYTES)
        sides = ((plan.a, plan.m, plan.rows), (plan.b, plan.n, plan.columns))
        self.sides = [
            _Side(matrix, own, extent, start, plan.inner(matrix, own) == own)
            for (matrix, own, extent), start in zip(sides, starts, strict=True)
        ]

    def emit(self) -> None:
        """Emit the function."""
        f, plan, state = self.f, self.plan, self.state
        self.lane, warp = lane_of(f, self.thread)
        self.warp_row = f.binary("urem", warp, f.const(self.down, I32))
        self.warp_column = f.binary("udiv", warp, f.const(self.down, I32))
        batch, row, column = self.place(f.cast("zext", self.block, I64))
        batch_indices(state, plan, batch)
        origins = (row * plan.rows, column * plan.columns)
        copiers = [Copier(self, side, origin) for side, origin in zip(self.sides, origins, strict=True)]
        steps = self.steps()
        ahead = self.stages - 1
        with f.loop(0, ahead) as stage:
            self._fill(copiers, f.cast("trunc", stage, I32) * self.stage_bytes, stage, steps)
        sums = self._walk(copiers, steps)
        wait_groups_in(f, 0)
        self._finish(sums, origins, self.entry(batch, row))
        f.finish()

    def _fill(self, copiers: Sequence[Copier], stage: Value, step: Value, steps: Value) -> None:
        """Copy one stage in, unless k has ended; a group is closed in any case, so that groups can be counted."""
        with self.f.when(self.f.compare("slt", step, steps)):
            for copier in copiers:
                copier.copy(stage, step * self.plan.depth)
        end_group_in(self.f)

    def _walk(self, copiers: Sequence[Copier], steps: Value) -> list[list[list[Value]]]:
        """Walk k; gives the sums by block of 16 rows, block of 8 columns and number."""
        f = self.f
        down, across = WARP_ROWS // 16, self.warp_columns // 8
        sums = [[[f.slot(F32) for _ in range(4)] for _ in range(across)] for _ in range(down)]
        for slot in (s for row in sums for block in row for s in block):
            f.store(cores.zero(f), slot)
        read, write = f.slot(I32), f.slot(I32)
        f.store(f.const(0, I32), read)
        f.store(f.const((self.stages - 1) * self.stage_bytes, I32), write)
        with f.loop(0, steps) as step:
            wait_groups_in(f, self.stages - 2)
            meet(f)
            self._fill(copiers, f.load(write, I32), step + (self.stages - 1), steps)
            self._multiply(f.load(read, I32), sums)
            for slot in (read, write):
                after = f.load(slot, I32) + self.stage_bytes
                f.store(f.select(f.compare("eq", after, self.stages * self.stage_bytes), 0, after), slot)
        return [[[f.load(s, F32) for s in block] for block in row] for row in sums]

    # ---- fragments

    def _multiply(self, stage: Value, sums: list[list[list[Value]]]) -> None:
        f = self.f
        down, across = len(sums), len(sums[0])
        values = [[[f.load(s, F32) for s in block] for block in row] for row in sums]
        rows, columns = self.warp_row * WARP_ROWS, self.warp_column * self.warp_columns
        following = self._fragments(stage, rows, columns, 0, (down, across))
        for n in range(4):  # the fragments of the next terms are read while these are multiplied
            a, b = following
            if n < 3:
                following = self._fragments(stage, rows, columns, n + 1, (down, across))
            for i in range(down):
                for j in range(across):
                    values[i][j] = cores.multiply_fragments(f, self.plan.dtype, a[i], b[j], values[i][j])
        for i, row in enumerate(sums):
            for j, block in enumerate(row):
                for slot, value in zip(block, values[i][j], strict=True):
                    f.store(value, slot)

    def _fragments(
        self, stage: Value, rows: Value, columns: Value, step: int, shape: tuple[int, int]
    ) -> tuple[list[list[Value]], list[list[Value]]]:
        """The fragments of 32 bytes along k: of a by 16 rows, of b by 8 columns."""
        a, b = self.sides
        low, high = self.lane & 7, f_shift(self.f, self.lane, 3)
        first, second = high & 1, f_shift(self.f, high, 1)
        found_a = [self._four(a, stage, rows + 16 * i, step, (low, first, second)) for i in range(shape[0])]
        found_b: list[list[Value]] = []
        for j in range(shape[1] // 2):
            four = self._four(b, stage, columns + 16 * j, step, (low, second, first))
            found_b += [four[:2], four[2:]]
        return found_a, found_b

    def _four(
        self, side: _Side, stage: Value, place: Value, step: int, lane: tuple[Value, Value, Value]
    ) -> list[Value]:
        """Four matrices of 8 by 8: `lane` = my row in a matrix, my matrix's half along the own dim, and along k."""
        f = self.f
        low, half_own, half_k = lane
        if not side.turned:
            line = place + half_own * 8 + low
            offset = cores.swizzled(f, line, half_k + 2 * step)
        else:
            line = half_k * 8 + low + 16 * step
            at = f_shift(f, place, 3) + half_own
            box = f_shift(f, at, 3) * BOX_BYTES
            offset = cores.swizzled(f, line, at & 7) + box
        return cores.load_fragments(f, shared(f, offset + stage + side.start), turned=side.turned)

    # ---- results

    def _finish(
        self, sums: list[list[list[Value]]], origins: tuple[Value, Value], entries: tuple[Value, Value]
    ) -> None:
        f, plan, epilogue = self.f, self.plan, self.epilogue
        above = self.warp_row * WARP_ROWS + f_shift(f, self.lane, 2)
        first = origins[0] + f.cast("zext", above, I64)
        before = self.warp_column * self.warp_columns
        left = origins[1] + f.cast("zext", before + (self.lane & 3) * 2, I64)
        rows = [first + 8 * n for n in range(2 * len(sums))]
        if plan.sinks:
            meet(f)  # the stages are read
            epilogue.gather_sums(before * 4, self.warp_row, self.lane, plan.columns, self.down)
        with epilogue.tile(rows, left, self.ragged()):
            for j in range(len(sums[0])):
                pairs = [pair for row in sums for pair in (row[j][:2], row[j][2:])]
                epilogue.block(8 * j, pairs)
        if plan.sinks:
            meet(f)
            shape = (self.down, plan.columns)
            epilogue.write_sums(f.const(0, I32), self.thread, self.threads, shape, origins[1], entries)


def f_shift(f: Function, x: Value, count: int) -> Value:
    """x div 2^count, for i32 that are not negative."""
    return f.binary("lshr", x, f.const(count, I32))


def shared_after(f: Function, address: Value, bytes_: int) -> Value:
    """An address in shared memory so many bytes further."""
    if bytes_ == 0:
        return address
    return f.emit(f"getelementptr i8, {address!r}, i32 {bytes_}", address.type)


def _divides(by: int, size: Dim) -> bool:
    return isinstance(size, int) and size % by == 0
