"""Sizes as LLVM values: polynomials of the symbols that a function has loaded."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.codegen.llvm_text import I64, Function, Value
from isthmus.diagnostics import IRError
from isthmus.sizes import Dim, Size, may_be_negative

_PREDICATES = {"max": "sgt", "min": "slt"}


class SizeValues:
    """Values of size expressions in one function; equal expressions are computed once per block of straight code."""

    def __init__(self, function: Function, symbols: Mapping[str, Value]) -> None:
        self._function = function
        self._symbols = symbols

    def __call__(self, dim: Dim) -> Value:
        """Give an i64. Divisors are not negative; where dividends are not either, division truncates as it floors."""
        if isinstance(dim, int):
            return self._function.const(dim, I64)
        total = self._function.const(0, I64)
        for monomial, coefficient in dim.terms:
            product = self._function.const(coefficient, I64)
            for atom in monomial:
                product = product * (self.symbol(atom) if isinstance(atom, str) else self._atom(*atom))
            total = total + product
        return total

    def symbol(self, name: str) -> Value:
        """Give the value of one symbol; IRError where no argument tells it."""
        value = self._symbols.get(name)
        if value is None:
            raise IRError(f"no argument of the function tells the size '{name}'")
        return value

    def _atom(self, kind: str, left: Dim, right: Dim) -> Value:
        a, b = self(left), self(right)
        if kind in _PREDICATES:
            return self._function.select(self._function.compare(_PREDICATES[kind], a, b), a, b)
        if may_be_negative(left):
            return floored(self._function, a, b, remainder=kind == "%")
        return self._function.binary("sdiv" if kind == "//" else "srem", a, b)


def floored(function: Function, left: Value, right: Value, *, remainder: bool) -> Value:
    """Give ⌊left / right⌋, or left - right·⌊left / right⌋, for right > 0: LLVM's own division truncates."""
    rest = function.binary("srem", left, right)
    below = function.compare("slt", rest, 0)
    if remainder:
        return function.select(below, rest + right, rest)
    quotient = function.binary("sdiv", left, right)
    return function.select(below, quotient - 1, quotient)


def product(dims: tuple[Dim, ...]) -> Dim:
    """Give the number of elements of a shape."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def is_one(dim: Dim) -> bool:
    """Whether a size is known to be 1."""
    return not isinstance(dim, Size) and dim == 1
