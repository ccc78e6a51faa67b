"""Buffers of a program, from the literals of planned ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, cast

from isthmus.dialects.program import Buffer, Copy, Exchange, Place, PlaceKind, Step
from isthmus.ir import LiteralValue, Shape
from isthmus.sizes import Dim

Entry: TypeAlias = "tuple[PlaceKind, Dim] | tuple[PlaceKind, Dim, Dim]"
"""A place as the plan writes it, and from which element on a value lies there."""


def placed(entry: Entry) -> tuple[Place, Dim]:
    """Give the place and the offset in elements."""
    kind, at, *offset = entry
    return Place(kind, at), offset[0] if offset else 0


def is_in(source: Buffer, target: Buffer) -> bool:
    """Whether a value is where it has to be."""
    return (source.place, source.offset) == (target.place, target.offset)


def exchanged(sources: Sequence[Buffer], targets: Sequence[Buffer]) -> list[Step]:
    """Put values into the memory of others, all at once; those that are there already stay."""
    pairs = zip(sources, targets, strict=True)
    copies = tuple(Copy(s, t) for s, t in pairs if not is_in(s, t))
    return [Exchange(copies)] if copies else []


def entry_of(buffer: Buffer, turn: Dim) -> Buffer:
    """The turn-th entry along the first dimension."""
    offset = buffer.offset + turn * buffer.strides[0]
    return replace(buffer, shape=buffer.shape[1:], strides=buffer.strides[1:], offset=offset)


def viewed(buffer: Buffer, view: LiteralValue) -> Buffer:
    """What a callee sees of a buffer."""
    if view is None:
        return buffer
    shape, strides, offset = cast("tuple[Shape, Shape, Dim]", view)
    return replace(buffer, shape=shape, strides=strides, offset=buffer.offset + offset)
