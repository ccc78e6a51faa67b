"""What becomes of a tile's sums while they are in registers: the epilogue, pair by pair of neighbouring columns.

A thread holds, in blocks of 8 columns, the columns 2 (lane mod 4) and the next one of some rows: those of its lane,
div 4, in each 8 rows. What depends on a row alone is computed once per row of a tile, what depends on a column alone
once for all rows. Places outside of the result are read as the last one inside, and not written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen.cpu.body import Body
from isthmus.codegen.cpu.memory import Place, pointer
from isthmus.codegen.cpu.plan import Access
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import from_memory, round_to, to_memory
from isthmus.codegen.llvm_text import F32, I1, I32, I64, Function, Type, Value
from isthmus.codegen.nvptx.coarse import COARSE, emit_coarse, is_coarse
from isthmus.codegen.nvptx.contract_plan import PAIR, ContractPlan, Fragments
from isthmus.codegen.nvptx.shared_memory import shared
from isthmus.codegen.nvptx.threads import WARP
from isthmus.dialects import kernel as k

Pair = Sequence[Value]
"""The sums of two neighbouring columns."""
Staged = dict[k.StoreOp, list[Value]]
"""Per result that leaves through shared memory, and row: a pair as 32 bits."""


class FragmentState(State):
    """The place in an epilogue where code is being written."""

    plan: Fragments  # pyright: ignore[reportIncompatibleVariableOverride]

    def alignment(self, access: Access) -> int | None:
        """What is known of the address of a pair."""
        return max(self.plan.alignment(access), ir.itemsize(access.dtype))


class FragmentBody(Body):
    """Emits the ops of an epilogue."""

    def emit(self, op: Operation) -> None:
        """Emit one op; its operands have been emitted."""
        if type(op) in COARSE and is_coarse(op):
            emit_coarse(self.state, op)
        else:
            super().emit(op)


class Epilogue:
    """Emits the epilogue of one thread. `staged`: the results whose pairs the caller takes on."""

    def __init__(self, plan: ContractPlan, state: FragmentState, staged: Sequence[k.StoreOp]) -> None:
        self.plan, self.state, self.f = plan, state, state.f
        self.body = FragmentBody(state)
        self.staged = tuple(staged)
        m, n = plan.m, plan.n
        ops = plan.fragments.ops
        which = {op: plan.fragments.dims_of(op) & {m, n} for op in ops}
        self._uniform, self._by_row, self._by_column, self._by_both = (
            [op for op in ops if which[op] == frozenset(dims)] for dims in ((), (m,), (n,), (m, n))
        )
        self._rows: list[tuple[Value, Value | None]] = []
        self._frames: list[object] = []
        self._sums: dict[k.AccumulateOp, Callable[[int, list[Value]], None]] = {}

    # ---- one tile

    @contextmanager
    def tile(self, rows: Sequence[Value], column: Value, ragged: tuple[bool, bool]) -> Generator[None]:
        """At a tile: the rows and the first column (i64) of this thread; `ragged`: whether some may lie outside."""
        f, state, plan = self.f, self.state, self.plan
        height, width = state.size(plan.sizes[plan.m]), state.size(plan.sizes[plan.n])
        self._column, self._width, self._ragged_columns = column, width, ragged[1]
        self._rows, self._frames = [], []
        with state.frame():
            with state.vector(1):
                self._emit(self._uniform)
                for access in self._accesses(self._by_row + self._by_column + self._by_both):
                    pointer(state, access, 1)
            for row in rows:
                exists = f.compare("slt", row, height) if ragged[0] else None
                place = f.intrinsic("smin", row, height - 1) if ragged[0] else row
                self._rows.append((place, exists))
                state.indices[plan.m] = place
                with state.frame(), state.vector(1):
                    self._emit(self._by_row)
                    for access in self._accesses(self._by_both):
                        pointer(state, access, 2)
                    self._frames.append(state.frames[-1])
            yield

    def _accesses(self, ops: Sequence[Operation]) -> list[Access]:
        sinks = (k.AccumulateOp,)
        accesses = self.plan.fragments.accesses
        return [accesses[op] for op in ops if op in accesses and not isinstance(op, sinks)]  # pyright: ignore

    def _emit(self, ops: Sequence[Operation]) -> None:
        for op in ops:
            self.body.emit(op)

    def block(self, offset: int, pairs: Sequence[Pair], words: Sequence[Value] = ()) -> Staged:
        """Take the pairs of all rows at `offset` columns from the first one to the results.

        `words`: by row the pair (32 bits) of the operand that has come as boxes, if there is one.
        """
        if self.plan.fragments.lanes == PAIR:
            return self._at(offset, pairs, words)
        for lane in range(PAIR):
            self._at(offset + lane, [(pair[lane],) for pair in pairs], ())
        return {}

    def _at(self, offset: int, pairs: Sequence[Pair], words: Sequence[Value]) -> Staged:
        f, state, plan = self.f, self.state, self.plan
        lanes = plan.fragments.lanes
        column = self._column + offset
        inside = None
        if self._ragged_columns:
            inside = f.compare("slt", column, self._width)
            column = f.intrinsic("smin", column, self._width - lanes)
        staged: Staged = {op: [] for op in self.staged}
        totals: dict[k.AccumulateOp, Value] = {}
        with state.frame():
            state.indices[plan.n] = column
            with state.vector(lanes):
                self._emit(self._by_column)
            for n, (row, exists) in enumerate(self._rows):
                state.frames.append(self._frames[n])  # pyright: ignore[reportArgumentType]
                state.indices[plan.m] = row
                with state.frame(), state.vector(lanes):
                    state.set(plan.kernel.dot.y, round_to(state.math, self._vector(pairs[n]), plan.dtype))
                    if words:
                        self._give(words[n])
                    for op in self._by_both:
                        if not words or op is not plan.operand:
                            self._op(op, (exists, inside), staged, totals)
                state.frames.pop()
        for op, total in totals.items():
            self._sums[op](offset, [f.extract(total, lane) for lane in range(lanes)])
        return staged

    def _give(self, word: Value) -> None:
        """Let the operand that has come as boxes be this pair."""
        load = self.plan.operand
        assert load is not None
        pair = self.f.bitcast(word, Type.of("i16", PAIR))
        self.state.set(load.y, from_memory(self.state.math, pair, ir.dtype_of(load.y)))

    def _vector(self, pair: Pair) -> Value:
        if len(pair) == 1:
            return pair[0]
        made = self.f.poison(Type.of("float", len(pair)))
        for lane, x in enumerate(pair):
            made = self.f.insert(made, x, lane)
        return made

    def _op(
        self,
        op: Operation,
        exist: tuple[Value | None, Value | None],
        staged: Staged,
        totals: dict[k.AccumulateOp, Value],
    ) -> None:
        f, state = self.f, self.state
        if isinstance(op, k.AccumulateOp):
            x = state.splat_value(cast(Value, state.get(op.x)))
            if exist[0] is not None:
                x = f.select(self.f.splat(exist[0], x.type.lanes), x, 0.0)
            totals[op] = totals[op] + x if op in totals else x
        elif isinstance(op, k.StoreOp) and op in staged:
            raw = to_memory(state.math, state.splat_value(cast(Value, state.get(op.x))), ir.dtype_of(op.x))
            staged[op].append(f.bitcast(raw, I32))
        elif isinstance(op, k.StoreOp):
            there = [e for e in exist if e is not None]
            if not there:
                self.body.emit(op)
                return
            with f.when(there[0] if len(there) == 1 else there[0] & there[1]), state.frame():
                self.body.emit(op)
        else:
            self.body.emit(op)

    # ---- sums of columns

    def gather_sums(self, offset: Value, part: Value, lane: Value, columns: int, parts: int) -> None:
        """Let each warp leave its sums in shared memory from byte `offset` on: [sum][part][column]; all are i32.

        `offset` + 4 · column of this warp's first column; a part is what one warp sums.
        """
        for number, sink in enumerate(self.plan.sinks):
            self._sums[sink] = self._leave(offset, number * parts, part, lane, columns)

    def _leave(
        self, offset: Value, before: int, part: Value, lane: Value, columns: int
    ) -> Callable[[int, list[Value]], None]:
        f = self.f
        first = offset + (part + before) * (columns * 4) + (lane & 3) * (PAIR * 4)
        speaks = f.compare("ult", lane, 4)

        def leave(column: int, values: list[Value]) -> None:
            for distance in (4, 8, 16):
                values = [x + self._other(x, distance) for x in values]
            with f.when(speaks):
                for n, x in enumerate(values):
                    place = shared(f, first + (column + n) * 4)
                    f.line(f"store {x!r}, {place!r}, align 4")

        return leave

    def _other(self, x: Value, distance: int) -> Value:
        f = self.f
        constants = [f.const(c, I32) for c in (distance, WARP - 1)]
        bits = f.call("llvm.nvvm.shfl.sync.bfly.i32", I32, f.const(-1, I32), f.bitcast(x, I32), *constants)
        return f.bitcast(bits, F32)

    def write_sums(
        self,
        offset: Value,
        thread: Value,
        threads: int,
        shape: tuple[int, int],
        start: Value,
        entries: tuple[Value, Value],
    ) -> None:
        """Write the sums of a tile's columns: `shape` = parts and columns, `start` the first column of the tile (i64).

        `entries`: the number of the tile's entry among the partial results, and how many tiles there are. The last one
        writes 0 to all further entries.
        """
        f, state, plan = self.f, self.state, self.plan
        (parts, columns), (entry, count) = shape, entries
        is_last = f.compare("eq", entry + 1, count)
        for number, sink in enumerate(plan.sinks):
            leading = state.size(ir.shape_of(k.result_of(plan.kernel, sink))[0])
            for base in range(0, columns, threads):
                column = thread + base
                mine = f.compare("slt", start + f.cast("zext", column, I64), state.size(plan.sizes[plan.n]))
                if columns % threads:
                    mine = mine & f.compare("ult", column, columns)
                with f.when(mine), state.frame(), state.vector(1):
                    state.indices[plan.n] = start + f.cast("zext", column, I64)
                    total: Value | None = None
                    for part in range(parts):
                        place = shared(f, column * 4 + offset + (number * parts + part) * columns * 4)
                        x = f.emit(f"load float, {place!r}, align 4", F32)
                        total = x if total is None else total + x
                    assert total is not None
                    self._put(sink, total, entry)
                    with f.when(is_last), f.loop(count, leading) as further:
                        self._put(sink, f.const(0.0, F32), further)

    def _put(self, sink: k.AccumulateOp, x: Value, entry: Value) -> None:
        state = self.state
        with state.frame():
            state.partition = entry
            Place(state, self.plan.fragments.accesses[sink]).store(x)


def batch_indices(state: State, plan: ContractPlan, number: Value) -> None:
    """Set the batch indices of the `number`-th product."""
    f = state.f
    rest = number
    for d in reversed(plan.batch):
        if d == plan.batch[0]:
            state.indices[d] = rest
        else:
            extent = state.size(plan.sizes[d])
            state.indices[d] = f.binary("urem", rest, extent)
            rest = f.binary("udiv", rest, extent)


def lane_of(f: Function, thread: Value) -> tuple[Value, Value]:
    """Give the number in its warp, and of its warp; i32."""
    return thread & (WARP - 1), f.binary("lshr", thread, f.const(5, I32))


def always(f: Function) -> Value:
    """A condition that holds."""
    return f.const(1, I1)
