"""One fused kernel as a function: partitions, points, walks over the rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen.cpu import reductions
from isthmus.codegen.cpu.ahead import ask_for_next_row, asks
from isthmus.codegen.cpu.attention import emit_attention
from isthmus.codegen.cpu.attention_backward import emit_attention_bwd
from isthmus.codegen.cpu.body import Body, k_kind
from isthmus.codegen.cpu.contract import emit_contraction, shared_by
from isthmus.codegen.cpu.memory import fill, pointer
from isthmus.codegen.cpu.plan import FUSED_ACCUMULATORS, Plan, Walk
from isthmus.codegen.cpu.reductions import Accumulator, identity
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.cpu.stages import STRIP, Stage, Strips, stages_of
from isthmus.codegen.cpu.state import State
from isthmus.codegen.cpu.vector_loop import unless_empty, vector_loop
from isthmus.codegen.dtypes import constant
from isthmus.codegen.llvm_text import I64, PTR, VOID, Function, Module, Value
from isthmus.codegen.vector_math import Math
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target
from isthmus.sizes import Dim


def kernel_name(kernel: k.Kernel) -> str:
    """Give the name of a kernel's function: equal for kernels that share it."""
    return f"kernel_{k.key(kernel)}"


def emit_kernel(
    module: Module, kernel: k.Kernel, target: Target, name: str | None = None, *, alone: bool = False
) -> str:
    """Add a kernel's function to a module and give its name.

    `void @name(ptr buffers, ptr sizes, i64 begin, i64 end)` runs partitions begin <= p < end. `alone`: without the
    functions that it shares with other kernels (`shared_functions`). Raises UnsupportedError for what has no CPU code.
    """
    name = name or kernel_name(kernel)
    if isinstance(kernel, k.ContractOp):
        shared = {} if alone else shared_functions(kernel, target)
        for function, write in shared.items():
            if function not in module.own:
                write(module)
        return emit_contraction(module, kernel, target, name)
    if isinstance(kernel, k.AttentionOp):
        return emit_attention(module, kernel, target, name)
    if isinstance(kernel, k.AttentionBwdOp):
        return emit_attention_bwd(module, kernel, target, name)
    assert isinstance(kernel, k.FusedOp)
    Loops(module, kernel, target, name).emit()
    return name


def shared_functions(kernel: k.Kernel, target: Target) -> dict[str, Callable[[Module], None]]:
    """Give the functions that a kernel calls and others may too, by name, and what writes each into a module.

    A name tells the code for one target, as a kernel's does.
    """
    return shared_by(kernel, target) if isinstance(kernel, k.ContractOp) else {}


