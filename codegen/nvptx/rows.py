"""Walks over the rows of a point by a group of threads, and the sums over points that rows feed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from isthmus import ir
from isthmus.codegen.cpu import reductions
from isthmus.codegen.cpu.body import k_kind
from isthmus.codegen.cpu.plan import Walk
from isthmus.codegen.cpu.reductions import Accumulator
from isthmus.codegen.cpu.vector_loop import multiple
from isthmus.codegen.dtypes import Operand
from isthmus.codegen.llvm_text import I32, I64, Value
from isthmus.codegen.nvptx.body import Lanes, Whole
from isthmus.codegen.nvptx.owners import Owners
from isthmus.dialects import kernel as k
from isthmus.sizes import Dim


class Rows(Owners):
    """The row walks of one kernel, as one thread takes part in them."""

    sinks: list[k.AccumulateOp]

    def _innermost(self, walk: Walk, d: int, unroll: int) -> None:
        if self.plan.sharers > 1:
            self._every_few(walk, d, unroll)
            return
        if self.plan.owners == 1:
            super()._innermost(walk, d, unroll)
        elif self.plan.owners_vote:
            self._by_votes(walk, d)
        else:
            self._one_after_the_other(walk, d)

    def _every_few(self, walk: Walk, d: int, unroll: int) -> None:
        """The positions of a row that are this warp's: one in as many as there are warps."""
        f, state, warps, mine = self.f, self.state, self.plan.sharers, self.threads.warp

        def step(position: Value, copy: int) -> None:
            with state.frame(), state.vector(1, None, copy):
                state.indices[d] = position
                self._emit_scope(walk.ops, len(self.plan.scopes) - 1, None)

        size = state.size(self.plan.sizes[d])
        stop = multiple(f, size, warps * unroll)
        if stop.constant != 0:
            with f.loop(0, stop, warps * unroll) as base:
                for copy in range(unroll):
                    step(base + (mine + copy * warps), copy)
        if stop.constant is None or stop.constant != size.constant:
            with f.loop(stop + mine, size, warps) as position:
                step(position, 0)

    def _walk(self, walk: Walk) -> None:
        body, plan = self.body, self.plan
        if not plan.shares_rows:
            super()._walk(walk)
            if plan.sharers > 1:
                self._combine_warps(walk)
        else:
            for op in walk.reductions:
                made = self._sum(k_kind(op), ir.dtype_of(ir.operands_of(op)[0]))
                made.start()
                body.accumulators[op] = made
            body.step = ()
            if plan.is_flat:
                self._flat(walk)
            else:
                self._nest(walk, 0, plan.copies)
            found = self._combined([body.accumulators[op] for op in walk.reductions])
            for op, values in zip(walk.reductions, found, strict=True):
                for result, value in zip(op.results, values, strict=True):
                    self.state.set(result, value)
        for op in walk.reductions:
            del body.accumulators[op]
        for op in walk.cumulative:
            del body.carries[op]

    def _combine_warps(self, walk: Walk) -> None:
        """Reductions over rows that warps share out."""
        given = [(self.body.accumulators[op].merge, [self.state.get(r) for r in op.results]) for op in walk.reductions]
        for op, values in zip(walk.reductions, self.threads.combine_warps(given), strict=True):
            for result, value in zip(op.results, values, strict=True):
                self.state.set(result, value)

    def _sum(self, kind: str, dtype: str) -> Accumulator:
        """The running value of one thread."""
        return reductions.make(self.state, kind, dtype, self.plan.copies * self.plan.lanes, 1, Lanes)

    def _combined(self, sums: list[Accumulator]) -> list[list[Operand]]:
        """What all threads of the group have together, narrow floats rounded at the end."""
        given = [(s.merge, s.merged(across_lanes=False)) for s in sums]
        return [s.rounded(v) for s, v in zip(sums, self.threads.combine(given), strict=True)] if given else []

    def _nest(self, walk: Walk, depth: int, unroll: int) -> None:
        if not self.plan.shares_rows:
            super()._nest(walk, depth, unroll)
            return
        rows = self.kernel.rows
        d, scope = rows[depth], self.plan.point + 1 + depth
        self._prepare_scope(walk.ops, scope)
        if depth == len(rows) - 1:
            self._shared_out(walk, d, scope)
            return

        def position(i: Value) -> None:
            self.state.indices[d] = i
            self._emit_scope(walk.ops, scope, None)
            self._nest(walk, depth + 1, unroll)

        self._outer(d, position)

    def _flat(self, walk: Walk) -> None:
        """The positions of all row dims as one dim, which threads share out."""
        body, state = self.body, self.state
        first, last = self.plan.point + 1, len(self.plan.scopes) - 1
        self._prepare_scope(walk.ops, first)
        self._splat_uniform(walk, self.plan.vector is not None)

        def step(position: Value, copy: int) -> None:
            with state.frame():
                self.set_indices(position, self.kernel.rows, self.plan.row_length)
                for scope in range(first, last):
                    self._emit_scope(walk.ops, scope, None)
                    self._prepare_scope(walk.ops, scope + 1)
                with state.vector(self.plan.lanes, None, copy):
                    for value in walk.restored:
                        body.restore(value)
                    self._emit_scope(walk.ops, last, None)
                    for value in walk.kept:
                        body.keep(value)

        self._spread(self.plan.row_length, step)

    def set_indices(self, q: Value, dims: Sequence[int], count: Dim) -> None:
        """Cut the number of a position, of `count`, into its indices along dims."""
        state, rest = self.state, q
        for d in reversed(dims[1:]):
            size = self.plan.sizes[d]
            state.indices[d] = self._divided("urem", rest, size, count)
            rest = self._divided("udiv", rest, size, count)
        for d in dims[:1]:
            state.indices[d] = rest

    def _divided(self, op: str, x: Value, by: Dim, count: Dim) -> Value:
        f = self.f
        if isinstance(count, int) and count < 1 << 31 and isinstance(by, int):
            short = f.binary(op, f.cast("trunc", x, I32), f.const(by, I32))
            return f.cast("zext", short, I64)
        return f.binary(op, x, self.state.size(by))

    def _outer(self, d: int, position: Callable[[Value], None]) -> None:
        """Every position of an outer row dim, in order."""
        size, body, before = self.plan.sizes[d], self.body, self.body.step
        if self.plan.is_unrolled:
            for n in range(cast(int, size)):
                body.step = (*before, n)
                with self.state.frame():
                    position(self.f.index(n))
            body.step = before
            return
        with self.f.loop(0, self.state.size(size)) as i, self.state.frame(), self.threads.turn():
            position(i)

    def _shared_out(self, walk: Walk, d: int, scope: int) -> None:
        """The innermost dim, which threads share out; sums at each outer position are combined after it."""
        body, state = self.body, self.state
        sums = [op for op in walk.ops if isinstance(op, k.AccumulateOp) and self.plan.sum_place(op) == "group"]
        for op in sums:
            made = body.accumulators[op] = self._sum(k_kind(op), ir.dtype_of(op.x))
            made.start()
        self._splat_uniform(walk, self.plan.vector is not None)

        def step(position: Value, copy: int) -> None:
            with state.frame(), state.vector(self.plan.lanes, None, copy):
                state.indices[d] = position
                for value in walk.restored:
                    body.restore(value)
                self._emit_scope(walk.ops, scope, None)
                for value in walk.kept:
                    body.keep(value)

        self._spread(self.plan.sizes[d], step)
        found = self._combined([body.accumulators.pop(op) for op in sums])
        for op, (value,) in zip(sums, found, strict=True):
            body.add_by_first(op, value)

    def _spread(self, size: Dim, step: Callable[[Value, int], None]) -> None:
        """The steps of one thread along what is shared out: (position, number of the unrolled copy)."""
        f, plan = self.f, self.plan
        span = plan.span
        first = self.threads.lane * plan.lanes
        if plan.is_unrolled:
            self._written_out(span, cast(int, size), first, step)
            return
        total = self.state.size(size)
        stop = multiple(f, total, span * plan.copies)
        if stop.constant != 0:
            with f.loop(0, stop, span * plan.copies) as base:
                for copy in range(plan.copies):
                    step(base + (first + copy * span), copy)
        if stop.constant is None or stop.constant != total.constant:
            with f.loop(stop + first, total, span) as position:
                step(position, 0)

    def _written_out(self, span: int, size: int, first: Value, step: Callable[[Value, int], None]) -> None:
        body, before = self.body, self.body.step
        for n, start in enumerate(range(0, size, span)):
            body.step = (*before, n)
            position = first + start
            if start + span <= size:
                step(position, n % self.plan.copies)
                continue
            with self.f.when(self.f.compare("slt", position, size)):
                step(position, n % self.plan.copies)
        body.step = before

    # ---- sums over the points of a partition

    def _begin_accumulations(self) -> None:
        plan, body = self.plan, self.body
        for op in self.sinks:
            place, kind, dtype = plan.sum_place(op), k_kind(op), ir.dtype_of(op.x)
            if place == "total":
                body.accumulators[op] = self._sum(kind, dtype)
                body.accumulators[op].start()
            elif self._in_registers(op):

                def begin(op: k.AccumulateOp = op, kind: str = kind, dtype: str = dtype) -> None:
                    made = reductions.make(self.state, kind, dtype, 1, plan.lanes, Whole)
                    made.start()
                    body.own[op, body.step] = made

                self.positions(op, begin)
            else:
                self.positions(op, lambda op=op: self._by_owner(op, lambda: body.fill(op)))

    def _in_registers(self, op: k.AccumulateOp) -> bool:
        return self.plan.is_unrolled and self.plan.sum_place(op) == "own"

    def _by_owner(self, op: k.AccumulateOp, write: Callable[[], None]) -> None:
        """Write a sum's place here: each thread its own, or the first of the group."""
        if self.plan.sum_place(op) == "own":
            write()
            return
        with self.f.when(self.threads.is_first), self.state.frame(), self.state.vector(1):
            write()

    def _end_accumulations(self) -> None:
        body, totals = self.body, [op for op in self.sinks if op in self.body.accumulators]
        shared = [op for op in totals if body.is_shared_out(op)]
        found = dict(zip(shared, self._combined([body.accumulators[op] for op in shared]), strict=True))
        for op in totals:
            made = body.accumulators[op]
            (value,) = found[op] if op in found else made.rounded(made.merged(across_lanes=False))
            self._by_owner(op, lambda op=op, value=value: body.place(op).store(value))
        for op in self.sinks:
            if self._in_registers(op):

                def write(op: k.AccumulateOp = op) -> None:
                    (value,) = body.own[op, body.step].finish(across_lanes=False)
                    body.place(op).store(value)

                self.positions(op, write)

    def positions(self, op: k.AccumulateOp | k.LoadOp, do: Callable[[], None]) -> None:
        """Every position along the dims of an op's map that this thread takes part in; `step` has these dims only."""
        dims = [d for d in self.kernel.rows if d in cast(k.Map, op.properties["map"]).dims()]
        self.body.step = ()
        if self.plan.is_flat and dims:

            def flat(position: Value, copy: int) -> None:
                with self.state.frame():
                    self.set_indices(position, self.kernel.rows, self.plan.row_length)
                    with self.state.vector(self.plan.lanes, None, copy):
                        do()

            self._spread(self.plan.row_length, flat)
            return

        def at(depth: int) -> None:
            if depth == len(dims):
                with self.state.frame():
                    do()
                return
            d = dims[depth]
            if d == self.plan.spread:

                def step(position: Value, copy: int) -> None:
                    with self.state.frame(), self.state.vector(self.plan.lanes, None, copy):
                        self.state.indices[d] = position
                        at(depth + 1)

                self._spread(self.plan.sizes[d], step)
            else:

                def position(i: Value) -> None:
                    self.state.indices[d] = i
                    at(depth + 1)

                self._outer(d, position)

        at(0)
