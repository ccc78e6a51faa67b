"""Arithmetic of counts while code is written: numbers that are not negative, folded where they are known."""

from __future__ import annotations

from isthmus.codegen.llvm_text import Function, Value


class Counts:
    """For classes that write a function `f`."""

    f: Function

    def least(self, a: Value, b: Value | int) -> Value:
        """The smaller one."""
        b = self.f.index(b)
        if a.constant is not None and b.constant is not None:
            return self.f.index(min(a.constant, b.constant))
        return self.f.intrinsic("smin", a, b)

    def divided(self, value: Value, by: Value | int) -> Value:
        """The quotient."""
        by = self.f.index(by)
        if by.constant == 1:
            return value
        if value.constant is not None and by.constant is not None:
            return self.f.index(value.constant // by.constant)
        return self.f.binary("udiv", value, by)

    def rounded(self, value: Value, multiple: int) -> Value:
        """Rounded up to a multiple."""
        return self.divided(value + (multiple - 1), multiple) * multiple

    def split(self, value: Value, count: Value) -> tuple[Value, Value]:
        """Remainder and quotient."""
        if count.constant == 1:
            return self.f.index(0), value
        return self.f.binary("urem", value, count), self.f.binary("udiv", value, count)
