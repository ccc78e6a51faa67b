"""The inner loop of a contraction: one tile of sums in registers."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I1, I64, PTR, Function, Module, Type, Value


def emit_tile(module: Module, name: str, scalar: str, mr: int, nv: int, lanes: int, *, fused: bool) -> None:
    """Write `void @name(ptr a, ptr b, i64 steps, ptr c, i64 pitch, i1 begins)`.

    c (mr rows of nv vectors, `pitch` elements apart) becomes Σ over k of a[k, row] · b[k, column], plus what it was
    unless the sum begins. Panels are packed: a has mr elements for each k, b has nv vectors.
    `fused`: the machine multiplies and adds in one instruction; mr·nv + nv + 1 vectors should fit into its registers.
    """
    arguments = [("a", PTR), ("b", PTR), ("steps", I64), ("c", PTR), ("pitch", I64), ("begins", I1)]
    f = Function(module, name, arguments, linkage="internal")
    a, b, steps, c, pitch, begins = f.arguments
    vector = Type.of(scalar, lanes)
    zero = f.const(0.0, vector)
    sums = [[f.slot(vector) for _ in range(nv)] for _ in range(mr)]
    for slot in (s for row in sums for s in row):
        f.store(zero, slot, 64)
    with f.loop(0, steps) as step:
        row_a, row_b = f.address(a, step * mr, scalar), f.address(b, step * (nv * lanes), scalar)
        columns = [f.load(f.address(row_b, v * lanes, scalar), vector) for v in range(nv)]
        for i in range(mr):
            x = f.splat(f.load(f.address(row_a, i, scalar), Type.of(scalar)), lanes)
            for slot, y in zip(sums[i], columns, strict=True):
                f.store(_multiply_add(f, x, y, f.load(slot, vector, 64), fused), slot, 64)
    with f.when(~begins):
        for i, row in enumerate(sums):
            for v, slot in enumerate(row):
                f.store(_at(f, c, pitch, i, v * lanes, vector) + f.load(slot, vector, 64), slot, 64)
    for i, row in enumerate(sums):
        start = f.address(c, pitch * i, scalar)
        for v, slot in enumerate(row):
            f.store(f.load(slot, vector, 64), f.address(start, v * lanes, scalar))
    f.finish()


def _multiply_add(f: Function, x: Value, y: Value, total: Value, fused: bool) -> Value:
    return f.fma(x, y, total) if fused else x * y + total


def _at(f: Function, c: Value, pitch: Value, row: int, column: int, vector: Type) -> Value:
    return f.load(f.address(f.address(c, pitch * row, vector.scalar), column, vector.scalar), vector)
