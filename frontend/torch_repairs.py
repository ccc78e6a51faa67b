"""What torch's own shape inference gets wrong in some versions, put right while this package is loaded.

Torch 2.11: `one_layer_lstm`, from which fake tensors on a GPU learn the shapes of `lstm`, hands on the last states with
the extra dimension over which it walked, so that every later operator of the program is checked against wrong shapes.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol, cast

from torch import Tensor
from torch._decomp import decompositions


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


def repair() -> None:
    """Wrap torch's function once."""
    layer = getattr(decompositions, "one_layer_lstm", None)
    if layer is not None and not hasattr(layer, "__wrapped__"):
        setattr(decompositions, "one_layer_lstm", with_shapes_of_states(layer))  # noqa: B010
