"""Maps: one index expression per dimension of a tensor, as an attribute with text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from isthmus.dialects.kernel.index import ZERO, Bounds, Expr, constant, dim, unbounded, value
from isthmus.sizes import Dim, Size


def parse_expr(parser: AttrParser) -> Expr:
    """Read an index expression, as `str` gives it; a parse error at its position otherwise."""
    negative = parser.parse_optional_punctuation("-") is not None
    total = _parse_product(parser) * (-1 if negative else 1)
    while True:
        if parser.parse_optional_punctuation("+"):
            total = total + _parse_product(parser)
        elif parser.parse_optional_punctuation("-"):
            total = total - _parse_product(parser)
        else:
            return total


def _parse_product(parser: AttrParser) -> Expr:
    result = _parse_factor(parser)
    while True:
        if parser.parse_optional_punctuation("*"):
            other = _parse_factor(parser)
            if result.terms and other.terms:
                parser.raise_error("an index may be multiplied by sizes only")
            result = other * result.constant if other.terms else result * other.constant
        elif parser.parse_optional_keyword("floordiv"):
            result = result.floordiv(_parse_size(parser))
        elif parser.parse_optional_keyword("mod"):
            result = result.mod(_parse_size(parser))
        else:
            return result


def _parse_size(parser: AttrParser) -> Dim:
    factor = _parse_factor(parser)
    if factor.terms:
        parser.raise_error("expected a size")
    return factor.constant


def _parse_factor(parser: AttrParser) -> Expr:
    if parser.parse_optional_punctuation("("):
        inner = parse_expr(parser)
        parser.parse_punctuation(")")
        return inner
    if parser.parse_optional_punctuation("<"):
        text = parser.parse_str_literal(" of a size")
        parser.parse_punctuation(">")
        try:
            return constant(Size.parse(text))
        except ValueError as error:
            parser.raise_error(str(error))
    if (number := parser.parse_optional_integer(allow_boolean=False, allow_negative=False)) is not None:
        return constant(number)
    word = parser.parse_identifier()
    if word[0] in "dv" and word[1:].isdigit():
        return dim(int(word[1:])) if word[0] == "d" else value(int(word[1:]))
    parser.raise_error(f"unknown index '{word}'; a size is written in angle brackets")


@irdl_attr_definition
class Map(Data[tuple[Expr, ...]]):
    """One index per dimension of a tensor, as an attribute. Text: `[d0, d1*4 + 2, v0, d2 floordiv 7, 0]`."""

    name = "kernel.map"
    _maps: ClassVar[dict[tuple[Expr, ...], Map]] = {}

    def __new__(cls, data: tuple[Expr, ...]) -> Map:
        """Intern."""
        found = Map._maps.get(data)
        return Map._maps.setdefault(data, object.__new__(cls)) if found is None else found

    __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]  (interned: by identity, in C)
    __hash__ = object.__hash__

    @staticmethod
    def of(exprs: Sequence[Expr]) -> Map:
        """Give the one map of these indices."""
        key = tuple(exprs)
        return Map._maps.get(key) or Map(key)

    @staticmethod
    def identity(rank: int) -> Map:
        """[d0, d1, ...]"""
        return Map.of([dim(k) for k in range(rank)])

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Expr, ...]:
        with parser.in_angle_brackets():
            return parse_exprs(parser)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self))

    def __str__(self) -> str:
        return "[" + ", ".join(map(str, self.data)) + "]"

    def compose(self, dims: Sequence[Expr], bounds: Bounds = unbounded, values: Sequence[Expr | None] = ()) -> Map:
        """Give the map whose indices read the space that `dims` are expressions of."""
        return Map.of([e.substitute(dims, bounds, values) for e in self.data])

    def linear(self, strides: Sequence[Dim]) -> Expr:
        """Give Σ stride · index: the position in elements, where quotients and remainders that nest vanish."""
        return linear(self.data, tuple(strides))

    def dims(self) -> frozenset[int]:
        """Give the dims of the space that the map depends on."""
        return _dims(self.data)

    def separates(self, dims: frozenset[int], sizes: Sequence[Dim]) -> bool:
        """Tell whether positions that differ along `dims` always have different indices, whatever the other dims are.

        So it is where each of these dims has an index that `Expr.separates` it, those before it being one with it.
        """
        left = set(dims)
        for expr in self.data:
            left -= expr.separated(frozenset(left), sizes)
        return not left

    def values(self) -> frozenset[int]:
        """Give the numbers of the index operands that the map reads."""
        return frozenset[int]().union(*(e.values() for e in self.data))

    def is_affine(self) -> bool:
        """Tell whether no index has a quotient or remainder."""
        return all(e.is_affine() for e in self.data)


@lru_cache(maxsize=1 << 14)
def linear(exprs: tuple[Expr, ...], strides: tuple[Dim, ...]) -> Expr:
    """Give Σ stride · index; asked again by each who looks at an access."""
    total = ZERO
    for expr, stride in zip(exprs, strides, strict=True):
        total = total + expr * stride
    return total


@lru_cache(maxsize=1 << 14)
def _dims(exprs: tuple[Expr, ...]) -> frozenset[int]:
    return frozenset[int]().union(*(e.dims() for e in exprs))


def parse_exprs(parser: AttrParser) -> tuple[Expr, ...]:
    """Read `[expr, expr, ...]`."""
    parser.parse_punctuation("[")
    exprs: list[Expr] = []
    if not parser.parse_optional_punctuation("]"):
        exprs.append(parse_expr(parser))
        while parser.parse_optional_punctuation(","):
            exprs.append(parse_expr(parser))
        parser.parse_punctuation("]")
    return tuple(exprs)
