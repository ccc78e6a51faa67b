"""Interned types and the facts about them: shapes (symbolic sizes too), dtypes, bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ComplexType,
    IndexType,
    IntegerType,
    NoneAttr,
    Signedness,
    TensorType,
    bf16,
    f16,
    f32,
    f64,
)
from xdsl.ir import Attribute, SSAValue

from isthmus.diagnostics import IRError
from isthmus.ir.literals import Literal
from isthmus.sizes import Dim, Size

DTYPES: dict[str, Attribute] = {
    "f64": f64,
    "f32": f32,
    "bf16": bf16,
    "f16": f16,
    "i64": IntegerType(64),
    "i32": IntegerType(32),
    "i16": IntegerType(16),
    "i8": IntegerType(8),
    "u8": IntegerType(8, Signedness.UNSIGNED),
    "i1": IntegerType(1),
    "c64": ComplexType(f32),
    "c128": ComplexType(f64),
}
"""dtype name -> element type; `i1` is a boolean, one byte in memory."""

_DTYPE_NAMES: dict[Attribute, str] = {t: n for n, t in DTYPES.items()}

_BYTES = dict(f64=8, f32=4, bf16=2, f16=2, i64=8, i32=4, i16=2, i8=1, u8=1, i1=1, c64=8, c128=16)

INDEX = IndexType()

Shape = tuple[Dim, ...]

AttributeT = TypeVar("AttributeT", bound=Attribute)


def itemsize(dtype: str) -> int:
    """Give the bytes of one element in memory."""
    return _BYTES[dtype]


def is_float(dtype: str) -> bool:
    """Tell whether the dtype is a real floating-point one."""
    return dtype in ("f64", "f32", "bf16", "f16")


def is_half(dtype: str) -> bool:
    """Tell whether the dtype is a float of 16 bits, whose products are added up in f32."""
    return dtype in ("bf16", "f16")


def is_complex(dtype: str) -> bool:
    """Tell whether the dtype is a complex one."""
    return dtype in ("c64", "c128")


def is_integer(dtype: str) -> bool:
    """Tell whether the dtype is an integer one; booleans are not."""
    return dtype in ("i64", "i32", "i16", "i8", "u8")


def is_differentiable(dtype: str) -> bool:
    """Tell whether values of the dtype can have gradients."""
    return is_float(dtype) or is_complex(dtype)


_TENSORS: dict[tuple[Shape, str], TensorType[Attribute]] = {}


def tensor(shape: Sequence[Dim], dtype: str) -> TensorType[Attribute]:
    """Give the interned tensor type; symbolic dimensions are kept in its encoding."""
    key = (tuple(shape), dtype)
    found = _TENSORS.get(key)
    if found is None:
        shape = key[0]
        symbolic = any(isinstance(d, Size) for d in shape)
        found = TensorType(
            DTYPES[dtype],
            [d if isinstance(d, int) else DYNAMIC_INDEX for d in shape],
            Literal.of(shape) if symbolic else NoneAttr(),
        )
        _remember_facts(found, shape, dtype)
        found = _TENSORS.setdefault(key, found)
    return found


def scalar(dtype: str) -> Attribute:
    """Give the element type itself: the type of values inside kernel bodies."""
    return DTYPES[dtype]


def intern_type(type_: Attribute) -> Attribute:
    """Give the interned object equal to a type that the parser made."""
    return tensor(shape_of(type_), dtype_of(type_)) if isinstance(type_, TensorType) else type_


def shape_of(value: SSAValue | Attribute) -> Shape:
    """Give the shape of a value or type; () for scalars. IRError where it has none."""
    return _facts(value)[0]


def dtype_of(value: SSAValue | Attribute) -> str:
    """Give the dtype name of a value or type. IRError where it has none."""
    return _facts(value)[1]


def numel(value: SSAValue | Attribute) -> Dim:
    """Give the number of elements."""
    return math.prod(cast("tuple[int, ...]", shape_of(value)))


def nbytes(value: SSAValue | Attribute) -> Dim:
    """Give the size in bytes of a row-major copy."""
    return numel(value) * itemsize(dtype_of(value))


def like(type_: Attribute, dtype: str) -> Attribute:
    """Give the type of the same shape (or the scalar) with another dtype."""
    return tensor(shape_of(type_), dtype) if isinstance(type_, TensorType) else DTYPES[dtype]


def contiguous_strides(shape: Sequence[Dim]) -> Shape:
    """Give row-major strides in elements: a size of 0 or 1 counts as 1, as torch does."""
    return _contiguous(tuple(shape))


@lru_cache(maxsize=1 << 12)
def _contiguous(shape: Shape) -> Shape:
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def with_facts(type_: AttributeT, shape: Shape, dtype: str) -> AttributeT:
    """Teach `shape_of` and `dtype_of` a dialect's own type; gives the type."""
    _remember_facts(type_, shape, dtype)
    return type_


def _remember_facts(type_: Attribute, shape: Shape, dtype: str) -> tuple[Shape, str]:
    facts = (shape, dtype)
    object.__setattr__(type_, "_isthmus_facts", facts)
    return facts


def _facts(value: SSAValue | Attribute) -> tuple[Shape, str]:
    type_ = cast(Attribute, getattr(value, "_type", value))  # isinstance of an abstract class is slow
    facts = type_.__dict__.get("_isthmus_facts")
    return facts if facts is not None else _compute_facts(type_)


def _compute_facts(type_: Attribute) -> tuple[Shape, str]:
    if isinstance(type_, TensorType):
        tensor_type = cast(TensorType[Attribute], type_)
        dtype = _DTYPE_NAMES.get(tensor_type.element_type)
        if dtype is None:
            raise IRError(f"tensors of {tensor_type.element_type} do not exist here")
        encoding = tensor_type.encoding
        if isinstance(encoding, Literal):
            shape = cast(Shape, encoding.data)
        else:
            shape = tensor_type.get_shape()
            if DYNAMIC_INDEX in shape:
                raise IRError(f"{type_}: every '?' needs its symbol, e.g. tensor<?xf32, #isthmus.lit<[<\"s0\">]>>")
        return _remember_facts(type_, shape, dtype)
    dtype = _DTYPE_NAMES.get(type_)
    if dtype is None:
        raise IRError(f"{type_} has neither shape nor dtype")
    return _remember_facts(type_, (), dtype)
