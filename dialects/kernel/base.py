"""What the ops of this dialect share: maps in their text, checks that name the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar, cast

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
)
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.kernel.map import Map, parse_exprs
from isthmus.ir import LiteralOp, LiteralValue

CLASSES = ("parallel", "row")
REDUCTIONS = ("add", "mul", "max", "min", "and", "or")
"""max and min give NaN where either is; `and`, `or` bit by bit."""
ARG_REDUCTIONS = ("argmax", "argmin")
STORE_KINDS = ("set", "add", "mul", "max", "min")
RESIDENCES = ("recompute", "reload", "keep")

KERNEL_OPS: list[type[KernelOp]] = []

OpT = TypeVar("OpT", bound="KernelOp")


def kernel_op(cls: type[OpT]) -> type[OpT]:
    """Define an op of this dialect."""
    defined = irdl_op_definition(cls)
    defined.HINT = defined.name.rpartition(".")[2]
    KERNEL_OPS.append(defined)
    return defined


class KernelOp(LiteralOp):
    """An op whose literals may be maps: `map = [d0, d1*4]`."""

    HINT: ClassVar[str] = "k"

    @classmethod
    def parse_entry(cls, key: str, parser: Parser) -> Attribute:
        return Map.of(parse_exprs(parser)) if key == "map" else super().parse_entry(key, parser)

    def verify_(self) -> None:
        """Run `check`, naming the op in what it raises."""
        try:
            self.check()
        except IRError as error:
            raise VerifyException(f"'{self.name}': {error.what}") from error

    def check(self) -> None:
        """Raise IRError where the op breaks a rule of its own."""


def require(condition: bool, what: str | Callable[[], str]) -> None:
    """Raise IRError(what) unless the condition holds."""
    if not condition:
        raise IRError(what if isinstance(what, str) else what())


def lit(op: LiteralOp, key: str) -> LiteralValue:
    """Give the value of a literal, None when absent."""
    return ir.literal(op, key)


def number(op: LiteralOp, key: str) -> int:
    """Give a literal that must be an int."""
    found = ir.literal(op, key)
    require(type(found) is int, lambda: f"{key} must be an integer")
    return cast(int, found)


def word(op: LiteralOp, key: str, allowed: tuple[str, ...]) -> str:
    """Give a literal that must be one of some words."""
    found = ir.literal(op, key)
    require(found in allowed, lambda: f"{key} must be one of {', '.join(allowed)}")
    return cast(str, found)


def dtypes_of(values: tuple[SSAValue, ...]) -> list[str]:
    """Give the dtypes of values."""
    return [ir.dtype_of(v) for v in values]
