"""Asking for the memory of the next point's row while this one's is used."""

from __future__ import annotations

from isthmus import ir
from isthmus.codegen.cpu.memory import element, pointer
from isthmus.codegen.cpu.plan import Walk
from isthmus.codegen.cpu.state import State
from isthmus.codegen.llvm_text import I32, PTR, VOID
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel.ops import lit

SECOND_CACHE = 2
"""LLVM's number for how near a line is wanted: the nearest cache holds the row that is used."""


def asks(state: State, walk: Walk) -> bool:
    """Whether a walk is the one that asks for what the first one will read at the next point."""
    level = lit(state.plan.kernel, "ahead")
    return type(level) is int and state.plan.walks[level] is walk


def ask_for_next_row(state: State) -> None:
    """Ask for the neighbours of this place at the next point; an address behind the last row is no error."""
    plan, f = state.plan, state.f
    first = plan.walks[0]
    for op in first.ops if first is not None else ():
        if not isinstance(op, k.LoadOp):
            continue
        access = plan.accesses[op]
        step = access.prefixes[-1].coefficient(plan.kernel.parallel[-1])
        if access.stride != 1 or access.late.terms or step == 0:
            continue
        scalar, parts = element(access.dtype)
        size = ir.itemsize(access.dtype)
        f.module.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        row = f.address(pointer(state, access, len(access.prefixes) - 1), state.size(step) * parts, scalar)
        for n in range(0, state.lanes * size, k.LINE):
            line = f.address(row, n // size * parts, scalar)
            f.line(f"call void @llvm.prefetch.p0(ptr {line.name}, i32 0, i32 {SECOND_CACHE}, i32 1)")
