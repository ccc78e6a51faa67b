"""What a call's arguments and results hold: lists, tuples and dictionaries opened, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor


def leaves_of(value: object) -> list[object]:
    """Give what a value holds, in order; None is a leaf, too."""
    found: list[object] = []
    _collect(value, found)
    return found


def tensors_in(*values: object) -> list[Tensor]:
    """Give the tensors that values hold, in order."""
    return [v for v in leaves_of(values) if isinstance(v, Tensor)]


def _collect(value: object, found: list[object]) -> None:
    if isinstance(value, list | tuple):
        for part in cast(Sequence[object], value):
            _collect(part, found)
    elif isinstance(value, Mapping):
        for part in cast(Mapping[str, object], value).values():
            _collect(part, found)
    else:
        found.append(value)
