"""Dataclasses among arguments and results: containers, like tuples and dictionaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class _Record:
    """An instance of a dataclass, opened for pytree; put together again it is an instance of its class."""

    kind: type
    names: tuple[str, ...]
    values: tuple[object, ...]


def opened(value: object) -> object:
    """Give the value with every dataclass instance in it as a node of pytree."""
    return pytree.tree_map(_open, value)


def _open(leaf: object) -> object:
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return leaf
    table = getattr(leaf, "__dict__", None)
    names = tuple(table) if table is not None else tuple(f.name for f in dataclasses.fields(leaf))
    return _Record(type(leaf), names, tuple(opened(getattr(leaf, n)) for n in names))


def _flatten(record: _Record) -> tuple[list[object], tuple[type, tuple[str, ...]]]:
    return list(record.values), (record.kind, record.names)


def _unflatten(values: Iterable[object], context: tuple[type, tuple[str, ...]]) -> Any:
    kind, names = context
    made = cast(Any, kind).__new__(kind)
    for name, value in zip(names, values, strict=True):
        try:
            setattr(made, name, value)
        except dataclasses.FrozenInstanceError:
            object.__setattr__(made, name, value)
    return made


pytree.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    _Record,
    _flatten,  # pyright: ignore[reportArgumentType]
    cast(Any, _unflatten),
    serialized_type_name="isthmus.frontend.records._Record",
)
