"""One fused kernel as a function that every thread of a grid runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from isthmus import ir
from isthmus.codegen.cpu.memory import element
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.cpu.vector_loop import multiple
from isthmus.codegen.dtypes import from_memory
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type, Value
from isthmus.codegen.nvptx.body import ThreadBody, ThreadState
from isthmus.codegen.nvptx.plan import GridPlan
from isthmus.codegen.nvptx.rows import Rows
from isthmus.codegen.nvptx.threads import Threads
from isthmus.codegen.vector_math import Math
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target


class Grid(Rows):
    """The code of one kernel, as one thread runs it."""

    def __init__(self, module: Module, kernel: k.FusedOp, target: Target, name: str, *, aligned: bool = True) -> None:
        self.kernel = kernel
        self.plan = GridPlan(kernel, target, aligned=aligned)
        self.plan.check_supported()
        self.plan.check_fits()
        count, fails = len(kernel.inputs) + len(kernel.results), k.can_fail(kernel)
        pointers = [(f"b{n}", PTR) for n in range(count + fails)]
        numbers = [(f"s{n}", I64) for n in range(len(kernel.symbols_))]
        blocks = self.plan.side_by_side
        self.f = Function(
            module,
            name,
            pointers + numbers,
            linkage="ptx_kernel",
            attributes=f'"nvvm.maxntid"="{self.plan.threads}"' + (f' "nvvm.minctasm"="{blocks}"' if blocks else ""),
            of_arguments=self._of_pointers(len(pointers)) + [""] * len(numbers),
        )
        self.threads = Threads(self.f, name, self.plan.threads, self.plan.group)
        symbols = dict(zip(kernel.symbols_, self.f.arguments[len(pointers) :], strict=True))
        self.state = ThreadState(self.plan, self.f, Math(self.f, target), SizeValues(self.f, symbols))
        self.state.buffers = list(self.f.arguments[:count])
        self.state.error_word = self.f.arguments[count] if fails else None
        self.body = ThreadBody(self.state, self.threads)
        self.sinks = [op for op in kernel.block.ops if isinstance(op, k.AccumulateOp)]

    def _of_pointers(self, count: int) -> list[str]:
        """Operands are only read, and nobody else touches what is written, unless a result starts as an operand.

        A result may have the place of an operand: what each point reads once is then written over by it, so that no
        read comes after the write of another thread.
        """
        if any(i is not None for i in self.kernel.initial_):
            return [""] * count
        reads = len(self.kernel.inputs)
        return ["noalias readonly" if n < reads else "noalias" for n in range(count)]

    # ---- partitions

    def emit(self) -> None:
        """Emit the function."""
        state = self.state
        with self._existing(), self._unless_one(), state.frame():
            state.partition = self.threads.partition
            low, high = self._bounds(state.partition)
            self._begin_accumulations()
            with state.frame():
                self._emit_scope(self.kernel.block.ops, 0, 0)
                self._points(low, high)
            self._end_accumulations()
        self.f.finish()

    @contextmanager
    def _existing(self) -> Generator[None]:
        """Leave out the groups of the last block that have no partition."""
        count = self.kernel.partitions_ or 1
        if self.threads.groups == 1 or (isinstance(count, int) and count % self.threads.groups == 0):
            yield
            return
        with self.f.when(self.f.compare("slt", self.threads.partition, self.state.size(count))):
            yield

    @contextmanager
    def _unless_one(self) -> Generator[None]:
        """Leave everything as it is where the number that the kernel multiplies by is 1."""
        which = self.plan.unless_one
        if which is None:
            yield
            return
        dtype = ir.dtype_of(self.kernel.inputs[which])
        scalar, _ = element(dtype)
        factor = from_memory(self.state.math, self.f.load(self.state.buffers[which], Type.of(scalar)), dtype)
        with self.f.when(self.f.compare("une", factor, 1.0)):
            yield

    def _bounds(self, p: Value) -> tuple[Value, Value]:
        chunk = self.plan.chunk
        if chunk is None:
            return super()._bounds(p)
        if self.plan.owners > 1:
            self.owner = self.f.binary("urem", p, self.f.index(self.plan.owners))
            p = self.f.binary("udiv", p, self.f.index(self.plan.owners))
        low = p * chunk
        if self._has_whole_chunks():
            return low, low + chunk
        return low, self.f.intrinsic("smin", low + chunk, self.state.size(k.points(self.kernel)))

    def _has_whole_chunks(self) -> bool:
        """Whether every partition has all points of a chunk."""
        n, chunk = k.points(self.kernel), self.plan.chunk
        return chunk == 1 or (isinstance(n, int) and chunk is not None and n % chunk == 0)

    # ---- points

    def _points(self, low: Value, high: Value) -> None:
        self._prepare_scope(self.kernel.block.ops, 1)
        if self.plan.shares_rows:
            self._points_in_turn(low, high)
        else:
            self._points_side_by_side(low, high)

    def _points_in_turn(self, low: Value, high: Value) -> None:
        """All threads of the group at one point after the other."""
        self._copy_rows(of_points=False)
        if self.plan.chunk == 1:
            with self.state.frame():
                self.set_indices(low, self.kernel.parallel, k.points(self.kernel))
                self._point()
            return
        if self.plan.is_dealt:
            self._points_dealt_out()
            return
        ahead = self.body.ahead
        self._read_ahead(low)
        with self._odometer(self.kernel.parallel, low, high) as q, self.state.frame(), self.threads.turn(q):
            ahead.take()
            self._read_ahead(self.f.intrinsic("smin", q + 1, high - 1) if ahead.loads else q)
            self._point()

    def _points_dealt_out(self) -> None:
        """Every so many-th point, from that of the partition's own number on."""
        f, ahead, parallel = self.f, self.body.ahead, self.kernel.parallel
        n, step = self.state.size(k.points(self.kernel)), self.state.size(self.kernel.partitions_ or 1)
        first = self.threads.partition
        self._read_ahead(first)
        with f.loop(0, f.binary("udiv", n - first + (step - 1), step)) as turn, self.state.frame():
            q = first + turn * step
            self.set_indices(q, parallel, k.points(self.kernel))
            with self.threads.turn(turn):
                ahead.take()
                if ahead.loads:
                    after = q + step
                    self._read_ahead(f.select(f.compare("slt", after, n), after, q))
                self._point()

    def _point(self) -> None:
        self._copy_rows(of_points=True)
        super()._point()

    def _copy_rows(self, *, of_points: bool) -> None:
        """Copy rows to shared memory: those of the point, or those that all points have in common."""
        points = frozenset(self.kernel.parallel)
        chosen = [op for op in self.plan.copied if bool(op.map.dims() & points) == of_points]
        for op in chosen:

            def copy(op: k.LoadOp = op) -> None:
                self.body.shared.copy(op, self.body.place(op))

            with self.state.frame():
                self.positions(op, copy)
        if chosen:
            self.body.shared.wait()

    def _read_ahead(self, q: Value) -> None:
        """Issue the reads of the row of point q."""
        state, before = self.state, dict(self.state.indices)
        with state.frame():
            for op in self.body.ahead.loads:

                def read(op: k.LoadOp = op) -> None:
                    self.body.ahead.read(op, self.body.step, self.body.place(op))

                self.set_indices(q, self.kernel.parallel, k.points(self.kernel))
                self.positions(op, read)
        state.indices = before

    def _points_side_by_side(self, low: Value, high: Value) -> None:
        """Each thread at points of its own: whole vectors of a chunk, and what is left over one by one."""
        f, plan = self.f, self.plan
        copies = 1 if self.kernel.rows else plan.copies
        lane = self.threads.lane if plan.sharers == 1 else self.threads.lane_of_warp
        first, big = lane * plan.lanes, plan.span * copies
        if plan.chunk == big:
            if self._has_whole_chunks():
                self._side_by_side(low + first, copies)
                return
            whole = f.compare("sle", low + big, self.state.size(k.points(self.kernel)))
            with f.when(whole):
                self._side_by_side(low + first, copies)
            with f.when(~whole):
                self._one_by_one(low, high)
            return
        stop = low + multiple(f, high - low, big)
        with f.loop(low, stop, big) as base:
            self._side_by_side(base + first, copies)
        self._one_by_one(stop, high)

    def _side_by_side(self, q: Value, copies: int) -> None:
        for copy in range(copies):
            self._at_points(q + copy * self.plan.span, self.plan.lanes, copy)

    def _one_by_one(self, low: Value, high: Value) -> None:
        with self.f.loop(low + self.threads.lane, high, self.threads.group) as q:
            self._at_points(q, 1, 0)

    def _at_points(self, q: Value, lanes: int, copy: int) -> None:
        """Emit `lanes` neighbouring points from q on."""
        ops = self.kernel.block.ops
        with self.state.frame():
            self.set_indices(q, self.kernel.parallel, k.points(self.kernel))
            if self.plan.vector is not None:
                self._emit_scope(ops, 1, 0)
                self._prepare_scope(ops, 2)
            with self.state.vector(lanes, None, copy):
                self._point()
