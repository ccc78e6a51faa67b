"""The form of a contraction for Hopper: one thread has boxes copied in, two warpgroups multiply.

Blocks stay and walk many tiles. Shared memory is a ring of stages, each with 128 bytes along k of both factors; a stage
has one barrier that its copies complete and one that those arrive at who have read it. Wide tiles are shared by the
warpgroups, 64 rows each; while they take their sums to the results the next tile's stages fill. Narrow tiles
(`taking_turns`) belong to one warpgroup each: while it takes its sums to the results the other one multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.codegen.llvm_text import F32, I32, I64, Function, Module, Value
from isthmus.codegen.nvptx import tensor_cores as cores
from isthmus.codegen.nvptx.contract import Contraction
from isthmus.codegen.nvptx.contract_epilogue import batch_indices
from isthmus.codegen.nvptx.contract_plan import ContractPlan, Matrix
from isthmus.codegen.nvptx.contract_results import Results, Share
from isthmus.codegen.nvptx.shared_memory import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    barriers_are_made,
    copy_box_in,
    meet,
    shared,
    special_register,
)
from isthmus.codegen.nvptx.tensor_cores import BOX_BYTES, ROW_BYTES
from isthmus.dialects.program import TensorMap
from isthmus.dialects.target import Target

GROUP = 128
"""Threads of a warpgroup."""
GROUPS = 2
"""Warpgroups that multiply."""
ROWS = 64
"""Rows that one instruction multiplies."""
TURNS = 128
"""Tiles of up to so many columns belong to one warpgroup each."""
SHARED_BYTES = 227 << 10
"""Shared memory that a block can have."""
MOST_STAGES, ENOUGH_STAGES = 6, 4
"""Stages at most; and so many that those beyond them may make room for an operand."""
BARRIERS = 16 * (MOST_STAGES + GROUPS)
"""Bytes of barriers at most."""
PRODUCER_REGISTERS = 40
REGISTERS = 232
"""Registers of a thread that multiplies."""


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

    def skip(self, stages: Value) -> None:
        """Leave so many stages (i32) to others."""
        f, (stage, parity) = self._f, self.now()
        after, count = stage + stages, f.const(self._count, I32)
        f.store(f.binary("urem", after, count), self._stage)
        f.store(parity ^ (f.binary("udiv", after, count) & 1), self._parity)


class Boxes(Contraction):
    """The code of one contraction, as one thread runs it."""

    resident = 1

    def __init__(self, module: Module, plan: ContractPlan, target: Target, name: str) -> None:
        self.taking_turns = plan.columns <= TURNS
        self.row_blocks = plan.rows // ROWS if self.taking_turns else plan.rows // ROWS // GROUPS
        """Blocks of 64 rows that a warpgroup multiplies."""
        boxes = plan.columns // ROWS
        staged = plan.staged if len(plan.staged) <= boxes else {}
        sides = ((plan.a, plan.m, plan.rows), (plan.b, plan.n, plan.columns))
        maps = [_factor_map(plan, *side) for side in sides]
        maps += [matrix.map(plan.n, plan.m, plan.batch, ROWS) for matrix in staged.values()]
        self.bytes_a, self.bytes_b = plan.rows * ROW_BYTES, plan.columns * ROW_BYTES
        self.stage_bytes = self.bytes_a + self.bytes_b
        rest, self.stages = self._memory(plan, len(staged), operand=False)
        self.operand = plan.operand if staged else None
        if self.operand is not None:
            with_operand = self._memory(plan, len(staged), operand=True)
            if with_operand[1] >= min(ENOUGH_STAGES, self.stages):
                rest, self.stages = with_operand
                maps.append(plan.matrix_of(self.operand).map(plan.n, plan.m, plan.batch, ROWS))
            else:
                self.operand = None
        super().__init__(module, plan, target, name, GROUP * (GROUPS + 1), tuple(staged), maps)
        self.turned_a, self.turned_b = (not plan.runs_along_k(x) for x in (plan.a, plan.b))
        if self.stages < 2:
            raise plan.unsupported("sums too many columns at once")
        self.results_start = self.stages * self.stage_bytes
        self.barriers_start = self.results_start + rest
        self.shared_bytes = self.barriers_start + 16 * (self.stages + GROUPS)

    def _memory(self, plan: ContractPlan, staged: int, *, operand: bool) -> tuple[int, int]:
        """Give the bytes of the results of all warpgroups, and the stages that there is room for beside them."""
        rest = Results.bytes_of(plan, self.row_blocks, staged, operand=operand) * GROUPS
        return rest, min(MOST_STAGES, (SHARED_BYTES - rest - BARRIERS) // self.stage_bytes)

    # ---- roles

    def emit(self) -> None:
        """Emit the function."""
        f = self.f
        readers = 1 if self.taking_turns else GROUPS
        with f.when(f.compare("eq", self.thread, 0)):
            for stage in range(self.stages):
                barrier_init(f, self._full(stage), 1)
                barrier_init(f, self._empty(stage), readers)
            for group in range(GROUPS):
                barrier_init(f, self.operand_barrier(group), 1)
                barrier_init(f, self._turn(group), 1)
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
        cores.set_registers(f, REGISTERS, more=True)
        self._multiply()
        f.line(f"br label %{done}")
        f.start(done)
        f.finish()

    def _full(self, stage: Value | int) -> Value:
        return self._barrier(stage, self.barriers_start)

    def _empty(self, stage: Value | int) -> Value:
        return self._barrier(stage, self.barriers_start + 8 * self.stages)

    def operand_barrier(self, group: Value | int) -> Value:
        """What the copies of a warpgroup's operand complete."""
        return self._barrier(group, self.barriers_start + 16 * self.stages)

    def _turn(self, group: Value | int) -> Value:
        """What tells a warpgroup that the other one has begun its last products.

        A barrier shows the parity of its phase alone: who waits for a stage must be at most one phase ahead.
        """
        return self._barrier(group, self.barriers_start + 16 * self.stages + 8 * GROUPS)

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
                k0 = f.cast("trunc", step * plan.depth, I32)
                at = stage * self.stage_bytes
                self._copy(0, plan.a, plan.rows, (at, m0, k0), full)
                self._copy(1, plan.b, plan.columns, (at + self.bytes_a, n0, k0), full)
                ring.advance()

    def _copy(self, number: int, matrix: Matrix, extent: int, at: tuple[Value, Value, Value], full: Value) -> None:
        f = self.f
        (start, own, k0), outer = at, self.batch_of(matrix)
        map_ = self.map_arguments[number]
        if self.plan.runs_along_k(matrix):
            copy_box_in(f, shared(f, start), map_, [k0, own, *outer], full)
            return
        for box in range(extent // 64):
            copy_box_in(f, shared(f, start + box * BOX_BYTES), map_, [own + 64 * box, k0, *outer], full)

    # ---- warpgroups that multiply

    def _multiply(self) -> None:
        f, plan = self.f, self.plan
        group = f.binary("lshr", self.thread, f.const(7, I32)) - 1
        share = Share(self.row_blocks, not self.taking_turns, self.operand, self.operand_barrier)
        self.results = Results(self, share, group, self.results_start)
        self.row = f.const(0, I32) if self.taking_turns else group
        """The first of this warpgroup's blocks of rows in a tile."""
        self.speaks = self.results.speaks
        ring = _Ring(f, self.stages, 0)
        before = f.slot(I32)
        sums = [[f.slot(F32) for _ in range(plan.columns // 2)] for _ in range(self.row_blocks)]
        steps = self.steps()
        first, stride = self.first, self.step
        turn = f.slot(I32)
        if self.taking_turns:
            ring.skip(group * f.cast("trunc", steps, I32))
            f.store(group ^ 1, turn)  # the first one need not wait
            first, stride = first + f.cast("zext", group, I64) * stride, stride * GROUPS
        with f.loop(first, self.count, stride) as tile, self.state.frame():
            place = self.place(tile)
            batch_indices(self.state, plan, place[0])
            for slot in (s for block in sums for s in block):
                f.store(cores.zero(f), slot)
            if self.taking_turns:
                parity = f.load(turn, I32)
                barrier_wait(f, self._turn(group), parity)
                f.store(parity ^ 1, turn)
            with f.loop(0, steps) as step:
                self.results.fetch(step, self.row, place)
                self._step(ring, sums, before, step)
            if self.taking_turns:
                with f.when(self.speaks):
                    barrier_arrive(f, self._turn(group ^ 1))
            flat = cores.finished(f, [f.load(s, F32) for block in sums for s in block])
            last = self.speaks if steps.constant else self.speaks & f.compare("sgt", steps, 0)
            with f.when(last):
                barrier_arrive(f, self._empty(f.load(before, I32)))
            if self.taking_turns:
                ring.skip(f.cast("trunc", steps, I32))
            each = len(sums[0])
            self.results.take([flat[n : n + each] for n in range(0, len(flat), each)], self.row, place)
        self.results.end()

    def _step(self, ring: _Ring, sums: Sequence[Sequence[Value]], before: Value, step: Value) -> None:
        """One stage: its products are under way when those of the one before are known to be done."""
        f, plan = self.f, self.plan
        stage, parity = ring.now()
        barrier_wait(f, self._full(stage), parity)
        start = stage * self.stage_bytes
        a = cores.descriptor(f, shared(f, start + self.row * BOX_BYTES), turned=self.turned_a)
        b = cores.descriptor(f, shared(f, start + self.bytes_a), turned=self.turned_b)
        values = [[f.load(s, F32) for s in block] for block in sums]
        cores.begin_tiles(f)
        for n in range(4):
            for block in range(self.row_blocks):
                values[block] = cores.multiply_tile(
                    f,
                    plan.dtype,
                    values[block],
                    a + (n * cores.step_of(turned=self.turned_a) + block * (BOX_BYTES >> 4)),
                    b + n * cores.step_of(turned=self.turned_b),
                    turned_a=self.turned_a,
                    turned_b=self.turned_b,
                )
        cores.end_tiles(f)
        cores.wait_tiles(f, 1)
        for block, slots in zip(values, sums, strict=True):
            for value, slot in zip(block, slots, strict=True):
                f.store(value, slot)
        with f.when(self.speaks & f.compare("ne", step, 0)):
            barrier_arrive(f, self._empty(f.load(before, I32)))
        f.store(stage, before)
        ring.advance()


def _factor_map(plan: ContractPlan, matrix: Matrix, own: int, extent: int) -> TensorMap:
    if plan.runs_along_k(matrix):
        return matrix.map(plan.k, own, plan.batch, extent, cores.PTX_TYPE[plan.dtype])
    return matrix.map(own, plan.k, plan.batch, 64)
