"""What a call's arguments and results hold: lists, tuples and dictionaries opened; objects, where that is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import cast

from torch import Tensor, nn


def leaves_of(value: object) -> list[object]:
    """Give what a value holds, in order; None is a leaf, too."""
    found: list[object] = []
    _collect(value, found)
    return found


def tensors_in(*values: object) -> list[Tensor]:
    """Give the tensors that values hold, in order."""
    return [v for v in leaves_of(values) if isinstance(v, Tensor)]


def hidden_tensors(value: object) -> list[Tensor]:
    """Give the tensors that an object and what it is made of keep as attributes, but for modules and classes."""
    found: list[Tensor] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        leaf = todo.pop()
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif id(leaf) not in seen and not isinstance(leaf, _CLOSED):
            seen.add(id(leaf))
            todo.extend(leaves_of(getattr(leaf, "__dict__", {})))
    return found


_CLOSED = (type, FunctionType, ModuleType, nn.Module)


def _collect(value: object, found: list[object]) -> None:
    if isinstance(value, list | tuple):
        for part in cast(Sequence[object], value):
            _collect(part, found)
    elif isinstance(value, Mapping):
        for part in cast(Mapping[str, object], value).values():
            _collect(part, found)
    else:
        found.append(value)
