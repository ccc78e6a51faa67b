"""Scatters of long rows, which several threads walk at once: each writes the places that are its own, in order.

The owner of a place is its index modulo the number of owners. The lanes of a warp belong to one owner; where all of
them are there, they read 32 indices at once and vote:

for 32 positions of the row:
    mine = vote(index of my lane's position % owners == owner)
    for each bit of mine, lowest first:
        write what the row has at that position
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus.codegen.cpu.kernel import Loops
from isthmus.codegen.cpu.plan import Walk
from isthmus.codegen.cpu.vector_loop import multiple
from isthmus.codegen.dtypes import Operand
from isthmus.codegen.llvm_text import I1, I32, I64, Value
from isthmus.codegen.nvptx.body import ThreadBody
from isthmus.codegen.nvptx.plan import WARP, GridPlan
from isthmus.codegen.nvptx.threads import Threads

Known = dict[SSAValue, Operand]


class Owners(Loops):
    """The walk of a scatter's row by a thread that owns some places."""

    plan: GridPlan
    body: ThreadBody
    threads: Threads
    owner: Value
    """Which of the threads of a point this is."""

    def _by_votes(self, walk: Walk, d: int) -> None:
        """32 positions at once, each lane finds out about one; whoever owns the places then goes through them."""
        f, size = self.f, self.state.size(self.plan.sizes[d])
        with f.loop(0, size, WARP * self.plan.copies) as base:
            places = [base + (self.threads.lane_of_warp + n * WARP) for n in range(self.plan.copies)]
            known = self._indices(walk, d, [f.intrinsic("smin", place, size - 1) for place in places])
            votes = [
                self.threads.vote(self._is_mine(found) & f.compare("slt", place, size))
                for place, found in zip(places, known, strict=True)
            ]
            for n, vote in enumerate(votes):
                left = f.slot(I32)
                f.store(vote, left)
                with f.loop(0, f.cast("zext", f.intrinsic("ctpop", vote), I64)):
                    now = f.load(left, I32)
                    f.store(now & (now - 1), left)
                    lowest = f.call("llvm.cttz.i32", I32, now, f.const(1, I1))
                    with self._at(d, base + (f.cast("zext", lowest, I64) + n * WARP), {}):
                        for op in self._of_row(walk):
                            self.body.emit(op)

    def _one_after_the_other(self, walk: Walk, d: int) -> None:
        """Every position: some indices are read at once, then what goes to my places is done."""
        size = self.state.size(self.plan.sizes[d])
        stop = multiple(self.f, size, self.plan.copies)
        with self.f.loop(0, stop, self.plan.copies) as first:
            self._own_places(walk, d, [first + n for n in range(self.plan.copies)])
        with self.f.loop(stop, size) as position:
            self._own_places(walk, d, [position])

    def _own_places(self, walk: Walk, d: int, positions: Sequence[Value]) -> None:
        before = self.plan.before_ownership
        for position, known in zip(positions, self._indices(walk, d, positions), strict=True):
            with self._at(d, position, known), self.f.when(self._is_mine(known)), self.state.frame():
                for op in self._of_row(walk):
                    if op not in before:
                        self.body.emit(op)

    def _of_row(self, walk: Walk) -> list[Operation]:
        return [op for op in walk.ops if self.plan.scope_of(op) == len(self.plan.scopes) - 1]

    def _indices(self, walk: Walk, d: int, positions: Sequence[Value]) -> list[Known]:
        """What it takes to know whose places some positions of the row go to: all are read before one is used."""
        known: list[Known] = [{} for _ in positions]
        for op in self._of_row(walk):
            if op in self.plan.before_ownership:
                for position, found in zip(positions, known, strict=True):
                    with self._at(d, position, found):
                        self.body.emit(op)
                        found |= {r: self.state.get(r) for r in op.results}
        return known

    def _is_mine(self, known: Known) -> Value:
        index = known.get(self.plan.owner_index)
        index = cast(Value, self.state.get(self.plan.owner_index) if index is None else index)
        return self.f.compare("eq", self.f.binary("urem", index, self.f.index(self.plan.owners)), self.owner)

    @contextmanager
    def _at(self, d: int, position: Value, known: Known) -> Generator[None]:
        with self.state.frame():
            self.state.indices[d] = position
            for value, operand in known.items():
                self.state.set(value, operand)
            yield
