"""Products of bf16 by an instruction that multiplies two steps of k at once and adds both in f32.

Panels are packed in f32, as for every other product, and then made half as long in place: a word holds an element of
an even step in its lower half and of the next step in its upper one, each a bf16. A step that is missing at the end
is 0. The instruction takes denormals for 0 and rounds its two additions, first the odd step's, as an f32 does.
"""

from __future__ import annotations

from isthmus.codegen.cpu.contract_panels import pieces
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type, Value
from isthmus.dialects.target import Target

FEATURE = "avx512bf16"
UPPER = -0x10000
"""The bits of the upper half of a word."""


def multiplies_pairs(target: Target, lanes: int) -> bool:
    """Whether a machine has the instruction, for vectors of so many sums."""
    return target.has(FEATURE) and (lanes == 16 or (lanes in (4, 8) and target.has("avx512vl")))


def added_pairs(f: Function, total: Value, x: Value, y: Value) -> Value:
    """Give total + x·y for words of two bf16 each, held as f32."""
    halves = Type.of("bfloat", 2 * total.type.lanes)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{total.type.bits * total.type.lanes}"
    return f.call(name, total.type, total, f.bitcast(x, halves), f.bitcast(y, halves))


def pairs_name(width: int, lanes: int) -> str:
    """Give the name of the function that `emit_pairs` writes."""
    return f"contract_pair_{width}x{lanes}"


def emit_pairs(module: Module, width: int, lanes: int) -> None:
    """Write `void @name(ptr panels, i64 count, i64 steps)`: `count` neighbours in panels of `width`, in place.

    A row of words is written after the two rows that it is made of were read, and over none that is still to be read.
    """
    f = Function(module, pairs_name(width, lanes), [("panels", PTR), ("count", I64), ("steps", I64)])
    panels, count, steps = f.arguments
    whole, pairs = f.binary("ashr", steps, f.index(1)), f.binary("ashr", steps + 1, f.index(1))

    def row(base: Value, number: Value) -> list[tuple[Value, Type]]:
        at = f.address(base, number * width, "i32")
        return [(f.address(at, start, "i32"), Type.of("i32", size)) for start, size in pieces(width, lanes)]

    def lower(x: Value) -> Value:
        return f.binary("lshr", x, f.const(16, x.type))

    with f.loop(0, count, width) as i:
        source, target = f.address(panels, i * steps, "i32"), f.address(panels, i * pairs, "i32")
        with f.loop(0, whole) as pair:
            even, odd = ([f.load(*at) for at in row(source, pair * 2 + n)] for n in (0, 1))
            made = [lower(x) | (y & UPPER) for x, y in zip(even, odd, strict=True)]
            for (at, _), value in zip(row(target, pair), made, strict=True):
                f.store(value, at)
        with f.loop(whole, pairs) as pair:
            made = [lower(f.load(*at)) for at in row(source, pair * 2)]
            for (at, _), value in zip(row(target, pair), made, strict=True):
                f.store(value, at)
    f.finish()
