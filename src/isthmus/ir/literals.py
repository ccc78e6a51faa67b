"""Literals: one interned attribute for everything that the textual form writes as a number, a word, a list."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import ClassVar, Union, cast

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from isthmus.sizes import Size


@dataclass(frozen=True)
class Operand:
    """Inside a literal: the operand of the same op with this index."""

    index: int


LiteralValue = Union[None, bool, int, float, complex, str, Size, Operand, tuple["LiteralValue", ...]]  # noqa: UP007


@irdl_attr_definition
class Literal(Data[LiteralValue]):
    """An immutable Python value as an attribute; equal literals are the same object.

    Text: `none true 3 1.5 -0.0 nan inf complex(1.0, 2.0) "s" arg0 [1, 2] <"s0*4">`.
    """

    name = "isthmus.lit"
    _interned: ClassVar[dict[object, Literal]] = {}

    @staticmethod
    def of(value: LiteralValue) -> Literal:
        """Give the one literal that holds `value`; True, 1 and 1.0 are different, as are 0.0 and -0.0."""
        key = _literal_key(value)
        literal = Literal._interned.get(key)
        if literal is None:
            literal = Literal(value)
        return literal

    def __new__(cls, data: LiteralValue) -> Literal:
        """Intern whatever makes a literal: the parser calls the class itself."""
        key = _literal_key(data)
        found = Literal._interned.get(key)
        return Literal._interned.setdefault(key, object.__new__(cls)) if found is None else found

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> LiteralValue:
        with parser.in_angle_brackets():
            return parse_literal(parser)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(literal_text(self.data))

    __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]  (interned: by identity, in C)
    __hash__ = object.__hash__


def _literal_key(value: LiteralValue) -> object:
    kind = type(value)
    if kind is tuple:
        return tuple(_literal_key(v) for v in cast("tuple[LiteralValue, ...]", value))
    if kind is float:
        return (float, struct.pack("<d", cast(float, value)))
    if kind is complex:
        number = cast(complex, value)
        return (complex, struct.pack("<dd", number.real, number.imag))
    return (kind, value)


def literal_text(value: LiteralValue) -> str:
    """Give the text of a literal, as `parse_literal` reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, complex):
        return f"complex({_float_text(value.real)}, {_float_text(value.imag)})"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return f'"{escaped}"'
    if isinstance(value, Operand):
        return f"arg{value.index}"
    if isinstance(value, Size):
        return f'<"{value}">'
    return "[" + ", ".join(map(literal_text, value)) + "]"


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    text = repr(value)
    if "e" in text and "." not in text:  # the MLIR lexer wants a fraction before the exponent
        text = text.replace("e", ".0e")
    return text


def parse_literal(parser: AttrParser) -> LiteralValue:
    """Read one literal; a parse error with its position otherwise."""
    if parser.parse_optional_punctuation("["):
        values: list[LiteralValue] = []
        if not parser.parse_optional_punctuation("]"):
            values.append(parse_literal(parser))
            while parser.parse_optional_punctuation(","):
                values.append(parse_literal(parser))
            parser.parse_punctuation("]")
        return tuple(values)
    if (text := parser.parse_optional_str_literal()) is not None:
        return text
    if parser.parse_optional_punctuation("<"):
        text = parser.parse_str_literal(" of a size")
        parser.parse_punctuation(">")
        try:
            return Size.parse(text)
        except ValueError as error:
            parser.raise_error(str(error))
    if parser.parse_optional_punctuation("-"):
        if parser.parse_optional_keyword("inf"):
            return -math.inf
        number = parser.parse_optional_number()
        if number is None:
            parser.raise_error("expected a number or inf after '-'")
        return -number
    if (word := parser.parse_optional_identifier()) is not None:
        return _parse_word(parser, word)
    number = parser.parse_optional_number()
    if number is None:
        parser.raise_error("expected a literal")
    return number


_WORDS: dict[str, LiteralValue] = {
    "none": None,
    "true": True,
    "false": False,
    "nan": math.nan,
    "inf": math.inf,
}


def _parse_word(parser: AttrParser, word: str) -> LiteralValue:
    if word in _WORDS:
        return _WORDS[word]
    if word.startswith("arg") and word[3:].isdigit():
        return Operand(int(word[3:]))
    if word == "complex":
        parser.parse_punctuation("(")
        real = parse_literal(parser)
        parser.parse_punctuation(",")
        imaginary = parse_literal(parser)
        parser.parse_punctuation(")")
        return complex(cast(float, real), cast(float, imaginary))
    parser.raise_error(f"unknown literal '{word}'")
