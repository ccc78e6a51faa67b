"""Folding of elementwise ops on constants where the target's arithmetic gives exactly these bits.

+ - · / of float32, bfloat16 and float16 may be computed in float64 and rounded once: 53 bits are more than twice 24
and two (Figueroa 1995). Roots and transcendental functions stay: libraries round them differently.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.dialects.prim.maker import python_number
from isthmus.ir import LiteralValue

Number = bool | int | float
Fold = Callable[..., Number | None]
"""From the operands' numbers to the result, None where it is not known."""


def rounded(value: float, dtype: str) -> float | None:
    """Give the number of the dtype next to value, ties to even; None for NaN, whose bits are the target's choice."""
    if math.isnan(value):
        return None
    if dtype == "f64" or math.isinf(value):
        return value
    if dtype == "f16":
        return _packed(value, "<e")
    single = _packed(value, "<f")
    if dtype == "f32" or math.isinf(single):
        return single
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits += 0x7FFF + ((bits >> 16) & 1)  # bf16 is the upper half
    (narrow,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return narrow


def _packed(value: float, form: str) -> float:
    try:
        (narrow,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return narrow


def wrapped(value: int, dtype: str) -> int:
    """Give value modulo the width of the integer dtype."""
    bits = 8 * ir.itemsize(dtype)
    value &= (1 << bits) - 1
    return value if dtype == "u8" or value < 1 << (bits - 1) else value - (1 << bits)


def _number_of(e: Emitter, x: SSAValue) -> Number | None:
    value = e.constant_of(x)
    if isinstance(value, float):
        return rounded(value, ir.dtype_of(x))
    return value if isinstance(value, (bool, int)) else None


def _folding(cls: type[PrimOp], fold: Fold) -> tuple[type[PrimOp], Callable[..., SSAValue | None]]:
    def rewrite(e: Emitter, operands: tuple[SSAValue, ...], literals: dict[str, LiteralValue]) -> SSAValue | None:
        numbers: list[Number] = []
        for v in operands:
            number = _number_of(e, v)
            if number is None:
                return None
            numbers.append(number)
        value = fold(*numbers, **literals)
        if value is None:
            return None
        types = cls.infer(tuple(v.type for v in operands), literals)
        dtype = ir.dtype_of(types[0])
        if ir.is_float(dtype):
            value = rounded(float(value), dtype)
        elif dtype != "i1":
            value = wrapped(int(value), dtype)
        if value is None:
            return None
        return e.op(prim.ConstOp, (), {"value": python_number(value, dtype)}, types).y

    return cls, rewrite


def _divided(a: Number, b: Number) -> Number | None:
    if isinstance(a, int) or isinstance(b, int) or b == 0.0 or math.isinf(a):
        return None
    return a / b


def _whole(function: Callable[[float], int]) -> Fold:
    def fold(x: float) -> float | None:
        return math.copysign(float(function(x)), x) if math.isfinite(x) else x

    return fold


def _product(a: Number, b: Number) -> Number | None:
    return a * b


_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}

REWRITES = (
    _folding(prim.NegOp, lambda x: -x),
    _folding(prim.AbsOp, lambda x: abs(x)),
    _folding(prim.FloorOp, _whole(math.floor)),
    _folding(prim.CeilOp, _whole(math.ceil)),
    _folding(prim.TruncOp, _whole(math.trunc)),
    _folding(prim.RoundOp, _whole(round)),
    _folding(prim.AddOp, lambda a, b: a + b),
    _folding(prim.SubOp, lambda a, b: a - b),
    _folding(prim.MulOp, _product),
    _folding(prim.DivOp, _divided),
    _folding(prim.MaxOp, lambda a, b: None if a == b else max(a, b)),  # of zeros, the sign is the target's choice
    _folding(prim.MinOp, lambda a, b: None if a == b else min(a, b)),
    _folding(prim.CmpOp, lambda a, b, predicate: _COMPARE[predicate](a, b)),
    _folding(prim.NotOp, lambda x: (not x) if isinstance(x, bool) else ~x),
    _folding(prim.AndOp, lambda a, b: a & b),
    _folding(prim.OrOp, lambda a, b: a | b),
    _folding(prim.XorOp, lambda a, b: a ^ b),
)
