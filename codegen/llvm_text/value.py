"""Values, whose operators write instructions into the function that they belong to."""

from __future__ import annotations

from typing import Protocol

from isthmus.codegen.llvm_text.types import Number, Type


class Writer(Protocol):
    """What operators ask of the function under construction."""

    def const(self, value: Number, type_: Type) -> Value:
        """Give a constant."""
        ...

    def binary(self, op: str, left: Value, right: Value) -> Value:
        """Write an instruction of two operands."""
        ...

    def emit(self, text: str, type_: Type) -> Value:
        """Write an instruction."""
        ...


class Value:
    """An SSA value or constant in a function under construction."""

    __slots__ = ("block", "constant", "name", "type")

    def __init__(self, block: Writer, name: str, type_: Type, constant: int | None = None) -> None:
        self.block = block
        self.name = name
        self.type = type_
        self.constant = constant

    def __repr__(self) -> str:
        return f"{self.type.text} {self.name}"

    def _lift(self, other: Value | Number) -> Value:
        return other if isinstance(other, Value) else self.block.const(other, self.type)

    def __add__(self, other: Value | Number) -> Value:
        if not self.type.is_float:
            if other == 0 or (isinstance(other, Value) and other.constant == 0):
                return self
            if self.constant == 0:
                return self._lift(other)
            if (folded := self._fold(other)) is not None:
                return self.block.const(folded[0] + folded[1], self.type)
        return self.block.binary("fadd" if self.type.is_float else "add", self, self._lift(other))

    def __radd__(self, other: Number) -> Value:
        return self._lift(other) + self

    def __sub__(self, other: Value | Number) -> Value:
        if not self.type.is_float:
            if other == 0 or (isinstance(other, Value) and other.constant == 0):
                return self
            if (folded := self._fold(other)) is not None:
                return self.block.const(folded[0] - folded[1], self.type)
        return self.block.binary("fsub" if self.type.is_float else "sub", self, self._lift(other))

    def __rsub__(self, other: Number) -> Value:
        return self._lift(other) - self

    def __mul__(self, other: Value | Number) -> Value:
        if not self.type.is_float:
            factor = other.constant if isinstance(other, Value) else other
            if self.constant == 1 or factor == 0:
                return self._lift(other)
            if factor == 1 or self.constant == 0:
                return self
            if (folded := self._fold(other)) is not None:
                return self.block.const(folded[0] * folded[1], self.type)
        return self.block.binary("fmul" if self.type.is_float else "mul", self, self._lift(other))

    def __rmul__(self, other: Number) -> Value:
        return self._lift(other) * self

    def __truediv__(self, other: Value | Number) -> Value:
        return self.block.binary("fdiv", self, self._lift(other))

    def __rtruediv__(self, other: Number) -> Value:
        return self._lift(other) / self

    def __neg__(self) -> Value:
        if self.type.is_float:
            return self.block.emit(f"fneg {self.type.text} {self.name}", self.type)
        return self.block.const(0, self.type) - self

    def __and__(self, other: Value | Number) -> Value:
        return self.block.binary("and", self, self._lift(other))

    def __or__(self, other: Value | Number) -> Value:
        return self.block.binary("or", self, self._lift(other))

    def __xor__(self, other: Value | Number) -> Value:
        return self.block.binary("xor", self, self._lift(other))

    def __invert__(self) -> Value:
        return self ^ (1 if self.type.scalar == "i1" else -1)

    def __lshift__(self, other: Value | Number) -> Value:
        return self.block.binary("shl", self, self._lift(other))

    def __rshift__(self, other: Value | Number) -> Value:
        """Shift arithmetically: the sign stays."""
        return self.block.binary("ashr", self, self._lift(other))

    def _fold(self, other: Value | Number) -> tuple[int, int] | None:
        """Give both integers where both are scalar constants."""
        constant = other.constant if isinstance(other, Value) else other
        if self.constant is None or constant is None or self.type.lanes != 1:
            return None
        return self.constant, int(constant)
