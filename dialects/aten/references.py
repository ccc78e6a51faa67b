"""Types of tensors with storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Attribute, Data, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from isthmus import ir
from isthmus.ir import LiteralValue, Shape
from isthmus.sizes import Dim, Size


class RefFacts(NamedTuple):
    """What a reference type says: shape, dtype name, strides and offset in elements."""

    shape: Shape
    dtype: str
    strides: Shape
    offset: Dim


@irdl_attr_definition
class RefType(Data[RefFacts], TypeAttribute):
    """A reference to a tensor with storage; equal types are the same object.

    Text: `!aten.ref<4x4xf32, strides = [1, 4], offset = 2>`. Row-major strides and offset 0 are left out; with symbolic
    sizes the shape follows: `!aten.ref<?x4xf32, shape = [<"s0">, 4]>`. Which references share storage is written on
    the ops that make them, never here.
    """

    name = "aten.ref"
    _interned: ClassVar[dict[RefFacts, RefType]] = {}

    def __new__(cls, data: RefFacts) -> RefType:
        """Intern whatever makes a type: the parser calls the class itself."""
        found = RefType._interned.get(data)
        return RefType._interned.setdefault(data, object.__new__(cls)) if found is None else found

    def __post_init__(self) -> None:
        super().__post_init__()
        ir.with_facts(self, self.data.shape, self.data.dtype)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> RefFacts:
        with parser.in_angle_brackets():
            dims, element = parser.parse_ranked_shape()
            facts: dict[str, LiteralValue] = {}
            while parser.parse_optional_punctuation(","):
                key = parser.parse_identifier()
                parser.parse_punctuation("=")
                facts[key] = ir.parse_literal(parser)
        dtype = ir.dtype_of(element)
        shape = cast(Shape, facts.pop("shape", tuple(dims)))
        if DYNAMIC_INDEX in shape or len(shape) != len(dims):
            parser.raise_error("every '?' needs its size, as in shape = [<\"s0\">, 4]")
        strides = cast(Shape, facts.pop("strides", ir.contiguous_strides(shape)))
        offset = cast(Dim, facts.pop("offset", 0))
        if facts or len(strides) != len(shape):
            parser.raise_error(f"expected shape, strides (one per dimension) or offset, not {[*facts] or strides}")
        return RefFacts(shape, dtype, strides, offset)

    def print_parameter(self, printer: Printer) -> None:
        shape, dtype, strides, offset = self.data
        with printer.in_angle_brackets():
            for size in shape:
                printer.print_string(f"{size}x" if isinstance(size, int) else "?x")
            printer.print_attribute(ir.scalar(dtype))
            if any(isinstance(size, Size) for size in shape):
                printer.print_string(f", shape = {ir.literal_text(shape)}")
            if strides != ir.contiguous_strides(shape):
                printer.print_string(f", strides = {ir.literal_text(strides)}")
            if offset != 0:
                printer.print_string(f", offset = {ir.literal_text(offset)}")

    __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]  (interned: by identity, in C)
    __hash__ = object.__hash__


def ref(shape: Sequence[Dim], dtype: str, strides: Sequence[Dim] | None = None, offset: Dim = 0) -> RefType:
    """Give the interned reference type; row-major where no strides are given."""
    shape = tuple(shape)
    facts = RefFacts(shape, dtype, ir.contiguous_strides(shape) if strides is None else tuple(strides), offset)
    return RefType._interned.get(facts) or RefType(facts)  # pyright: ignore[reportPrivateUsage]


def facts_of(value: SSAValue | Attribute) -> RefFacts:
    """Give shape, dtype, strides and offset of a reference; IRError where it is none."""
    type_ = value.type if isinstance(value, SSAValue) else value
    if not isinstance(type_, RefType):
        raise ir.IRError(f"{type_} is not a reference type")
    return type_.data


def value_type(type_: Attribute) -> Attribute:
    """Give the tensor type of what a reference type refers to; other types as they are."""
    return ir.tensor(type_.data.shape, type_.data.dtype) if isinstance(type_, RefType) else type_
