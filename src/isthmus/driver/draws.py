"""Which library calls of a program draw from torch's generators: a derivative that runs them again must draw the same.

The runtime puts the generators back to where they were before the forward call (`runtime.generators`), so the draws of
the derivative must be the forward's first ones, in their order.
"""

from __future__ import annotations

from torch import Tag
from xdsl.dialects.builtin import ModuleOp

from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import prim
from isthmus.frontend.derivatives import overload_of

Draw = tuple[object, ...]
"""Callee, arguments, result types."""


def draws_of(module: ModuleOp) -> tuple[Draw, ...]:
    """Give the calls that draw, in program order."""
    calls = (op for op in module.walk() if isinstance(op, prim.OpaqueOp))
    return tuple((op.callee, op.args, *(r.type for r in op.results)) for op in calls if _draws(op))


def _draws(op: prim.OpaqueOp) -> bool:
    return Tag.nondeterministic_seeded in overload_of(str(op.callee.data)).tags


def require_same_draws(first: tuple[Draw, ...], forward: ModuleOp, backward: ModuleOp) -> None:
    """Check that a derivative's forward draws what the program itself drew first, and its backward nothing."""
    again = draws_of(forward)
    if again != first[: len(again)] or draws_of(backward):
        raise UnsupportedError(
            "a derivative of this gradient would draw other random numbers of torch's than the forward call",
            cure="compile without fallback_random, or draw outside and pass the numbers in",
        )
