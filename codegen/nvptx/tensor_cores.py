"""Instructions of tensor cores: fragments from and to shared memory, products of small matrices.

Rows of shared memory are 128 bytes: 64 elements of 16 bits. Their eight 16-byte pieces are swizzled: piece c of row r
lies at position c xor (r mod 8), so that eight rows can be read at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.codegen.llvm_text import F32, I32, I64, Function, Type, Value
from isthmus.codegen.nvptx.shared_memory import assembly, floats, shared_bits, struct_of_floats

ROW_BYTES = 128
"""A row of shared memory."""
BOX_BYTES = 64 * ROW_BYTES
"""64 rows of shared memory."""
PTX_TYPE = {"bf16": "bf16", "f16": "f16", "f32": "tf32"}
"""dtype -> how PTX calls what it is multiplied as."""


def swizzled(f: Function, row: Value, piece: Value) -> Value:
    """Give the byte of a 16-byte piece of a row; i32."""
    seven = row & 7
    return f.binary("shl", row, f.const(7, I32)) | f.binary("shl", piece ^ seven, f.const(4, I32))


# ---- products of a warp


def load_fragments(f: Function, address: Value, *, turned: bool) -> list[Value]:
    """Read four 8 x 8 matrices: lane l gives the address of row l mod 8 of matrix l div 8.

    Thread t gets elements 2 (t mod 4) and the next one of row t div 4, or (`turned`) of that column.
    """
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if turned else ''}.b16.p3"
    four = Type.of("{i32, i32, i32, i32}")
    made = f.call(name, four, address)
    return [f.emit(f"extractvalue {made!r}, {n}", I32) for n in range(4)]


def store_fragments(f: Function, address: Value, parts: Sequence[Value]) -> None:
    """Write four 8 x 8 matrices, as `load_fragments` reads them."""
    text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
    assembly(f, text, "r,r,r,r,r", [address, *parts])


def multiply_fragments(
    f: Function, dtype: str, a: Sequence[Value], b: Sequence[Value], c: Sequence[Value]
) -> list[Value]:
    """c + a·b for 16 x 16 and 16 x 8 matrices (of f32 half as many terms), summed in f32."""
    four = Type.of("{float, float, float, float}")
    if dtype == "f32":
        a, b = ([_in_tf32(f, x) for x in side] for side in (a, b))
        made = f.call("llvm.nvvm.mma.m16n8k8.row.col.tf32", four, *a, *b, *c)
    elif dtype == "f16":
        pair = Type.of("half", 2)
        a, b = ([f.bitcast(x, pair) for x in side] for side in (a, b))
        made = f.call("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", four, *a, *b, *c)
    else:
        made = f.call("llvm.nvvm.mma.m16n8k16.row.col.bf16", four, *a, *b, *c)
    return floats(f, made, 4)


def _in_tf32(f: Function, x: Value) -> Value:
    """An f32 rounded to 10 bits of mantissa; a product alone would cut the others off."""
    return f.call("llvm.nvvm.f2tf32.rna", I32, f.bitcast(x, F32))


# ---- products of a warpgroup


def descriptor(f: Function, address: Value, *, turned: bool) -> Value:
    """Describe a factor in shared memory: swizzled rows of 128 bytes, groups of 8 rows 1024 bytes apart.

    Rows run along k; or (`turned`) along the factor's own dim, in boxes of 64 k by 64 that are 8192 bytes apart.
    """
    start = f.cast("zext", f.binary("lshr", shared_bits(f, address), f.const(4, I32)) & 0x3FFF, I64)
    return start | ((1 << 62) | (64 << 32) | ((BOX_BYTES >> 4 if turned else 1) << 16))


def step_of(*, turned: bool) -> int:
    """How much the descriptor of the next 16 terms of k is ahead, in 16 bytes."""
    return 16 * ROW_BYTES >> 4 if turned else 2


def multiply_tile(
    f: Function, dtype: str, sums: Sequence[Value], a: Value, b: Value, *, turned_a: bool, turned_b: bool
) -> list[Value]:
    """sums + a·b for 64 x 16 and 16 x n matrices given by descriptors (of f32 8 terms); a thread holds n/2 of the sums.

    f32 is never `turned`, and is rounded already: its last 13 bits are cut off. The sums must not be touched before
    `wait_tiles` has waited for them.
    """
    n = len(sums)
    registers = ", ".join(f"${i}" for i in range(n))
    type_, terms, turns = PTX_TYPE[dtype], 16, f", {int(turned_a)}, {int(turned_b)}"
    if dtype == "f32":
        terms, turns = 8, ""
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{2 * n}k{terms}.f32.{type_}.{type_} "
        f"{{{registers}}}, ${2 * n}, ${2 * n + 1}, 1, 1, 1{turns};"
    )
    return _tied(f, text, sums, [a, b], memory=False)


def _tied(f: Function, text: str, sums: Sequence[Value], more: Sequence[Value], *, memory: bool) -> list[Value]:
    """An instruction that reads and writes the same registers."""
    n = len(sums)
    constraints = ",".join(["=f"] * n + [str(i) for i in range(n)] + ["l"] * len(more))
    made = assembly(f, text, constraints, [*sums, *more], struct_of_floats(n), memory=memory)
    return floats(f, made, n)


def begin_tiles(f: Function) -> None:
    """Order the registers of sums before the products that come."""
    f.call_void("llvm.nvvm.wgmma.fence.sync.aligned")


def end_tiles(f: Function) -> None:
    """Close the group of products."""
    f.call_void("llvm.nvvm.wgmma.commit_group.sync.aligned")


def wait_tiles(f: Function, left: int) -> None:
    """Wait until at most so many groups of products are under way."""
    f.call_void("llvm.nvvm.wgmma.wait_group.sync.aligned", f.const(left, I64))


def finished(f: Function, sums: Sequence[Value]) -> list[Value]:
    """Wait for all products; nothing reads the sums before."""
    return _tied(f, "wgmma.wait_group.sync.aligned 0;", sums, [], memory=True)


def set_registers(f: Function, count: int, *, more: bool) -> None:
    """Give up registers of this warpgroup's threads, or take some of those that others gave up."""
    assembly(f, f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};", "", memory=False)


def zero(f: Function) -> Value:
    """The sum that a product starts with."""
    return f.const(0.0, F32)