class Loops:
    """The loops of one kernel under construction."""

    def __init__(self, module: Module, kernel: k.FusedOp, target: Target, name: str) -> None:
        arguments = [("buffers", PTR), ("sizes", PTR), ("begin", I64), ("end", I64)]
        self.f = Function(module, name, arguments)
        self.kernel = kernel
        self.plan = Plan(kernel, target)
        self.plan.check_supported()
        buffers, sizes, _, _ = self.f.arguments
        with self.f.at_entry():
            symbols = {
                symbol: self.f.load(self.f.address(sizes, n, "i64"), I64) for n, symbol in enumerate(kernel.symbols_)
            }
        size = SizeValues(self.f, symbols)
        self.state = State(self.plan, self.f, Math(self.f, target), size)
        self.body = Body(self.state)
        count = len(kernel.inputs) + len(kernel.results)
        with self.f.at_entry():
            pointers = [self.f.load(self.f.address(buffers, n, "ptr"), PTR) for n in range(count + k.can_fail(kernel))]
        self.state.buffers = pointers[:count]
        self.state.error_word = pointers[count] if k.can_fail(kernel) else None
        if target.triple.startswith("x86_64"):
            self._look_at_lines()
        self.sinks = [op for op in kernel.block.ops if isinstance(op, k.AccumulateOp)]

    def _look_at_lines(self) -> None:
        """Find out, at the entry, which results that go past the caches begin at a line."""
        for number in self.kernel.past_caches_:
            buffer = len(self.kernel.inputs) + number
            with self.f.at_entry():
                address = self.f.cast("ptrtoint", self.state.buffers[buffer], I64)
                rest = address & (k.LINE - 1)
                self.state.past_caches[buffer] = (self.f.compare("eq", rest, 0), self.f.compare("ne", rest, 0))

    # ---- partitions

    @cached_property
    def each(self) -> int | None:
        """Points of a partition, where all have the same known number of them."""
        points, count = k.points(self.kernel), self.kernel.partitions_ or 1
        if not isinstance(points, int) or not isinstance(count, int) or points % count:
            return None
        each = points // count
        return None if self._cuts_lines and each % k.LINE else each

    @property
    def _cuts_lines(self) -> bool:
        """Whether bounds of partitions are to be moved, so that no line is stored by two."""
        return bool(self.state.past_caches) and self.plan.vector_is_parallel

    def emit(self) -> None:
        _, _, begin, end = self.f.arguments
        state = self.state
        with self.f.loop(begin, end) as p, state.frame():
            state.partition = p
            low, high = self._bounds(p)
            self._begin_accumulations()
            with unless_empty(self.f, low, high), state.frame():
                self._emit_scope(self.kernel.block.ops, 0, 0)
                self._points(low, high)
            self._end_accumulations()
        if state.past_caches:  # such stores are in no order with others: they end before who waits for this goes on
            self.f.module.declare("llvm.x86.sse.sfence", VOID, [])
            self.f.line("call void @llvm.x86.sse.sfence()")
        self.f.finish()

    def _bounds(self, p: Value) -> tuple[Value, Value]:
        """Points p·n/P to (p + 1)·n/P; where lines are not to be cut, so many down to as many as a line has bytes."""
        f, state = self.f, self.state
        n, count = state.size(k.points(self.kernel)), self.kernel.partitions_
        if count is None or count == 1:
            return f.index(0), n
        if self.each is not None:
            low = p * self.each
            return low, low + self.each
        total = state.size(count)
        low, high = f.binary("udiv", p * n, total), f.binary("udiv", (p + 1) * n, total)
        if not self._cuts_lines:
            return low, high
        return low & -k.LINE, f.select(f.compare("eq", p + 1, total), n, high & -k.LINE)

    # ---- accumulations over the points of a partition

    def _begin_accumulations(self) -> None:
        for op in self.sinks:
            if self.plan.accesses[op].prefixes[-1].terms or self.plan.accesses[op].late.terms:
                self._fill(op)
                continue
            found = self.body.accumulators.get(op)
            if found is None:
                lanes = self.plan.lanes if self._in_lanes(op) else 1
                copies = FUSED_ACCUMULATORS if lanes > 1 or self.plan.is_row(op) else 1
                found = reductions.make(self.state, k_kind(op), ir.dtype_of(op.x), copies, lanes)
                self.body.accumulators[op] = found
            found.start()

    def _in_lanes(self, op: Operation) -> bool:
        """Whether lanes of a sink are different points or positions."""
        if self.plan.vector is None:
            return False
        return self.plan.vector_is_parallel or self.plan.scope_of(op) == len(self.plan.scopes) - 1

    def _fill(self, op: k.AccumulateOp) -> None:
        """Set a partition's result in memory to the identity."""
        state = self.state
        access, dtype = self.plan.accesses[op], ir.dtype_of(op.x)
        result = k.result_of(self.kernel, op)
        total: Dim = 1
        for size in ir.shape_of(result)[1:]:
            total = total * size
        start = constant(state.math, identity(k_kind(op), dtype), dtype)
        fill(state, access, state.size(total), start)

    def _end_accumulations(self) -> None:
        for op in self.sinks:
            if op in self.body.accumulators:
                (value,) = self.body.accumulators[op].finish(across_lanes=True)
                self.body.place(op).store(value)

    # ---- points

    def _points(self, low: Value, high: Value) -> None:
        parallel = self.kernel.parallel
        self._prepare_scope(self.kernel.block.ops, 1)
        if not self.plan.vector_is_parallel:
            with self._odometer(parallel, low, high), self.state.frame():
                self._point()
            return
        vector = parallel[-1]
        if len(parallel) == 1:
            self._segment(low, high, self.each)
            return
        f, length = self.f, self.state.size(self.plan.sizes[vector])
        first = f.binary("udiv", low, length)
        last = f.binary("udiv", high + (length - 1), length)
        with self._odometer(parallel[:-1], first, last) as row, self.state.frame():
            if self.each is not None and length.constant and self.each % length.constant == 0:
                self._segment(f.index(0), length, length.constant)  # partitions are whole rows
                return
            start = row * length
            from_ = f.intrinsic("smax", low - start, f.index(0))
            to = f.intrinsic("smin", high - start, length)
            self._segment(from_, to)

    @contextmanager
    def _odometer(self, dims: Sequence[int], low: Value, high: Value) -> Generator[Value]:
        """Walk the points low..high of these dims in row-major order, keeping their indices."""
        f, state = self.f, self.state
        if len(dims) <= 1:
            with f.loop(low, high) as q:
                if dims:
                    state.indices[dims[0]] = q
                yield q
            return
        slots = {d: f.slot(I64, align=8) for d in dims}
        rest = low
        for d in reversed(dims[1:]):
            size = state.size(self.plan.sizes[d])
            f.store(f.binary("urem", rest, size), slots[d])
            rest = f.binary("udiv", rest, size)
        f.store(rest, slots[dims[0]])
        with f.loop(low, high) as q:
            for d in dims:
                state.indices[d] = f.load(slots[d], I64)
            yield q
            carry = f.index(1)
            for d in reversed(dims):
                moved = f.load(slots[d], I64) + carry
                wraps = f.compare("eq", moved, state.size(self.plan.sizes[d]))
                f.store(f.select(wraps, 0, moved), slots[d])
                carry = f.cast("zext", wraps, I64)

    def _segment(self, low: Value, high: Value, length: int | None = None) -> None:
        """Walk neighbouring points, a vector of them at once; `length`: so many, where that is known."""
        (vector,) = self.plan.scopes[2]
        self._emit_scope(self.kernel.block.ops, 1, 0)
        self._prepare_scope(self.kernel.block.ops, 2)
        registers = [self.body.accumulators[op] for op in self.sinks if op in self.body.accumulators]
        unroll = 1
        if not self.kernel.rows:
            unroll = self.plan.unroll or (FUSED_ACCUMULATORS if registers else 1)

        def block(position: Value, mask: Value | None, copy: int) -> None:
            with self.state.frame(), self.state.vector(self.plan.lanes, mask, copy):
                self.state.indices[vector] = position
                self._point()

        stages = () if self.kernel.rows or registers else stages_of(self.plan)
        if len(stages) > 1:
            self._in_stages(low, high, stages)
            return
        vector_loop(self.state, (low, high), self.plan.lanes, unroll, block, registers, length)

    def _in_stages(self, low: Value, high: Value, stages: Sequence[Stage]) -> None:
        """Walk neighbouring points strip by strip, once for each stage."""
        f, state, (vector,) = self.f, self.state, self.plan.scopes[2]
        strips = Strips(state, self.body, stages)
        with f.loop(low, high, STRIP) as start:
            end = f.intrinsic("smin", start + STRIP, high)
            for stage in stages:

                def block(position: Value, mask: Value | None, copy: int, stage: Stage = stage) -> None:
                    with state.frame(), state.vector(self.plan.lanes, mask, copy):
                        state.indices[vector] = position
                        strips.emit(stage, position - start)

                vector_loop(state, (start, end), self.plan.lanes, 1, block, ())

    def _point(self) -> None:
        """Emit one point (or vector of points): level by level."""
        for level in range(self.plan.last_level + 1):
            for op in self.kernel.block.ops:
                if self.plan.levels[op] == level and not self.plan.is_row(op):
                    self._emit_once(op)
            walk = self.plan.walks[level]
            if walk is not None:
                self._walk(walk)

    def _emit_once(self, op: Operation) -> None:
        if not op.results or not self.state.has(op.results[0]):
            self.body.emit(op)

    def _emit_scope(self, ops: Iterable[Operation], scope: int, level: int | None) -> None:
        """Emit the ops that belong to a scope."""
        for op in ops:
            if self.plan.scope_of(op) == scope and level in (None, self.plan.levels[op]):
                self.body.emit(op)

    def _prepare_scope(self, ops: Iterable[Operation], scope: int) -> None:
        """Compute, before the loop of a scope, what is known of the addresses inside."""
        with self.state.vector(1):
            for op in ops:
                access = self.plan.accesses.get(op)  # pyright: ignore[reportArgumentType]
                if access is not None and self.plan.scope_of(op) >= scope:
                    pointer(self.state, access, scope - 1)

    # ---- rows

    def _walk(self, walk: Walk) -> None:
        body, state = self.body, self.state
        in_row = self.plan.vector is not None and not self.plan.vector_is_parallel
        lanes = self.plan.lanes if in_row else state.lanes
        unroll = self._row_unroll(walk)
        for op in walk.reductions:
            dtype = ir.dtype_of(ir.operands_of(op)[0])
            if op not in body.accumulators:
                made = reductions.make(state, k_kind(op), dtype, unroll, lanes)
                body.accumulators[op] = made
            body.accumulators[op].start()
        for op in walk.cumulative:
            body.begin_cumulative(op)
        self._nest(walk, 0, unroll)
        for op in walk.ops:
            if op not in walk.reductions and op in body.accumulators:
                body.accumulators[op].flush()
        for op in walk.reductions:
            values = body.accumulators[op].finish(across_lanes=in_row)
            for result, value in zip(op.results, values, strict=True):
                state.set(result, value)

    def _row_unroll(self, walk: Walk) -> int:
        if walk.cumulative:
            return 1
        if self.plan.unroll is not None:
            return self.plan.unroll
        sums = walk.reductions or any(op in self.body.accumulators for op in walk.ops)
        return FUSED_ACCUMULATORS if sums else 1

    def _nest(self, walk: Walk, depth: int, unroll: int) -> None:
        d, scope = self.kernel.rows[depth], self.plan.point + 1 + depth
        self._prepare_scope(walk.ops, scope)
        if depth == len(self.kernel.rows) - 1:
            self._innermost(walk, d, unroll)
            return
        with self.f.loop(0, self.state.size(self.plan.sizes[d])) as i, self.state.frame():
            self.state.indices[d] = i
            self._emit_scope(walk.ops, scope, None)
            self._nest(walk, depth + 1, unroll)
            for accumulator in self._sums(walk):
                accumulator.flush()

    def _sums(self, walk: Walk) -> list[Accumulator]:
        return [self.body.accumulators[op] for op in walk.ops if op in self.body.accumulators]

    def _innermost(self, walk: Walk, d: int, unroll: int) -> None:
        state, scope = self.state, len(self.plan.scopes) - 1
        in_row = self.plan.vector == d
        size = state.size(self.plan.sizes[d])
        reverse = any(cast(bool, op.reverse.data) for op in walk.cumulative)
        self._splat_uniform(walk, in_row)

        span = self.plan.lanes if in_row else 1
        asking = in_row and asks(state, walk)

        def step(position: Value, mask: Value | None, copy: int) -> None:
            lanes = span if in_row else state.lanes
            with state.frame(), state.vector(lanes, mask if in_row else state.mask, copy):
                # backwards the last vector starts at 0, where not all of its positions are left
                before = size - span - position if mask is None else self.f.index(0)
                state.indices[d] = before if reverse else position
                if asking and mask is None:
                    ask_for_next_row(state)
                for value in walk.restored:
                    self.body.restore(value)
                self._emit_scope(walk.ops, scope, None)
                for value in walk.kept:
                    self.body.keep(value)

        vector_loop(state, (self.f.index(0), size), span, unroll, step, self._sums(walk))

    def _splat_uniform(self, walk: Walk, in_row: bool) -> None:
        """Splat, before the loop, the scalars that vectors inside meet."""
        if not in_row:
            return
        inside = {r for op in walk.ops for r in op.results if self.plan.is_row(op)}
        with self.state.vector(self.plan.lanes):
            for op in walk.ops:
                if isinstance(op, k.LoadOp) or self.plan.scope_of(op) < len(self.plan.scopes) - 1:
                    continue
                for value in ir.operands_of(op):
                    if value not in inside and value not in walk.restored and self.state.has(value):
                        self.state.splat(self.state.get(value))
