"""Blocks of tensors into scratch memory and back: rows copied, turned on their side, scaled."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I1, I8, I64, PTR, Function, Module, Type, Value


def emit_copy(module: Module, name: str, scalar: str, lanes: int, pitch: int, *, near: bool, flags: bool) -> None:
    """Write `void @name(ptr source, i64 row, i64 column, i64 rows, i64 columns, ptr block)`.

    Element i, j of the source, at i·row + j·column, goes to i·pitch + j of the block. `near`: column is 1. `flags`:
    the source has booleans, which become 0 and 1. Nothing else of the source is read.
    """
    arguments = [("source", PTR), ("row", I64), ("column", I64), ("rows", I64), ("columns", I64), ("block", PTR)]
    f = Function(module, name, arguments, linkage="internal")
    source, row, column, rows, columns, block = f.arguments
    element = "i8" if flags else scalar
    with f.loop(0, rows) as i:
        at, to = f.address(source, i * row, element), f.address(block, i * pitch, scalar)
        start: Value = f.index(0)
        if near:
            start = columns & -lanes
            with f.loop(0, start, lanes) as j:
                x = f.load(f.address(at, j, element), Type.of(element, lanes))
                f.store(_number(f, x, scalar), f.address(to, j, scalar))
        with f.loop(start, columns) as j:
            x = f.load(f.address(at, j if near else j * column, element), Type.of(element))
            f.store(_number(f, x, scalar), f.address(to, j, scalar))
    f.finish()


def _number(f: Function, x: Value, scalar: str) -> Value:
    if x.type.scalar != I8.scalar:
        return x
    return f.cast("uitofp", f.compare("ne", x, 0), x.type.with_scalar(scalar))


def emit_turn(module: Module, name: str, scalar: str, lanes: int, pitch: int, out_pitch: int, scale: float) -> None:
    """Write `void @name(ptr block, i64 rows, i64 columns, ptr out)`.

    Element i, j of the block goes, times `scale`, to j·out_pitch + i. Squares are turned in registers, so rows and
    columns are taken in whole vectors.
    """
    f = Function(module, name, [("block", PTR), ("rows", I64), ("columns", I64), ("out", PTR)], linkage="internal")
    block, rows, columns, out = f.arguments
    type_ = Type.of(scalar, lanes)
    with f.loop(0, rows, lanes) as i:
        with f.loop(0, columns, lanes) as j:
            corner = f.address(f.address(block, i * pitch, scalar), j, scalar)
            square = [f.load(f.address(corner, r * pitch, scalar), type_) for r in range(lanes)]
            target = f.address(f.address(out, j * out_pitch, scalar), i, scalar)
            for r, x in enumerate(transposed(f, square)):
                f.store(x if scale == 1.0 else x * scale, f.address(target, r * out_pitch, scalar))
    f.finish()


def transposed(f: Function, rows: list[Value]) -> list[Value]:
    """A square of registers, rows and columns exchanged in log2(lanes) rounds."""
    rows, lanes = list(rows), len(rows)
    half = lanes // 2
    while half:
        upper = [i if not i & half else lanes + (i ^ half) for i in range(lanes)]
        lower = [i ^ half if not i & half else lanes + i for i in range(lanes)]
        for i in range(lanes):
            if not i & half:
                x, y = rows[i], rows[i | half]
                rows[i], rows[i | half] = f.shuffle(x, y, upper), f.shuffle(x, y, lower)
        half //= 2
    return rows


def emit_scale(module: Module, name: str, scalar: str, lanes: int, pitch: int) -> None:
    """Write `void @name(ptr block, ptr factors, i64 rows, i64 columns)`: row i times factor i, in whole vectors."""
    f = Function(module, name, [("block", PTR), ("factors", PTR), ("rows", I64), ("columns", I64)], linkage="internal")
    block, factors, rows, columns = f.arguments
    with f.loop(0, rows) as i:
        factor = f.splat(f.load(f.address(factors, i, scalar), Type.of(scalar)), lanes)
        row = f.address(block, i * pitch, scalar)
        with f.loop(0, columns, lanes) as j:
            at = f.address(row, j, scalar)
            f.store(f.load(at, factor.type) * factor, at)
    f.finish()


def emit_write(module: Module, name: str, scalar: str, lanes: int, pitch: int, *, near: bool) -> None:
    """Write `void @name(ptr block, ptr target, i64 row, i64 column, i64 rows, i64 columns, i1 adds)`.

    Element i, j of the block, at i·pitch + j, goes to i·row + j·column of the target, added to what is there where
    `adds` holds. `near`: column is 1. Nothing else of the target is touched.
    """
    arguments = [("block", PTR), ("target", PTR), ("row", I64), ("column", I64), ("rows", I64), ("columns", I64)]
    f = Function(module, name, [*arguments, ("adds", I1)], linkage="internal")
    block, target, row, column, rows, columns, adds = f.arguments
    yes, no, after = f.label("sum"), f.label("set"), f.label("written")
    f.line(f"br {adds!r}, label %{yes}, label %{no}")
    for label, added in ((yes, True), (no, False)):
        f.start(label)
        with f.loop(0, rows) as i:
            at, to = f.address(block, i * pitch, scalar), f.address(target, i * row, scalar)
            start: Value = f.index(0)
            if near:
                start = columns & -lanes
                with f.loop(0, start, lanes) as j:
                    _put(f, f.address(at, j, scalar), f.address(to, j, scalar), Type.of(scalar, lanes), added)
            with f.loop(start, columns) as j:
                place = f.address(to, j if near else j * column, scalar)
                _put(f, f.address(at, j, scalar), place, Type.of(scalar), added)
        f.line(f"br label %{after}")
    f.start(after)
    f.finish()


def _put(f: Function, at: Value, to: Value, type_: Type, added: bool) -> None:
    x = f.load(at, type_)
    f.store(f.load(to, type_) + x if added else x, to)


def emit_fill(module: Module, name: str, scalar: str, lanes: int, value: float) -> None:
    """Write `void @name(ptr block, i64 elements)`: one number everywhere, in whole vectors."""
    f = Function(module, name, [("block", PTR), ("elements", I64)], linkage="internal")
    block, elements = f.arguments
    with f.loop(0, elements, lanes) as i:
        f.store(f.const(value, Type.of(scalar, lanes)), f.address(block, i, scalar))
    f.finish()
