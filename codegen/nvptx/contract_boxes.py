"""The form of a contraction for Hopper: one thread has boxes copied in, two warpgroups multiply 64 rows each.

Blocks stay and walk many tiles. Shared memory is a ring of stages, each with 64 terms of k of both factors; a stage has
one barrier that its copies complete and one that the warpgroups arrive at when they have read it. While a warpgroup
takes its sums to the results the next tile's stages fill. Results of 16-bit elements leave as boxes, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.codegen.llvm_text import F32, I32, I64, Function, Module, Value
from isthmus.codegen.nvptx import tensor_cores as cores
from isthmus.codegen.nvptx.contract import Contraction
from isthmus.codegen.nvptx.contract_epilogue import batch_indices
from isthmus.codegen.nvptx.contract_plan import ContractPlan, Matrix
from isthmus.codegen.nvptx.shared_memory import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    barriers_are_made,
    copy_box_in,
    copy_box_out,
    end_group_out,
    meet,
    meet_some,
    publish_shared,
    shared,
    special_register,
    wait_groups_out,
)
from isthmus.codegen.nvptx.tensor_cores import BOX_BYTES, ROW_BYTES
from isthmus.dialects import kernel as k
from isthmus.dialects.program import TensorMap
from isthmus.dialects.target import Target

GROUP = 128
"""Threads of a warpgroup."""
ROWS = 64
"""Rows of the result that a warpgroup multiplies."""
SHARED_BYTES = 227 << 10
"""Shared memory that a block can have."""
MOST_STAGES = 6
PRODUCER_REGISTERS = 40
REGISTERS = {1: 232, 2: 232, 3: 160}
"""Registers of a thread that multiplies, by the number of such warpgroups."""
SUMS_BARRIER, OWN_BARRIER = 1, 2
"""Numbers of the barriers of all multiplying threads, and of the first warpgroup."""


class _Ring:
    """Which stage comes next, and the parity of what is waited for there."""

    def __init__(self, f: Function, count: int, parity: int) -> None:
        self._f, self._count = f, count
        self._stage, self._parity = f.slot(I32), f.slot(I32)
        f.store(f.const(0, I32), self._stage)
        f.store(f.const(parity, I32), self._parity)

    def now(self) -> tuple[Value, Value]:
        """The stage and the parity."""
        return self._f.load(self._stage, I32), self._f.load(self._parity, I32)

    def advance(self) -> None:
        """Go on to the next stage."""
        f, (stage, parity) = self._f, self.now()
        after = stage + 1
        wraps = f.compare("eq", after, self._count)
        f.store(f.select(wraps, 0, after), self._stage)
        f.store(f.select(wraps, parity ^ 1, parity), self._parity)


class Boxes(Contraction):
    """The code of one contraction, as one thread runs it."""

    resident = 1

    def __init__(self, module: Module, plan: ContractPlan, target: Target, name: str) -> None:
        self.groups = plan.rows // ROWS
        self.boxes = plan.columns // ROWS
        sides = ((plan.a, plan.m, plan.rows), (plan.b, plan.n, plan.columns))
        maps = [_factor_map(plan, *side) for side in sides]
        staged = plan.staged if len(plan.staged) <= self.boxes else {}
        maps += [matrix.map(plan.n, plan.m, plan.batch, ROWS) for matrix in staged.values()]
        super().__init__(module, plan, target, name, GROUP * (self.groups + 1), tuple(staged), maps)
        self.turned_a, self.turned_b = (not plan.runs_along_k(x) for x in (plan.a, plan.b))
        self.bytes_a, self.bytes_b = plan.rows * ROW_BYTES, plan.columns * ROW_BYTES
        self.stage_bytes = self.bytes_a + self.bytes_b
        self.out_bytes = self.boxes * BOX_BYTES if staged else 0
        """Of one warpgroup."""
        sums = 4 * self.groups * 4 * plan.columns * len(plan.sinks)
        rest = self.groups * self.out_bytes + sums
        self.stages = min(MOST_STAGES, (SHARED_BYTES - rest - 256) // self.stage_bytes)
        if self.stages < 2:
            raise ValueError("a tile whose stages do not fit")
        self.out_start = self.stages * self.stage_bytes
        self.sums_start = self.out_start + self.groups * self.out_bytes
        self.barriers_start = self.sums_start + sums
        self.shared_bytes = self.barriers_start + 16 * self.stages

    # ---- roles

    def emit(self) -> None:
        """Emit the function."""
        f = self.f
        with f.when(f.compare("eq", self.thread, 0)):
            for stage in range(self.stages):
                barrier_init(f, self._full(stage), 1)
                barrier_init(f, self._empty(stage), self.groups)
            barriers_are_made(f)
        meet(f)
        self.first = f.cast("zext", self.block, I64)
        self.step = f.cast("zext", special_register(f, "nctaid.x"), I64)
        self.count = self.state.size(self.tiles)
        feeds, multiplies, done = f.label("feed"), f.label("multiply"), f.label("done")
        is_first = f.compare("ult", self.thread, GROUP)
        f.line(f"br {is_first!r}, label %{feeds}, label %{multiplies}")
        f.start(feeds)
        cores.set_registers(f, PRODUCER_REGISTERS, more=False)
        with f.when(f.compare("eq", self.thread, 0)):
            self._feed()
        f.line(f"br label %{done}")
        f.start(multiplies)
        cores.set_registers(f, REGISTERS[self.groups], more=True)
        self._multiply()
        f.line(f"br label %{done}")
        f.start(done)
        f.finish()

    def _full(self, stage: Value | int) -> Value:
        return self._barrier(stage, self.barriers_start)

    def _empty(self, stage: Value | int) -> Value:
        return self._barrier(stage, self.barriers_start + 8 * self.stages)

    def _barrier(self, stage: Value | int, start: int) -> Value:
        stage = stage if isinstance(stage, Value) else self.f.const(stage, I32)
        return shared(self.f, stage * 8 + start)

    # ---- the thread that feeds

    def _feed(self) -> None:
        f, plan = self.f, self.plan
        ring = _Ring(f, self.stages, 1)
        with f.loop(self.first, self.count, self.step) as tile:
            batch, row, column = self.place(tile)
            batch_indices(self.state, plan, batch)
            m0, n0 = (f.cast("trunc", x, I32) for x in (row * plan.rows, column * plan.columns))
            with f.loop(0, self.steps()) as step:
                stage, parity = ring.now()
                barrier_wait(f, self._empty(stage), parity)
                full = self._full(stage)
                barrier_expect(f, full, self.stage_bytes)
                k0 = f.cast("trunc", step * 64, I32)
                at = stage * self.stage_bytes
                self._copy(0, plan.a, plan.rows, (at, m0, k0), full)
                self._copy(1, plan.b, plan.columns, (at + self.bytes_a, n0, k0), full)
                ring.advance()

    def _copy(self, number: int, matrix: Matrix, extent: int, at: tuple[Value, Value, Value], full: Value) -> None:
        f = self.f
        (start, own, k0), outer = at, self._batch_of(matrix)
        map_ = self.map_arguments[number]
        if self.plan.runs_along_k(matrix):
            copy_box_in(f, shared(f, start), map_, [k0, own, *outer], full)
            return
        for box in range(extent // 64):
            copy_box_in(f, shared(f, start + box * BOX_BYTES), map_, [own + 64 * box, k0, *outer], full)

    def _batch_of(self, matrix: Matrix) -> list[Value]:
        indices = self.state.indices
        return [self.f.cast("trunc", indices[d], I32) for d in matrix.batch_dims(self.plan.batch)]

    # ---- warpgroups that multiply

    def _multiply(self) -> None:
        f, plan = self.f, self.plan
        group = f.binary("lshr", self.thread, f.const(7, I32)) - 1
        within = self.thread & (GROUP - 1)
        self.group, self.within = group, within
        self.speaks = f.compare("eq", within, 0)
        self.lane, self.warp = within & 31, f.binary("lshr", within, f.const(5, I32))
        ring = _Ring(f, self.stages, 0)
        before = f.slot(I32)
        sums = [f.slot(F32) for _ in range(plan.columns // 2)]
        with f.loop(self.first, self.count, self.step) as tile, self.state.frame():
            batch, row, column = self.place(tile)
            batch_indices(self.state, plan, batch)
            for slot in sums:
                f.store(cores.zero(f), slot)
            steps = self.steps()
            with f.loop(0, steps) as step:
                self._step(ring, sums, before, step)
            values = cores.finished(f, [f.load(s, F32) for s in sums])
            last = self.speaks if steps.constant else self.speaks & f.compare("sgt", steps, 0)
            with f.when(last):
                barrier_arrive(f, self._empty(f.load(before, I32)))
            self._finish(values, (batch, row, column))
        if self.epilogue.staged:
            with f.when(self.speaks):
                wait_groups_out(f, only_read=False)

    def _step(self, ring: _Ring, sums: Sequence[Value], before: Value, step: Value) -> None:
        """64 terms of k: the products of this stage are under way when those of the one before are known to be done."""
        f, plan = self.f, self.plan
        stage, parity = ring.now()
        barrier_wait(f, self._full(stage), parity)
        start = stage * self.stage_bytes
        a = cores.descriptor(f, shared(f, start + self.group * BOX_BYTES), turned=self.turned_a)
        b = cores.descriptor(f, shared(f, start + self.bytes_a), turned=self.turned_b)
        values = [f.load(s, F32) for s in sums]
        cores.begin_tiles(f)
        for n in range(4):
            values = cores.multiply_tile(
                f,
                plan.dtype,
                values,
                a + n * cores.step_of(turned=self.turned_a),
                b + n * cores.step_of(turned=self.turned_b),
                turned_a=self.turned_a,
                turned_b=self.turned_b,
            )
        cores.end_tiles(f)
        cores.wait_tiles(f, 1)
        for value, slot in zip(values, sums, strict=True):
            f.store(value, slot)
        with f.when(self.speaks & f.compare("ne", step, 0)):
            barrier_arrive(f, self._empty(f.load(before, I32)))
        f.store(stage, before)
        ring.advance()

    # ---- results

    def _finish(self, values: Sequence[Value], place: tuple[Value, Value, Value]) -> None:
        f, plan, epilogue = self.f, self.plan, self.epilogue
        batch, row, column = place
        start = column * plan.columns
        above = self.group * ROWS + self.warp * 16 + f.binary("lshr", self.lane, f.const(2, I32))
        first = row * plan.rows + f.cast("zext", above, I64)
        left = start + f.cast("zext", (self.lane & 3) * 2, I64)
        if plan.sinks:
            part = self.group * 4 + self.warp
            epilogue.gather_sums(f.const(self.sums_start, I32), part, self.lane, plan.columns, 4 * self.groups)
            meet_some(f, SUMS_BARRIER, GROUP * self.groups)
        with epilogue.tile([first, first + 8], left, self.ragged()):
            self._blocks(values, place)
        if plan.sinks:
            meet_some(f, SUMS_BARRIER, GROUP * self.groups)
            shape = (4 * self.groups, plan.columns)
            among = self.group * GROUP + self.within
            entries = self.entry(batch, row)
            epilogue.write_sums(self.sums_start, among, GROUP * self.groups, shape, start, entries)

    def _blocks(self, values: Sequence[Value], place: tuple[Value, Value, Value]) -> None:
        """All blocks of 8 columns; those that leave as boxes, in rounds of as many boxes as there is room for."""
        staged = self.epilogue.staged
        each = self.boxes // len(staged) if staged else self.boxes
        for low in range(0, self.boxes, each):
            boxes = range(low, min(low + each, self.boxes))
            if staged:
                self._room()
            for box in boxes:
                for pair in range(4):
                    self._two_blocks(values, box * 8 + pair * 2, (box - low) * len(staged))
            if staged:
                self._leave(boxes, low, place)

    def _two_blocks(self, values: Sequence[Value], block: int, slot: int) -> None:
        """16 columns, which one instruction writes to shared memory for each result."""
        f = self.f
        found: dict[k.StoreOp, list[Value]] = {op: [] for op in self.epilogue.staged}
        for b in (block, block + 1):
            pairs = [values[4 * b : 4 * b + 2], values[4 * b + 2 : 4 * b + 4]]
            for op, words in self.epilogue.block(8 * b, pairs).items():
                found[op] += words
        line = self.warp * 16 + (self.lane & 15)
        piece = f.binary("lshr", self.lane, f.const(4, I32)) + block % 8
        for number, words in enumerate(found.values()):
            at = self.out_start + (slot + number) * BOX_BYTES
            offset = self.group * self.out_bytes + cores.swizzled(f, line, piece) + at
            cores.store_fragments(f, shared(f, offset), words)

    def _room(self) -> None:
        """Wait until the boxes that left last have been read."""
        with self.f.when(self.speaks):
            wait_groups_out(self.f, only_read=True)
        self._meet()

    def _meet(self) -> None:
        meet_some(self.f, self.group + OWN_BARRIER, GROUP)

    def _leave(self, boxes: range, low: int, place: tuple[Value, Value, Value]) -> None:
        f, plan = self.f, self.plan
        staged = self.epilogue.staged
        publish_shared(f)
        self._meet()
        _, row, column = place
        m0 = f.cast("trunc", row * plan.rows, I32) + self.group * ROWS
        n0 = f.cast("trunc", column * plan.columns, I32)
        with f.when(self.speaks):
            for box in boxes:
                for number, op in enumerate(staged):
                    slot = (box - low) * len(staged) + number
                    source = shared(f, self.group * self.out_bytes + (self.out_start + slot * BOX_BYTES))
                    outer = self._batch_of(plan.staged[op])
                    copy_box_out(f, source, self.map_arguments[2 + number], [n0 + 64 * box, m0, *outer])
            end_group_out(f)


def _factor_map(plan: ContractPlan, matrix: Matrix, own: int, extent: int) -> TensorMap:
    if plan.runs_along_k(matrix):
        return matrix.map(plan.k, own, plan.batch, extent)
    return matrix.map(own, plan.k, plan.batch, 64)
