"""Operator schemas as torch prints them: parsed once, and the check of a call's arguments against one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from isthmus.ir import LiteralValue, Operand
from isthmus.sizes import Size


@dataclass(frozen=True)
class SchemaArgument:
    """One argument: base type ("Tensor", "int", ...), whether a list, whether it or its elements may be None."""

    name: str
    base: str
    is_list: bool
    optional: bool
    optional_elements: bool
    writes: bool
    keyword_only: bool

    @property
    def is_tensor(self) -> bool:
        """Whether tensors go here, alone or in a list."""
        return self.base == "Tensor"


@dataclass(frozen=True)
class Schema:
    """An operator's name ("add.Tensor", "mylib::scale.default"), arguments and result types as written."""

    name: str
    arguments: tuple[SchemaArgument, ...]
    returns: tuple[str, ...]

    @property
    def tensor_results(self) -> int | None:
        """How many tensors the operator gives; None where it gives a list of them."""
        if any("[]" in r for r in self.returns):
            return None
        return sum(r.startswith("Tensor") for r in self.returns)


@cache
def parse_schema(text: str) -> Schema:
    """Read e.g. `add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`; ValueError on anything else."""
    match = re.fullmatch(r"([\w:]+(?:\.\w+)?)\((.*)\) -> (.*)", text)
    if match is None:
        raise ValueError(f"not an operator schema: {text}")
    name, inner, returns = match.groups()
    arguments: list[SchemaArgument] = []
    keyword_only = False
    for part in _split(inner):
        if part == "*":
            keyword_only = True
        elif part != "...":
            arguments.append(_parse_argument(part, keyword_only))
    whole = returns[1:-1] if returns.startswith("(") and returns.endswith(")") else returns
    return Schema(name if "." in name else f"{name}.default", tuple(arguments), tuple(_split(whole)))


def _parse_argument(text: str, keyword_only: bool) -> SchemaArgument:
    match = re.fullmatch(r"(.+?)\s(\w+)(?:=.*)?", text)
    if match is None:
        raise ValueError(f"not a schema argument: {text}")
    type_, name = match.groups()
    writes = "!" in type_
    plain = re.sub(r"\([^)]*\)", "", type_)
    kind = re.fullmatch(r"([^?\[]+)(\?)?(\[\d*\])?(\?)?", plain)
    if kind is None:
        raise ValueError(f"not a schema type: {type_}")
    base, inner_optional, brackets, outer_optional = kind.groups()
    is_list = brackets is not None
    return SchemaArgument(
        name,
        base,
        is_list,
        optional=bool(outer_optional if is_list else inner_optional),
        optional_elements=bool(is_list and inner_optional),
        writes=writes,
        keyword_only=keyword_only,
    )


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and strings."""
    parts: list[str] = []
    depth, start, quote, escaped = 0, 0, "", False
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [p for p in parts if p]


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Operand, bool, int, float, complex, Size),  # a number where a tensor goes is torch's wrapped number
    "int": (int, Size),
    "SymInt": (int, Size),
    "float": (float, int, Size, Operand),
    "complex": (complex, float, int),
    "Scalar": (bool, int, float, complex, Size, Operand),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (str,),
    "Layout": (str,),
    "Device": (str,),
    "MemoryFormat": (str,),
    "Generator": (),
}


def check_arguments(schema: Schema, args: Sequence[LiteralValue]) -> str | None:
    """Say what is wrong with the arguments of a call, or None."""
    if len(args) != len(schema.arguments):
        return f"takes {len(schema.arguments)} arguments ({schema.name}), not {len(args)}"
    for argument, value in zip(schema.arguments, args, strict=True):
        if not _fits(argument, value):
            return f"argument '{argument.name}' takes {_type_text(argument)}, not {value!r}"
    return None


def _fits(argument: SchemaArgument, value: LiteralValue) -> bool:
    types = _PYTHON_TYPES.get(argument.base)
    if types is None:
        return True
    if value is None:
        return argument.optional
    if not argument.is_list:
        return isinstance(value, types)
    if not isinstance(value, tuple):
        return False
    elements = cast(tuple[LiteralValue, ...], value)
    return all(argument.optional_elements if e is None else isinstance(e, types) for e in elements)


def _type_text(argument: SchemaArgument) -> str:
    inner = "?" * argument.optional_elements + "[]" if argument.is_list else ""
    return argument.base + inner + "?" * argument.optional
