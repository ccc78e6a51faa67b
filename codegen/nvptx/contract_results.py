"""How warpgroups take finished sums to the results: through the epilogue, as boxes where elements have 16 bits.

A warpgroup has room for a box of 64 rows and 64 columns for each such part of its tile. Several results share it, in
rounds of fewer columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isthmus.codegen.llvm_text import I32, I64, Value
from isthmus.codegen.nvptx import tensor_cores as cores
from isthmus.codegen.nvptx.contract import Contraction
from isthmus.codegen.nvptx.contract_plan import ContractPlan
from isthmus.codegen.nvptx.shared_memory import (
    barrier_expect,
    barrier_wait,
    copy_box_in,
    copy_box_out,
    end_group_out,
    meet_some,
    publish_shared,
    shared,
    wait_groups_out,
)
from isthmus.codegen.nvptx.tensor_cores import BOX_BYTES
from isthmus.dialects import kernel as k

ROWS = 64
GROUP, GROUPS, WARPS = 128, 2, 4
"""Threads of a warpgroup, warpgroups that multiply, warps of one."""
SUMS_BARRIER, OWN_BARRIER = 1, 2
"""Numbers of the barriers of all multiplying threads, and of the first warpgroup."""
FETCH_STEP = 2
"""The step of k at which the operand of an epilogue is fetched: what left before has been read by then."""
FACTORS = 2
"""Tensor maps before those of the results."""

Place = tuple[Value, Value, Value]
"""Which product of the batch, row and column of tiles; i64."""


@dataclass(frozen=True)
class Share:
    """What a warpgroup has of a tile."""

    row_blocks: int
    """Blocks of 64 rows."""
    with_others: bool
    """Whether all warpgroups work on one tile."""
    operand: k.LoadOp | None
    """The operand of the epilogue that comes as boxes, and the barrier that a warpgroup's boxes of it complete."""
    arrived: Callable[[Value], Value]


