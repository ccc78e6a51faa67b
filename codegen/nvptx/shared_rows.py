"""Rows in shared memory: what a walk puts there for the next one, and what is copied there as it lies in memory.

Each thread reads what it wrote or copied itself, so no barrier is needed.
"""

from __future__ import annotations

from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.codegen.cpu.memory import Place
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import MEMORY, Operand, from_memory, to_memory
from isthmus.codegen.llvm_text import PTR, VOID, Type, Value
from isthmus.codegen.vector_math import Math
from isthmus.dialects import kernel as k

DYNAMIC = "shared"
"""The name of the dynamic shared memory of all kernels."""
AT_ONCE = 16
"""Bytes of one asynchronous copy."""
_COPY = "llvm.nvvm.cp.async.cg.shared.global.16"
_WAIT = "llvm.nvvm.cp.async.wait.all"


class SharedRows:
    """The rows of one block that are in shared memory."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.nbytes = 0
        """Dynamic shared memory that the block needs."""
        self._offsets: dict[SSAValue, int] = {}

    def write(self, value: SSAValue, operand: Value) -> None:
        """Put what this thread has of a row value here."""
        raw = _as_read(self.state.math, operand, ir.dtype_of(value))
        self.state.f.store(raw, self._place(value, raw.type), _alignment(raw.type))

    def read(self, value: SSAValue) -> Operand:
        """Give what this thread put or copied here."""
        dtype = ir.dtype_of(value)
        type_ = Type.of(MEMORY[dtype], self.state.lanes)
        place, align = self._place(value, type_), _alignment(type_)
        if self._stands(value):  # volatile: who holds it in registers from row to row has none left for the rows
            raw = self.state.f.emit(f"load volatile {type_.text}, ptr {place.name}, align {align}", type_)
        else:
            raw = self.state.f.load(place, type_, align)
        return from_memory(self.state.math, raw, dtype)

    def _stands(self, value: SSAValue) -> bool:
        """Whether a row is the same for all points."""
        return not self.state.plan.varying[value] & frozenset(self.state.plan.kernel.parallel)

    def copy(self, op: k.LoadOp, source: Place) -> None:
        """Copy what an op will read here; it is there after `wait`."""
        f = self.state.f
        type_ = Type.of(source.scalar, self.state.lanes)
        target = self._place(op.y, type_)
        if type_.lanes * type_.bits != 8 * AT_ONCE or (source.align or 1) % AT_ONCE:
            f.store(f.load(source.base, type_, source.align), target, _alignment(type_))
            return
        f.module.declare(_COPY, VOID, [Type.of("ptr addrspace(3)"), Type.of("ptr addrspace(1)")])
        there = f.emit(f"addrspacecast ptr {target.name} to ptr addrspace(3)", PTR)
        here = f.emit(f"addrspacecast ptr {source.base.name} to ptr addrspace(1)", PTR)
        f.line(f"call void @{_COPY}(ptr addrspace(3) {there.name}, ptr addrspace(1) {here.name})")

    def wait(self) -> None:
        """Wait for all that this thread copies."""
        self.state.f.module.declare(_WAIT, VOID, [])
        self.state.f.line(f"call void @{_WAIT}()")

    def _place(self, value: SSAValue, type_: Type) -> Value:
        """This position of the row in shared memory."""
        f, state = self.state.f, self.state
        length, position = 1, f.index(0)
        for d in state.plan.kernel.rows:
            length *= cast(int, state.plan.sizes[d])
            position = position * state.size(state.plan.sizes[d]) + state.indices[d]
        offset = self._offsets.get(value)
        if offset is None:
            offset = self._offsets[value] = self.nbytes
            self.nbytes += -(-length * type_.bits // 8 // 16) * 16
        base = Value(f, f"addrspacecast (ptr addrspace(3) @{DYNAMIC} to ptr)", PTR)
        return f.address(f.address(base, offset, "i8"), position, type_.scalar)


def _as_read(m: Math, x: Value, dtype: str) -> Value:
    """Give the element that an exact register holds, so that what was just read and widened is stored as it was."""
    if dtype != "bf16":
        return to_memory(m, x, dtype)
    return m.f.cast("trunc", m.lshr(m.bits(x), 16), x.type.with_scalar("i16"))


def _alignment(type_: Type) -> int:
    return min(AT_ONCE, type_.bits // 8 * (type_.lanes & -type_.lanes))
