"""The buffers of a matrix product as matrices: each group of dims joined to one by strides alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from isthmus.dialects.program import Buffer, LibraryCall
from isthmus.sizes import Dim

Groups = tuple[tuple[int, ...], ...]


def product_views(call: LibraryCall) -> list[tuple[Buffer, Groups | None]]:
    """Give the operands of a `prim.dot` and its result, each with the dims of its batch, rows and columns.

    No groups: a bias of one row, which stays one, since the library adds it in the product.
    """
    literals = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", call.arguments))
    batch_a, batch_b = literals["batch_a"], literals["batch_b"]
    contract_a, contract_b = literals["contract_a"], literals["contract_b"]
    a, b, *bias = call.operands
    (c,) = call.results
    free_a = tuple(d for d in range(len(a.shape)) if d not in (*batch_a, *contract_a))
    free_b = tuple(d for d in range(len(b.shape)) if d not in (*batch_b, *contract_b))
    first, second = len(batch_a), len(batch_a) + len(free_a)
    order = tuple(range(len(c.shape)))
    of_c = (order[:first], order[first:second], order[second:])
    skip = 0 if batch_a else 1
    views: list[tuple[Buffer, Groups | None]] = [
        (a, (batch_a, free_a, contract_a)[skip:]),
        (b, (batch_b, contract_b, free_b)[skip:]),
    ]
    for x in bias:
        is_row = len(x.shape) == 1 and len(of_c[2]) == 1 and not batch_a
        views.append((x, None) if is_row else (broadcast(x, c), of_c[skip:]))
    return [*views, (c, of_c[skip:])]


def joined(buffer: Buffer, groups: Sequence[Sequence[int]]) -> Buffer | None:
    """Join each group of dims to one; None where their strides do not allow it."""
    shape: list[Dim] = []
    strides: list[Dim] = []
    for dims in groups:
        size: Dim = 1
        stride: Dim = 1
        for d in dims:
            if buffer.shape[d] == 1:
                continue
            if size != 1 and stride != buffer.shape[d] * buffer.strides[d]:
                return None
            size, stride = size * buffer.shape[d], buffer.strides[d]
        shape.append(size)
        strides.append(stride)
    for k in reversed(range(len(shape))):  # what has one element is stepped over as in a row-major matrix
        if shape[k] == 1:
            strides[k] = shape[k + 1] * strides[k + 1] if k + 1 < len(shape) else 1
    return replace(buffer, shape=tuple(shape), strides=tuple(strides))


def broadcast(source: Buffer, target: Buffer) -> Buffer:
    """View a buffer in the shape of another, repeated along missing and single dims."""
    missing = len(target.shape) - len(source.shape)
    strides = [0] * missing + [
        0 if have == 1 and want != 1 else stride
        for have, want, stride in zip(source.shape, target.shape[missing:], source.strides, strict=True)
    ]
    return Buffer(source.place, source.dtype, target.shape, tuple(strides), source.offset)