class Results:
    """The way of one warpgroup's sums, in the code of one thread of it."""

    def __init__(self, form: Contraction, share: Share, group: Value, start: int) -> None:
        """`group`: the number of the warpgroup; `start`: the byte of shared memory where their rooms begin."""
        self.form, self.f, self.plan, self.epilogue = form, form.f, form.plan, form.epilogue
        f, plan = self.f, self.plan
        self.group = group
        self.within = form.thread & (GROUP - 1)
        self.speaks = f.compare("eq", self.within, 0)
        """Whether this thread acts for its warpgroup."""
        self.lane, self.warp = self.within & 31, f.binary("lshr", self.within, f.const(5, I32))
        self.boxes, self.row_blocks = plan.columns // ROWS, share.row_blocks
        staged, operand = len(self.epilogue.staged), share.operand is not None
        self.room = self.rooms_of(plan, self.row_blocks, staged, operand=operand) * BOX_BYTES
        self.start = start
        self.sums_start = start + GROUPS * self.room
        self.shares = share.with_others
        self.parts = WARPS * (GROUPS if self.shares else 1)
        self.sums_room = self.parts * plan.columns * 4 * len(plan.sinks)

        self.operand, self.arrived = share.operand, share.arrived
        self.parity = f.slot(I32)
        f.store(f.const(0, I32), self.parity)

    @staticmethod
    def rooms_of(plan: ContractPlan, row_blocks: int, staged: int, *, operand: bool) -> int:
        """Boxes that a warpgroup has room for: a tile's; where an operand comes as such, those of further results, too.

        The first result takes the rooms of the operand; further ones have rooms for 64 columns.
        """
        further = staged - 1 if operand else 0
        return (plan.columns // ROWS + further) * row_blocks if staged else 0

    @staticmethod
    def bytes_of(plan: ContractPlan, row_blocks: int, staged: int, *, operand: bool) -> int:
        """Shared memory of one warpgroup's results: boxes, and what its warps sum of columns."""
        boxes = Results.rooms_of(plan, row_blocks, staged, operand=operand) * BOX_BYTES
        return boxes + WARPS * plan.columns * 4 * len(plan.sinks)

    def end(self) -> None:
        """Wait for what is still on its way."""
        if self.epilogue.staged:
            with self.f.when(self.speaks):
                wait_groups_out(self.f, only_read=False)

    # ---- one tile

    def fetch(self, step: Value, block: Value, place: Place) -> None:
        """At an early step of k: begin to copy the operand of the epilogue to where the result will be put together."""
        if self.operand is None:
            return
        f, plan, form = self.f, self.plan, self.form
        steps = form.steps().constant
        assert steps is not None
        with f.when(self.speaks & f.compare("eq", step, min(FETCH_STEP, steps - 1))):
            wait_groups_out(f, only_read=True)  # of the tile before
            barrier = self.arrived(self.group)
            barrier_expect(f, barrier, self.boxes * self.row_blocks * BOX_BYTES)
            m0, n0 = self._corner(block, place)
            outer = form.batch_of(plan.matrix_of(self.operand))
            for box in range(self.boxes):
                for rows in range(self.row_blocks):
                    room = shared(f, self.group * self.room + (self.start + self._slot(box, 0, rows, 0)))
                    where = [n0 + ROWS * box, m0 + ROWS * rows, *outer]
                    copy_box_in(f, room, form.map_arguments[-1], where, barrier)

    def _corner(self, block: Value, place: Place) -> tuple[Value, Value]:
        f, plan = self.f, self.plan
        _, row, column = place
        m0 = f.cast("trunc", row * plan.rows, I32) + block * ROWS
        return m0, f.cast("trunc", column * plan.columns, I32)

    def take(self, sums: Sequence[Sequence[Value]], block: Value, place: Place) -> None:
        """Take the sums of this warpgroup's blocks of rows, `block` (i32) the first of them, to the results."""
        f, plan, epilogue = self.f, self.plan, self.epilogue
        batch, row, column = place
        start = column * plan.columns
        above = block * ROWS + self.warp * 16 + f.binary("lshr", self.lane, f.const(2, I32))
        first = row * plan.rows + f.cast("zext", above, I64)
        left = start + f.cast("zext", (self.lane & 3) * 2, I64)
        self.block = block
        if plan.sinks:
            self._meet_all()
            offset = f.const(self.sums_start, I32)
            part = self.group * WARPS + self.warp if self.shares else self.warp
            if not self.shares:
                offset = offset + self.group * self.sums_room
            epilogue.gather_sums(offset, part, self.lane, plan.columns, self.parts)
        rows = [first + (ROWS * b + h) for b in range(self.row_blocks) for h in (0, 8)]
        with epilogue.tile(rows, left, self.form.ragged()):
            self._rounds(sums, place)
        if plan.sinks:
            self._meet_all()
            self._write_sums(batch, row, start)

    def _write_sums(self, batch: Value, row: Value, start: Value) -> None:
        f, plan = self.f, self.plan
        shape, entries = (self.parts, plan.columns), self.form.entry(batch, row)
        if self.shares:
            among, threads = self.group * GROUP + self.within, GROUP * GROUPS
            offset = f.const(self.sums_start, I32)
        else:
            among, threads = self.within, GROUP
            offset = self.group * self.sums_room + self.sums_start
        self.epilogue.write_sums(offset, among, threads, shape, start, entries)

    def _meet_all(self) -> None:
        """Wait for all threads that work on this tile."""
        if self.shares:
            meet_some(self.f, SUMS_BARRIER, GROUP * GROUPS)
        else:
            self._meet()

    def _meet(self) -> None:
        meet_some(self.f, self.group + OWN_BARRIER, GROUP)

    # ---- boxes

    def _rounds(self, sums: Sequence[Sequence[Value]], place: Place) -> None:
        """All blocks of 8 columns; those that leave as boxes, in rounds of as many as there is room for."""
        staged = self.epilogue.staged
        each = self.boxes // len(staged) if staged else self.boxes
        if self.operand is not None and len(staged) > 1:
            each = 1
        for low in range(0, self.boxes, each):
            boxes = range(low, min(low + each, self.boxes))
            if self.operand is not None and low == 0:
                parity = self.f.load(self.parity, I32)
                barrier_wait(self.f, self.arrived(self.group), parity)
                self.f.store(parity ^ 1, self.parity)
            elif staged:
                with self.f.when(self.speaks):
                    wait_groups_out(self.f, only_read=True)
                self._meet()
            for box in boxes:
                for pair in range(4):
                    self._two_blocks(sums, box * 8 + pair * 2, box, low)
            if staged:
                publish_shared(self.f)
                self._meet()
                self._leave(boxes, place)

    def _slot(self, box: int, low: int, block: int, number: int) -> int:
        """The byte, in a warpgroup's room, of a box: its number, that of the round's first, block of rows, result."""
        if self.operand is None:
            slot = ((box - low) * self.row_blocks + block) * len(self.epilogue.staged) + number
        elif number == 0:
            slot = box * self.row_blocks + block
        else:
            slot = (self.boxes + number - 1) * self.row_blocks + block
        return slot * BOX_BYTES

    def _two_blocks(self, sums: Sequence[Sequence[Value]], block: int, box: int, low: int) -> None:
        """16 columns, which one instruction for each result and block of rows writes to shared memory."""
        f = self.f
        found: dict[k.StoreOp, list[list[Value]]] = {op: [] for op in self.epilogue.staged}
        line = self.warp * 16 + (self.lane & 15)
        piece = f.binary("lshr", self.lane, f.const(4, I32)) + block % 8
        mine = self.group * self.room + cores.swizzled(f, line, piece)

        def room(rows: int, number: int) -> Value:
            return shared(f, mine + (self.start + self._slot(box, low, rows, number)))

        given: list[list[Value]] = [[], []]
        if self.operand is not None:
            for rows in range(self.row_blocks):
                four = cores.load_fragments(f, room(rows, 0), turned=False)
                given[0] += four[:2]
                given[1] += four[2:]
        for b in (block, block + 1):
            pairs = [own[4 * b + 2 * h : 4 * b + 2 * h + 2] for own in sums for h in range(2)]
            for op, words in self.epilogue.block(8 * b, pairs, given[b - block]).items():
                found[op].append(words)
        for number, (left, right) in enumerate(found.values()):
            for rows in range(self.row_blocks):
                words = [*left[2 * rows : 2 * rows + 2], *right[2 * rows : 2 * rows + 2]]
                cores.store_fragments(f, room(rows, number), words)

    def _leave(self, boxes: range, place: Place) -> None:
        f, plan, form = self.f, self.plan, self.form
        m0, n0 = self._corner(self.block, place)
        with f.when(self.speaks):
            for box in boxes:
                for number, op in enumerate(self.epilogue.staged):
                    for rows in range(self.row_blocks):
                        at = self.start + self._slot(box, boxes.start, rows, number)
                        source = shared(f, self.group * self.room + at)
                        outer = form.batch_of(plan.staged[op])
                        where = [n0 + ROWS * box, m0 + ROWS * rows, *outer]
                        copy_box_out(f, source, form.map_arguments[FACTORS + number], where)
            end_group_out(f)
