"""Asking what made a value."""

from __future__ import annotations

from typing import TypeVar

from xdsl.ir import SSAValue

from isthmus.dialects.prim import PrimOp

OpT = TypeVar("OpT", bound=PrimOp)


def made_by(x: SSAValue, cls: type[OpT]) -> OpT | None:
    """Give the op of exactly this class that x is a result of, or None (`isinstance` is slow on abstract classes)."""
    owner = x.owner
    return owner if type(owner) is cls else None
