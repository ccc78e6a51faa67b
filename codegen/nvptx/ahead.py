"""Reads of the next point's row, issued before this point's row is used: who walks many rows waits for memory once.

next = read the first row
for each point:
    row, next = next, read the row of the next point
    ...                                                 # what is computed of the row, barriers included
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen.cpu.memory import Place
from isthmus.codegen.dtypes import Operand, from_memory
from isthmus.codegen.llvm_text import Function, Type, Value
from isthmus.codegen.vector_math import Math
from isthmus.dialects import kernel as k

Step = tuple[int, ...]
"""Where a row walk that is written out is: the step along each row dim."""


class Ahead:
    """Elements of this point's row and of the next one's, in registers, as memory holds them."""

    def __init__(self, f: Function, math: Math, loads: Sequence[k.LoadOp]) -> None:
        self.f, self.math = f, math
        self.loads = tuple(loads)
        self._next: dict[tuple[Operation, Step], tuple[Value, Type]] = {}
        """Stack slots: registers, since the walk is written out."""
        self._now: dict[tuple[Operation, Step], Value] = {}

    def __contains__(self, op: object) -> bool:
        """Whether an op is read ahead."""
        return op in self.loads

    def read(self, op: k.LoadOp, step: Step, place: Place) -> None:
        """Read what an op wants at this step of the next point."""
        type_ = Type.of(place.scalar, place.state.lanes)
        if (op, step) not in self._next:
            self._next[op, step] = self.f.slot(type_), type_
        self.f.store(self.f.load(place.base, type_, place.align), self._next[op, step][0])

    def take(self) -> None:
        """The next point becomes this one."""
        self._now = {key: self.f.load(slot, type_) for key, (slot, type_) in self._next.items()}

    def give(self, op: k.LoadOp, step: Step) -> Operand:
        """Give what an op reads at this step of this point, or once for the point."""
        raw = self._now.get((op, step)) or self._now[op, ()]
        return from_memory(self.math, raw, ir.dtype_of(op.y))
