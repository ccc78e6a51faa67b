"""The ops of a kernel body in one thread: what is written once is written by one thread, sums are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu import reductions
from isthmus.codegen.cpu.body import Body, k_kind
from isthmus.codegen.cpu.memory import Place
from isthmus.codegen.cpu.plan import Access
from isthmus.codegen.cpu.reductions import Accumulator, Combiner
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import (
    REGISTER,
    Operand,
    constant,
    from_parts,
    parts_of,
)
from isthmus.codegen.llvm_text import Type, Value
from isthmus.codegen.nvptx.ahead import Ahead, Step
from isthmus.codegen.nvptx.coarse import COARSE, emit_coarse, is_coarse
from isthmus.codegen.nvptx.division import divide_alike
from isthmus.codegen.nvptx.plan import GridPlan
from isthmus.codegen.nvptx.positions import is_position
from isthmus.codegen.nvptx.random import ThreadDraws
from isthmus.codegen.nvptx.ranges import is_a_fraction, is_at_most_zero
from isthmus.codegen.nvptx.shared_rows import DYNAMIC, SharedRows
from isthmus.codegen.nvptx.threads import Threads
from isthmus.codegen.vector_math.special_unit import LOWEST, bounded_exp
from isthmus.dialects import kernel as k
from isthmus.dialects import prim

__all__ = ["DYNAMIC", "Lanes", "ThreadBody", "ThreadState", "Whole"]


class ThreadState(State):
    """The place where code is being written, in one thread of a group."""

    plan: GridPlan

    def alignment(self, access: Access) -> int | None:
        """What is known of the address of a vector."""
        return max(self.plan.alignment(access), ir.itemsize(access.dtype))


class Lanes(Accumulator):
    """A running value of one thread, which takes every lane of a vector as a number of its own.

    It has as many copies as there are lanes in all unrolled vectors.
    """

    def step(self, values: Sequence[Operand]) -> None:
        """Combine each lane into the accumulator of its copy and lane."""
        state, copy = self.state, self.state.copy
        for lane in range(state.lanes):
            mine = [from_parts([state.f.extract(part, lane) for part in parts_of(v)]) for v in values]
            with state.vector(1, None, copy * state.plan.lanes + lane):
                super().step(mine)


class Whole(Accumulator):
    """A running value of one thread per lane."""


class ThreadBody(Body):
    """Emits body ops in one thread."""

    def __init__(self, state: ThreadState, threads: Threads) -> None:
        super().__init__(state)
        self.draws = ThreadDraws(state)
        self.plan = state.plan
        self.threads = threads
        self.step: Step = ()
        """Where a row walk is written out: the step along each row dim."""
        self.ahead = Ahead(state.f, self.math, self.plan.read_ahead)
        self.own: dict[tuple[Operation, Step], Accumulator] = {}
        """Sums of row positions that a thread keeps in registers, by the steps along the dims of their maps."""
        self._registers: dict[tuple[SSAValue, Step, int], Value] = {}
        self.shared = SharedRows(state)

    def emit(self, op: Operation) -> None:
        """Emit one op; its operands have been emitted."""
        if isinstance(op, k.StoreOp):
            self.store(op)
        elif isinstance(op, k.AccumulateOp):
            self.accumulate(op)
        elif isinstance(op, k.LoadOp) and op in self.ahead:
            self.state.set(op.y, self.ahead.give(op, self.step))
        elif op in self.plan.copied:
            self.state.set(op.results[0], self.shared.read(op.results[0]))
        elif isinstance(op, prim.DivOp) and self._divides_alike(op):
            n, d = (self.state.get(v) for v in ir.operands_of(op))
            n, exact = self.state.splat_value(cast(Value, n)), is_a_fraction(op.operands[0])
            how = "coarse" if is_coarse(op) else "fraction" if exact else "any"
            self.state.set(op.y, divide_alike(self.math, n, cast(Value, d), ir.dtype_of(op.y), how))
        elif isinstance(op, prim.CmpOp) and (found := is_position(self.state, op)) is not None:
            self.state.set(op.y, found)
        elif type(op) in COARSE and is_coarse(op):
            emit_coarse(self.state, op)
        elif isinstance(op, prim.ExpOp) and ir.dtype_of(op.y) == "f32" and is_at_most_zero(op.operands[0]):
            x = cast(Value, self.state.get(op.operands[0]))
            self.state.set(op.y, bounded_exp(self.math, self.math.at_least(x, LOWEST)))
        else:
            super().emit(op)

    def _divides_alike(self, op: prim.DivOp) -> bool:
        """Whether all numbers that a thread divides here have one divisor, in f32."""
        n, d = ir.operands_of(op)
        if ir.dtype_of(n) not in ("f32", "bf16", "f16"):
            return False
        shared = self.plan.shared_dims
        dims = self.plan.varying
        return bool(shared & dims[n]) and not shared & dims[d]

    # ---- sinks

    def is_shared_out(self, op: Operation) -> bool:
        """Whether different threads emit an op for different places."""
        if not self.plan.shares_rows:
            return True
        return bool(self.plan.shared_dims & self.plan.dims_of(op))

    def store(self, op: Operation) -> None:
        """kernel.store: what is the same for the whole group, or for all warps, is written by the first one."""
        if self.plan.sharers == 1 and self.is_shared_out(op):
            super().store(op)
            return
        writes = self.threads.is_first
        if self.plan.sharers > 1:
            writes = self.state.f.compare("eq", self.threads.warp, 0)
        with self.state.f.when(writes), self.state.frame():
            super().store(op)

    def accumulate(self, op: Operation) -> None:
        """kernel.accumulate: into registers of the partition, or into its result."""
        sink = cast(k.AccumulateOp, op)
        place = self.plan.sum_place(sink)
        x = self.state.get(sink.x)
        if place == "own" and (sink, self.step_of(sink)) in self.own:
            self.own[sink, self.step_of(sink)].step([x])
        elif sink in self.accumulators:
            self.accumulators[sink].step([x])
        elif place == "own":
            self._add(sink, x)
        else:
            self.add_by_first(sink, x)

    def step_of(self, sink: k.AccumulateOp) -> Step:
        """The steps along the dims of a sum's map."""
        if self.plan.is_flat:
            return self.step
        dims = cast(k.Map, sink.properties["map"]).dims()
        return tuple(n for d, n in zip(self.plan.kernel.rows, self.step, strict=False) if d in dims)

    def add_by_first(self, sink: k.AccumulateOp, x: Operand) -> None:
        """Combine into the result what all threads of the group have."""
        with self.state.f.when(self.threads.is_first), self.state.frame(), self.state.vector(1):
            self._add(sink, x)

    def _add(self, sink: k.AccumulateOp, x: Operand) -> None:
        combine = Combiner(self.state, k_kind(sink), ir.dtype_of(sink.x))
        Place(self.state, self.plan.accesses[sink]).store(x, combine.rounded)

    def fill(self, sink: k.AccumulateOp) -> None:
        """Set the place of a sum to the identity."""
        dtype = ir.dtype_of(sink.x)
        start = constant(self.math, reductions.identity(k_kind(sink), dtype), dtype)
        Place(self.state, self.plan.accesses[sink]).store(start)

    # ---- kept row values

    def keep(self, value: SSAValue) -> None:
        """Put a row value into registers or shared memory, where what is read ahead or copied is anyway."""
        if value.owner in self.ahead or value.owner in self.plan.copied:
            return
        place = self.plan.place_of_row(value)
        if place == "local":
            super().keep(value)
            return
        operand = self.state.splat(self.state.get(value))
        if place == "shared":
            assert isinstance(operand, Value)
            self.shared.write(value, operand)
            return
        for n, part in enumerate(parts_of(operand)):
            self.state.f.store(part, self._register(value, n, part.type))

    def restore(self, value: SSAValue) -> None:
        """Read a row value back."""
        state, place, maker = self.state, self.plan.place_of_row(value), value.owner
        if isinstance(maker, k.LoadOp) and maker in self.ahead:
            state.set(value, self.ahead.give(maker, self.step))
            return
        if self.plan.residence(value) == "reload" or place == "local":
            super().restore(value)
            return
        dtype = ir.dtype_of(value)
        if place == "shared":
            state.set(value, self.shared.read(value))
            return
        complex_ = {"c64": "float", "c128": "double"}
        count = 2 if dtype in complex_ else 1
        type_ = Type.of(complex_.get(dtype) or REGISTER[dtype], state.lanes)
        parts = [state.f.load(self._register(value, n, type_), type_) for n in range(count)]
        state.set(value, from_parts(parts))

    def _register(self, value: SSAValue, part: int, type_: Type) -> Value:
        """A stack slot of this step of the walk: a register, since the walk is written out."""
        key = (value, self.step, part)
        slot = self._registers.get(key)
        if slot is None:
            slot = self._registers[key] = self.state.f.slot(type_)
        return slot
