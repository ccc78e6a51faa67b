"""Which dtype an operation computes in: torch's type promotion, and float32 inside for narrower floats."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Size

DEFAULT_FLOAT = "f32"
"""What a Python float makes of an integer tensor (torch's default dtype while nobody changes it)."""

_CATEGORY = {
    "i1": 0,
    "u8": 1,
    "i8": 1,
    "i16": 1,
    "i32": 1,
    "i64": 1,
    "f16": 2,
    "bf16": 2,
    "f32": 2,
    "f64": 2,
    "c64": 3,
    "c128": 3,
}
_WIDTH = {
    "i1": 0,
    "u8": 1,
    "i8": 1,
    "i16": 2,
    "i32": 3,
    "i64": 4,
    "f16": 5,
    "bf16": 5,
    "f32": 6,
    "f64": 7,
    "c64": 8,
    "c128": 9,
}


def promote(a: str, b: str) -> str:
    """Give the smallest dtype that holds both, as `torch.promote_types`."""
    if a == b:
        return a
    pair = {a, b}
    if pair == {"u8", "i8"}:
        return "i16"
    if pair == {"f16", "bf16"}:
        return "f32"
    if "c64" in pair and "f64" in pair:
        return "c128"
    return a if _WIDTH[a] > _WIDTH[b] else b


def common_dtype(values: Iterable[Scalar | None]) -> str:
    """Give the dtype that operands meet in, as `torch.result_type`: tensors before 0-d tensors before numbers."""
    ranked: list[str | None] = [None, None, None]
    for value in values:
        if value is None:
            continue
        rank, dtype = _rank(value)
        known = ranked[rank]
        ranked[rank] = dtype if known is None else promote(known, dtype)
    result: str | None = None
    for dtype in ranked:  # a lower rank counts only where its category is higher
        if dtype is None:
            continue
        if result is None:
            result = dtype
        elif _CATEGORY[dtype] > _CATEGORY[result]:
            complex_of_float = _CATEGORY[dtype] == 3 and _CATEGORY[result] == 2
            result = ("c128" if result == "f64" else "c64") if complex_of_float else dtype
    assert result is not None
    return result


def _rank(value: Scalar) -> tuple[int, str]:
    if isinstance(value, SSAValue):
        return (0 if ir.shape_of(value) else 1), ir.dtype_of(value)
    if isinstance(value, bool):
        return 2, "i1"
    if isinstance(value, (int, Size)):
        return 2, "i64"
    return 2, (DEFAULT_FLOAT if isinstance(value, float) else "c64")


def inside(dtype: str) -> str:
    """Give the dtype that torch computes in: float32 for narrower floats, else the dtype itself."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def rounded(value: Scalar, dtype: str) -> Scalar:
    """Round a Python float to a narrow dtype, where torch makes a tensor element of it first."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value
    if dtype == "f16":
        try:
            return struct.unpack("<e", struct.pack("<e", value))[0]
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if dtype == "bf16" and value == value and abs(value) < 3.38e38:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def spread(e: Emitter, call: Call, value: Scalar, dtype: str) -> SSAValue:
    """Give a value or number in the dtype and in the shape of the result."""
    if isinstance(value, SSAValue):
        return e.broadcast_to(e.convert(value, dtype), call.shape())
    return e.full(value, call.shape(), dtype)


def like(e: Emitter, value: Scalar, x: SSAValue) -> SSAValue:
    """Give a number in the shape and dtype of x."""
    return e.full(value, ir.shape_of(x), ir.dtype_of(x))


def wide(e: Emitter, x: SSAValue) -> SSAValue:
    """Give x in the dtype that torch computes in."""
    return e.convert(x, inside(ir.dtype_of(x)))


Formula = Callable[..., SSAValue]
"""`formula(e, *operands, *rest)`: operands of one shape and dtype."""


def pointwise(*overloads: str, operands: int, exact_numbers: bool = False) -> Callable[[Formula], Formula]:
    """Enter a formula on the first `operands` arguments, broadcast and promoted to the computation's dtype.

    The formula sees float32 in place of narrower floats; the result is rounded once, to the call's dtype. A Python
    number is first rounded to a narrow dtype as torch does for most operations, unless `exact_numbers`.
    """

    def enter(formula: Formula) -> Formula:
        def rule(e: Emitter, call: Call, *args: Scalar | None) -> SSAValue:
            dtype = computation_dtype(call, args[:operands])
            spreaded = [None if a is None else operand(e, call, a, dtype, exact_numbers) for a in args[:operands]]
            return e.convert(formula(e, *spreaded, *args[operands:]), call.dtype())

        decomposition(*overloads)(rule)
        return formula

    return enter


def computation_dtype(call: Call, operands: Iterable[Scalar | None]) -> str:
    """Give the dtype the operands meet in; the result's where integers become floats."""
    dtype = common_dtype(operands)
    becomes_float = ir.is_differentiable(call.dtype()) and not ir.is_differentiable(dtype)
    return call.dtype() if becomes_float else dtype


def operand(e: Emitter, call: Call, value: Scalar, dtype: str, exact: bool = False) -> SSAValue:
    """Give an operand of a pointwise operation, spread and in the dtype inside of `dtype`."""
    if isinstance(value, SSAValue):
        return e.broadcast_to(e.convert(e.convert(value, dtype), inside(dtype)), call.shape())
    return e.full(value if exact else rounded(value, dtype), call.shape(), inside(dtype))


def refuse_complex(x: SSAValue) -> None:
    """Leave complex operands to the library."""
    if ir.is_complex(ir.dtype_of(x)):
        raise Refusal("is left to the library for complex numbers")
