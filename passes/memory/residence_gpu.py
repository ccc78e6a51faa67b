"""What a thread keeps of a row between walks: what is read or dear to compute, in registers or shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.dialects.target import side_by_side
from isthmus.ir import Literal
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.memory.schedule import price

MOST_REGISTERS = 96
"""32-bit registers of one thread that hold kept row values and sums, where there are so many."""
REGISTERS, OTHERS = 1 << 16, 32
"""Registers of a multiprocessor, and those that a thread needs for everything else."""
SCRATCH = 16
"""Registers of a thread that works on few values at a time, beside those that hold rows and sums."""
COPY_BYTES = 16
"""What one asynchronous copy to shared memory moves."""
MOST_STEPS = 32
"""A walk of more steps is a loop."""
MOST_STANDING = 40 << 10
"""Bytes of rows that a block keeps there while it walks many points."""
MOST_SHARED = 112 << 10
"""Bytes of a row that a block keeps in shared memory: two blocks fit a multiprocessor."""


def keep_rows(
    op: kernel.FusedOp, spread: int, *, steps: int | None, width: int, threads: int, whole_block: bool
) -> bool:
    """Write the residence of row values, and tell whether it is shared memory.

    `steps`: of one thread in a row, each of `width` elements.
    """
    kept = _kept(op, spread)
    sums = [o for o in op.block.ops if isinstance(o, kernel.AccumulateOp) and spread in _dims(o)]
    if steps is not None and steps <= MOST_STEPS:
        words = sum(_words(v) for v in kept) + sum(_words(s.x) for s in sums)
        if words * steps * width <= min(MOST_REGISTERS, REGISTERS // threads - OTHERS):
            _mark([*(cast(Operation, v.owner) for v in kept), *sums], "register")
            return False
    length = 1
    for d in op.rows:
        size = op.sizes_[d]
        if not isinstance(size, int):
            return False
        length *= size
    fits = sum(ir.itemsize(ir.dtype_of(v)) for v in kept) * length <= MOST_SHARED
    simple = not any(ir.is_complex(ir.dtype_of(v)) for v in kept)
    in_shared = bool(kept) and whole_block and fits and simple
    for value in kept if in_shared else ():
        _mark([cast(Operation, value.owner)], "copied" if _is_copied(op, spread, value, width) else "shared")
    return in_shared


def _is_copied(op: kernel.FusedOp, spread: int, value: SSAValue, width: int) -> bool:
    """Whether a row value is read as it lies, 16 bytes at once: the hardware copies it to shared memory by itself."""
    load = value.owner
    if not isinstance(load, kernel.LoadOp) or load.default is not None or load.index_values:
        return False
    (linear,) = kernel.linear_map(op, load).data
    whole = frozenset(op.rows) <= load.map.dims() and linear.coefficient(spread) == 1
    return whole and width * ir.itemsize(ir.dtype_of(value)) == COPY_BYTES


def read_ahead(op: kernel.FusedOp, spread: int, *, steps: int, width: int, threads: int) -> bool:
    """Have the next point's row in registers, and what is kept of this one, where a multiprocessor has room
    for its blocks.

    What all points share is copied to shared memory once.
    """
    rows, points = frozenset(op.rows), frozenset(op.parallel)
    loads = [o for o in op.block.ops if isinstance(o, kernel.LoadOp) and o.default is None and not o.index_values]
    ahead = [load.y for load in loads if rows <= load.map.dims() and load.map.dims() & points]
    shared = [load.y for load in loads if not load.map.dims() & points]
    kept = [v for v in _kept(op, spread) if v not in ahead and v not in shared]
    sums = [o for o in op.block.ops if isinstance(o, kernel.AccumulateOp) and spread in _dims(o)]
    words = sum(2 * ir.itemsize(ir.dtype_of(v)) / 4 for v in ahead) + sum(_words(v) for v in kept)
    words += sum(_words(s.x) for s in sums)
    if not ahead or words * steps * width > REGISTERS // (side_by_side(op.partitions_) * threads) - SCRATCH:
        return False
    _mark([*(cast(Operation, v.owner) for v in kept), *sums], "register")
    held = 0
    for value in shared:
        held += ir.itemsize(ir.dtype_of(value)) * steps * width * threads
        if held <= MOST_STANDING and _is_copied(op, spread, value, width):
            _mark([value.owner], "copied")
    op.properties["ahead"] = Literal.of(True)
    return True


def _dims(op: kernel.AccumulateOp) -> frozenset[int]:
    return cast(kernel.Map, op.properties["map"]).dims()


def _words(value: SSAValue) -> int:
    """32-bit registers of a value; narrow floats are held as f32."""
    return max(1, ir.itemsize(ir.dtype_of(value)) // 4)


def _mark(ops: Sequence[Operation], residence: str) -> None:
    for op in ops:
        op.attributes["residence"] = Literal.of(residence)


def _kept(op: kernel.FusedOp, spread: int) -> list[SSAValue]:
    """Row values that more than one walk needs and that are read, or dear: what is cheap is computed again."""
    levels, varying = kernel.levels(op), kernel.varying(op)
    rows, prices = frozenset(op.rows), Prices.of(op, "gpu")
    paid: dict[SSAValue, float] = {}
    dear: set[SSAValue] = set()
    for inner in op.block.ops:
        for result in inner.results:
            paid[result] = price(inner, result, varying, rows, paid, prices)
            later = any(levels[use.operation] > levels[inner] for use in result.uses)
            row = spread in varying[result] and not isinstance(inner, (kernel.ReduceOp, kernel.LoadOp))
            if row and later and paid[result] >= prices.keep:
                dear.add(result)
                paid[result] = 1.0
    needed: dict[SSAValue, set[int]] = {}
    for level in range(max(levels.values(), default=0) + 1):
        for value in _reached(op, level, levels, varying, rows, dear):
            needed.setdefault(value, set()).add(level)
    loads = [v for v, at in needed.items() if isinstance(v.owner, kernel.LoadOp) and len(at) > 1]
    order: dict[SSAValue, int] = {r: n for n, inner in enumerate(op.block.ops) for r in inner.results}
    return sorted((v for v in {*dear, *loads} if spread in varying[v]), key=order.__getitem__)


def _reached(
    op: kernel.FusedOp,
    level: int,
    levels: dict[Operation, int],
    varying: dict[SSAValue, frozenset[int]],
    rows: frozenset[int],
    dear: set[SSAValue],
) -> set[SSAValue]:
    """Row values that the walk of a level computes or reads."""
    stack: list[SSAValue] = []
    for inner in op.block.ops:
        if levels[inner] == level and isinstance(inner, (kernel.SinkOp, kernel.ReduceOp)):
            stack += ir.operands_of(inner)
    # What later walks are given is computed in the walk of its own level.
    stack += [v for v in dear if levels[cast(Operation, v.owner)] == level]
    found: set[SSAValue] = set()
    while stack:
        value = stack.pop()
        maker = cast(Operation, value.owner)
        if value in found or isinstance(maker, kernel.ReduceOp) or not varying[value] & rows:
            continue
        found.add(value)
        if value in dear and levels[maker] < level:
            continue
        stack += ir.operands_of(maker)
    return found
