"""How positions in memory change from lane to lane of a vector along one dim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from isthmus.dialects.kernel.index import Atom, Expr


@dataclass(frozen=True)
class Steps:
    """What positions gain from one neighbour along a dim to the next, within vectors of `lanes`."""

    dim: int
    lanes: int
    aligned: bool
    """Whether vectors begin at multiples of their lanes."""

    def of(self, expr: Expr) -> int | None:
        """What an expression gains; None where that differs."""
        total = 0
        for atom, coefficient in expr.terms:
            step = self.of_atom(atom)
            if step is None or (step and not isinstance(coefficient, int)):
                return None
            total += step * coefficient if isinstance(coefficient, int) else 0
        return total

    def of_atom(self, atom: Atom) -> int | None:
        """The same of one atom."""
        kind, index, by = atom
        if kind == "v":
            return None
        if kind == "d":
            return int(index == self.dim)
        inner = cast(Expr, index)
        step = self.of(inner)
        if step == 0:
            return 0
        if step == 1 and isinstance(by, int) and by % self.lanes == 0 and self._begins_aligned(inner):
            return int(kind == "mod")
        return None

    def _begins_aligned(self, expr: Expr) -> bool:
        """Whether an expression that steps by one is a multiple of the lanes where a vector begins."""
        if not self.aligned or not isinstance(expr.constant, int) or expr.constant % self.lanes:
            return False
        for (kind, index, by), coefficient in expr.terms:
            if self.of_atom((kind, index, by)) == 0:
                if not isinstance(coefficient, int) or coefficient % self.lanes:
                    return False
            elif kind != "d" and not self._begins_aligned(cast(Expr, index)):
                return False
        return True
