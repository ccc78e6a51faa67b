"""How each dtype lives in registers and in memory, and the conversions between the dtypes.

A bf16 or f16 value is an f32 register that holds a number of the narrow format, so arithmetic on
it is f32 arithmetic that is rounded. A boolean is one bit in a register and one byte in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from isthmus import ir
from isthmus.codegen.llvm_text import Number, Type, Value
from isthmus.codegen.vector_math import Math

REGISTER = {
    "f64": "double",
    "f32": "float",
    "bf16": "float",
    "f16": "float",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u8": "i8",
    "i1": "i1",
}
"""dtype -> LLVM scalar of a value in a register."""

MEMORY = {**REGISTER, "bf16": "i16", "f16": "i16", "i1": "i8"}
"""dtype -> LLVM scalar of an element in memory."""

PARTS = {"c64": "f32", "c128": "f64"}
"""Complex dtype -> dtype of its real and imaginary part."""


@dataclass(frozen=True)
class Complex:
    """A complex value: two registers."""

    real: Value
    imaginary: Value

    @property
    def type(self) -> Type:
        """The type of each part."""
        return self.real.type


Operand = Union[Value, Complex]  # noqa: UP007
"""The value of an SSA value of a kernel body: one register or two."""


def parts_of(value: Operand) -> tuple[Value, ...]:
    """Give the registers of a value."""
    return (value.real, value.imaginary) if isinstance(value, Complex) else (value,)


def from_parts(parts: Sequence[Value]) -> Operand:
    """Give the value whose registers these are."""
    return parts[0] if len(parts) == 1 else Complex(parts[0], parts[1])


def splat(m: Math, value: Operand, lanes: int) -> Operand:
    """Repeat a scalar in every lane."""
    if isinstance(value, Complex):
        return Complex(m.f.splat(value.real, lanes), m.f.splat(value.imaginary, lanes))
    return m.f.splat(value, lanes)


def constant(m: Math, value: Number | complex, dtype: str) -> Operand:
    """Give a scalar constant of a dtype."""
    if dtype in PARTS:
        number = complex(value)
        type_ = Type.of(REGISTER[PARTS[dtype]])
        return Complex(m.f.const(number.real, type_), m.f.const(number.imag, type_))
    assert not isinstance(value, complex)
    scalar = m.f.const(value, Type.of(REGISTER[dtype]))
    return round_to(m, scalar, dtype) if dtype in ("bf16", "f16") else scalar


# ---- narrow floats


def round_to(m: Math, x: Value, dtype: str) -> Value:
    """Round an f32 register to the nearest number of a narrow format, ties to even."""
    if dtype == "bf16":
        if m.has_bfloat:
            return m.f.cast("fpext", m.f.cast("fptrunc", x, x.type.with_scalar("bfloat")), x.type)
        return m.from_bits(_bf16_bits(m, x), x)
    if dtype == "f16":
        return from_half_bits(m, half_bits(m, x))
    return x


def _bf16_bits(m: Math, x: Value) -> Value:
    """Give the f32 bits of x rounded to 8 bits of mantissa; NaN becomes the quiet one."""
    bits = m.bits(x)
    last = m.lshr(bits, 16) & 1
    rounded = (bits + last + 0x7FFF) & -0x10000
    return m.f.select(m.is_nan(x), 0x7FC00000, rounded)


def half_bits(m: Math, x: Value) -> Value:
    """Give the 16 bits of x rounded to half precision."""
    half, short = x.type.with_scalar("half"), x.type.with_scalar("i16")
    if m.has_half:
        return m.f.bitcast(m.f.cast("fptrunc", x, half), short)
    f, bits = m.f, m.bits(x)
    sign = m.lshr(bits, 16) & 0x8000
    size = bits & 0x7FFFFFFF
    # Below 2^-14 the ulp is 2^-24, that of ½: an addition rounds. Above, round as integers.
    low = m.bits(m.from_bits(size, x) + 0.5) - 0x3F000000
    high = m.lshr(size - (112 << 23) + 0xFFF + (m.lshr(size, 13) & 1), 13)
    result = f.select(f.compare("ult", size, 0x38800000), low, high)
    result = f.select(f.compare("uge", size, 0x477FF000), 0x7C00, result)
    result = f.select(f.compare("ugt", size, 0x7F800000), 0x7E00, result)
    return f.cast("trunc", result | sign, short)


def from_half_bits(m: Math, short: Value) -> Value:
    """Give the f32 that equals 16 bits of half precision."""
    wide = short.type.with_scalar("float")
    if m.has_half:
        return m.f.cast("fpext", m.f.bitcast(short, short.type.with_scalar("half")), wide)
    f = m.f
    bits = f.cast("zext", short, short.type.with_scalar("i32"))
    size = (bits & 0x7FFF) << 13
    scaled = m.bits(f.bitcast(size, wide) * 2.0**112)
    scaled = f.select(f.compare("uge", size, 0x7C00 << 13), size | 0x7F800000, scaled)
    return f.bitcast(scaled | ((bits & 0x8000) << 16), wide)


# ---- memory


def from_memory(m: Math, x: Value, dtype: str) -> Value:
    """Turn an element (or vector of them) as loaded into its register form."""
    if dtype == "bf16":
        if m.has_bfloat and x.type.lanes % 4 == 0:
            return _from_pairs(m, x)
        wide = m.f.cast("zext", x, x.type.with_scalar("i32")) << 16
        return m.f.bitcast(wide, x.type.with_scalar("float"))
    if dtype == "f16":
        return from_half_bits(m, x)
    return m.f.compare("ne", x, 0) if dtype == "i1" else x


def _from_pairs(m: Math, x: Value) -> Value:
    """Give the f32 of bf16 bits, two in a word: the lower one is shifted up, the upper one stands where it belongs."""
    lanes = x.type.lanes
    words = m.f.bitcast(x, Type.of("i32", lanes // 2))
    order = [n // 2 + (n % 2) * (lanes // 2) for n in range(lanes)]
    both = m.f.shuffle(words << 16, words & -0x10000, order)
    return m.f.bitcast(both, x.type.with_scalar("float"))


def to_memory(m: Math, x: Value, dtype: str) -> Value:
    """Turn a register into the element that is stored; bf16 and f16 registers are exact."""
    if dtype == "bf16":
        short = x.type.with_scalar("i16")
        if m.has_bfloat:
            return m.f.bitcast(m.f.cast("fptrunc", x, x.type.with_scalar("bfloat")), short)
        return m.f.cast("trunc", m.lshr(m.bits(x), 16), short)
    if dtype == "f16":
        return half_bits(m, x)
    return m.f.cast("zext", x, x.type.with_scalar("i8")) if dtype == "i1" else x


# ---- conversions


def convert(m: Math, x: Operand, source: str, target: str) -> Operand:
    """Convert a register between dtypes, with the results of eager torch on x86.

    Floats outside an integer's range give the smallest i32 or i64, then its low bits, as the
    hardware's conversion does; the imaginary part is dropped where the target is real.
    """
    if target in PARTS:
        part = PARTS[target]
        if isinstance(x, Complex):
            inner = PARTS[source]
            return Complex(_convert(m, x.real, inner, part), _convert(m, x.imaginary, inner, part))
        real = _convert(m, x, source, part)
        return Complex(real, m.const(0.0, real))
    if isinstance(x, Complex):
        if target == "i1":
            return m.f.compare("une", x.real, 0.0) | m.f.compare("une", x.imaginary, 0.0)
        return _convert(m, x.real, PARTS[source], target)
    return _convert(m, x, source, target)


def _convert(m: Math, x: Value, source: str, target: str) -> Value:
    if source == target:
        return x
    scalar = REGISTER[target]
    to = x.type.with_scalar(scalar)
    if target == "i1":
        return m.f.compare("une" if x.type.is_float else "ne", x, 0)
    if ir.is_float(source):
        if not ir.is_float(target):
            return _float_to_integer(m, x, to)
        op = "fpext" if to.bits > x.type.bits else "fptrunc"
        # A narrow float is exact in f32, so only what comes from elsewhere is rounded.
        return round_to(m, m.f.cast(op, x, to), target)
    if ir.is_float(target):
        op = "uitofp" if source in ("u8", "i1") else "sitofp"
        return round_to(m, m.f.cast(op, x, to), target)
    if to.bits < x.type.bits:
        return m.f.cast("trunc", x, to)
    return m.f.cast("zext" if source in ("u8", "i1") else "sext", x, to)


def _float_to_integer(m: Math, x: Value, to: Type) -> Value:
    f = m.f
    wide = to.with_scalar("i64" if to.bits == 64 else "i32")
    limit = 2.0 ** (wide.bits - 1)
    fits = f.compare("oge", x, -limit) & f.compare("olt", x, limit)
    if x.type.scalar == "double" and wide.bits == 32:
        fits = f.compare("ogt", x, -limit - 1.0) & f.compare("olt", x, limit)
    inside = f.cast("fptosi", f.select(fits, x, 0.0), wide)
    result = f.select(fits, inside, -int(limit))
    return f.cast("trunc", result, to) if to.bits < wide.bits else result
