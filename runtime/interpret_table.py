"""The table of the reference interpreter: op class -> a function on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from xdsl.ir import Attribute, Operation, Region

from isthmus import ir, sizes
from isthmus.sizes import Dim

Value: TypeAlias = Tensor | int
"""What a value of the program is at run time; ints are values of type `index`."""


class Frame(Protocol):
    """What the evaluation of an op may ask its surroundings."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The values of the symbols in this call."""
        ...

    def run_region(self, region: Region, arguments: Sequence[Value]) -> list[Value]:
        """Run a one-block region; gives what its terminator holds."""
        ...


Evaluate: TypeAlias = Callable[[Operation, Sequence[Value], Frame], Sequence[Value]]

TABLE: dict[type[Operation], Evaluate] = {}
"""Filled when the interpret_<dialect> modules are imported."""

EvaluateT = TypeVar("EvaluateT", bound=Evaluate)


def evaluates(*classes: type[Operation]) -> Callable[[EvaluateT], EvaluateT]:
    """Enter `function(op, operands, frame) -> results` for op classes."""

    def enter(function: EvaluateT) -> EvaluateT:
        for cls in classes:
            TABLE[cls] = function
        return function

    return enter


DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i1": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


def torch_dtype(type_: Attribute) -> torch.dtype:
    """Give torch's dtype of a tensor or scalar type."""
    return DTYPES[ir.dtype_of(type_)]


def known(dim: Dim, frame: Frame) -> int:
    """Give the number that a size is in this call."""
    return dim if isinstance(dim, int) else dim.evaluate(frame.sizes)


def known_shape(type_: Attribute, frame: Frame) -> list[int]:
    """Give the shape of a type in this call."""
    return [known(d, frame) for d in ir.shape_of(type_)]


def literal_ints(op: Operation, key: str) -> tuple[int, ...]:
    """Give a property that lists integers."""
    return cast(tuple[int, ...], ir.literal(op, key))


def literal_int(op: Operation, key: str) -> int:
    """Give a property that is an integer."""
    return cast(int, ir.literal(op, key))


def literal_str(op: Operation, key: str) -> str:
    """Give a property that is a string."""
    return cast(str, ir.literal(op, key))


def literal_size(op: Operation, key: str, frame: Frame) -> int:
    """Give a property that is a size, as the number it is in this call."""
    return sizes.evaluate(cast(Dim, ir.literal(op, key)), frame.sizes)


def tensors(values: Sequence[Value]) -> Sequence[Tensor]:
    """Give operands of an op that takes only tensors."""
    return cast(Sequence[Tensor], values)
