"""What autograd says of a call, kept in its decomposition: which results have the history of its operands, which none.

A result follows from its operands even where its values do not: `x.zero_()` has gradient zero by x, not none. Where no
operand is read any more, an op says so:

    %y = autodiff.custom %zeros, %x {saved = 0, gradients = [0, -1]} ({yield %zeros}, {yield %cotangent})
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Operation, SSAValue

from isthmus.dialects import aten, autodiff
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.pull import extend_activity, made_since
from isthmus.passes.autodiff.table import is_differentiable


class History:
    """Knows which values of a block gradients flow through, while it is built.

    `roots` are those that are known from the start; None where nothing is known (the body of a loop).
    """

    def __init__(self, e: Emitter, roots: Iterable[SSAValue] | None) -> None:
        self._e = e
        self._known = roots is not None
        self.active = set(roots or ())

    def note(self, since: Operation | None) -> None:
        """Take in the ops made since another one (None: all)."""
        if self.active:
            extend_activity(self.active, made_since(self._e, since))

    def of_call(self, op: aten.CallOp, operands: Sequence[SSAValue], values: Sequence[SSAValue]) -> list[SSAValue]:
        """Give a call's results with the history that torch gives them; the ops that made `values` are noted."""
        if not op.grad:
            return [self._ended(v) for v in values]
        sources = [v for v in operands if v in self.active]
        silent = op.non_differentiable
        return [self._ended(v) if k in silent else self._tied(v, sources) for k, v in enumerate(values)]

    def _ended(self, value: SSAValue) -> SSAValue:
        constant = self._known and value not in self.active
        return value if constant else self._e.stop_gradient(value)

    def _tied(self, value: SSAValue, sources: Sequence[SSAValue]) -> SSAValue:
        if not sources or value in self.active or not is_differentiable(value):
            return value
        op = autodiff.following(value, sources, self._e.location)
        self._e.block.add_op(op)
        (tied,) = op.results
        self.active.add(tied)
        return tied
