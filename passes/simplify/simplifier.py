"""An emitter that simplifies each op as it is made, the ops that a rewrite makes included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.ir import LiteralValue
from isthmus.passes.simplify import algebra, constants, movement

Literals = dict[str, LiteralValue]

Rewrite = Callable[[Emitter, tuple[SSAValue, ...], Literals], SSAValue | None]
"""`rewrite(e, operands, literals)`: a value that has every bit of the op's only result, or None.

Of an op with a chosen result type, the literal "result" is its shape.
"""


def _table() -> dict[type[PrimOp], tuple[Rewrite, ...]]:
    table: dict[type[PrimOp], list[Rewrite]] = {}
    for rewrites in (constants.REWRITES, algebra.REWRITES, movement.REWRITES):
        for cls, rewrite in rewrites:
            table.setdefault(cls, []).append(rewrite)
    return {cls: tuple(rules) for cls, rules in table.items()}


REWRITES = _table()
"""Op class -> what to try, in order."""


FOLDING = frozenset(
    cls
    for cls in prim.PRIM_OPS
    if cls in REWRITES or issubclass(cls, prim.ElementwiseOp) or cls.fold.__func__ is not PrimOp.fold.__func__  # pyright: ignore[reportFunctionMemberAccess]
)
"""The classes that anything here may rewrite."""


class Simplifier(Emitter):
    """Makes simplified ops. Every rewrite keeps every bit of the result (but the sign of a NaN)."""

    def _may_fold(self, cls: type[PrimOp]) -> bool:
        return cls in FOLDING

    def _fold(self, cls: type[PrimOp], operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        folded = super()._fold(cls, operands, literals)
        if folded is not None:
            return folded
        for rewrite in REWRITES.get(cls, ()):
            folded = rewrite(self, operands, literals)
            if folded is not None:
                return folded
        if not issubclass(cls, prim.ElementwiseOp):
            return None
        own = {k: v for k, v in literals.items() if k != "result"}
        return movement.below_broadcasts(self, operands, lambda inner: self.one(cls, *inner, **own))

    def copy(self, op: PrimOp, operands: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        """Make an op like `op` on other operands, simplified; what has no elements needs no op."""
        if op.results and not op.regions and all(0 in ir.shape_of(r) for r in op.results):
            return tuple(self.const(0, ir.shape_of(r), ir.dtype_of(r)) for r in op.results)
        if isinstance(op, prim.ConvertOp):
            self.location = op.location
            return (self.convert(operands[0], ir.dtype_of(op.y)),)
        return super().copy(op, operands)

    def convert(self, x: SSAValue, dtype: str) -> SSAValue:
        """y = x in the dtype, through the source of a widening before it."""
        return super().convert(algebra.unwidened(x, dtype), dtype)
