"""What torch's own shape inference gets wrong in some versions, put right while this package is loaded.

Torch 2.11: `one_layer_lstm`, from which fake tensors on a GPU learn the shapes of `lstm`, hands on the last states with
the extra dimension over which it walked, so that every later operator of the program is checked against wrong shapes.

Also later: `int(a / b)` of symbols is simplified to a // b, which is one less where the quotient is below 0.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import sympy
from torch import Tensor
from torch._decomp import decompositions
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv, TruncToInt


class OneLayer(Protocol):
    """One layer of an LSTM in one direction over [time, batch, features]; gives all states and the last two."""

    def __call__(
        self, inp: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the layer."""
        ...


def with_shapes_of_states(layer: OneLayer) -> OneLayer:
    """Give the layer whose last states have the shapes of the first."""

    @functools.wraps(cast(Any, layer))
    def repaired(
        inp: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        states, last = layer(inp, hidden, params, *args, **kwargs)
        h, c = (
            new if new.dim() == old.dim() else new.reshape(old.shape) for new, old in zip(last, hidden, strict=True)
        )
        return states, (h, c)

    return cast(OneLayer, repaired)


def towards_zero(number: sympy.Basic) -> sympy.Basic | None:
    """Give a quotient cut to an integer, max(⌊q⌋, 0) + min(⌈q⌉, 0), where it may be below 0; else None."""
    if not isinstance(number, IntTrueDiv):
        return None
    base, divisor = cast("tuple[sympy.Expr, sympy.Expr]", number.args)
    if base.is_nonnegative and divisor.is_nonnegative:
        return None
    below, above = FloorDiv(base, divisor), -cast(sympy.Expr, FloorDiv(-base, divisor))
    return cast(sympy.Basic, sympy.Max(below, 0) + sympy.Min(above, 0))


def _cut_right(evaluate: Callable[[sympy.Basic], sympy.Basic | None]) -> Callable[..., sympy.Basic | None]:
    @functools.wraps(evaluate)
    def repaired(cls: type, number: sympy.Basic) -> sympy.Basic | None:
        found = evaluate(number)
        return towards_zero(number) if found is None else found

    return repaired


def repair() -> None:
    """Wrap torch's functions once."""
    if not hasattr(TruncToInt.eval, "__wrapped__"):
        setattr(TruncToInt, "eval", classmethod(_cut_right(TruncToInt.eval)))  # noqa: B010
    layer = getattr(decompositions, "one_layer_lstm", None)
    if layer is not None and not hasattr(layer, "__wrapped__"):
        setattr(decompositions, "one_layer_lstm", with_shapes_of_states(layer))  # noqa: B010
