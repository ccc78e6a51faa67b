"""Storage facts at the boundary: results that nobody shares, tensors in the layout asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from isthmus.runtime.convention import Value


def made_fresh(
    results: Sequence[Tensor], arguments: Iterable[Value], shared: frozenset[int] = frozenset()
) -> list[Tensor]:
    """Copy each result that shares storage with an argument or with an earlier result.

    Those at the positions `shared` are left as they are and not looked at.
    """
    taken = {_storage(value) for value in arguments if isinstance(value, Tensor)}
    taken.discard(0)
    fresh: list[Tensor] = []
    for position, result in enumerate(results):
        if position in shared:
            fresh.append(result)
            continue
        place = _storage(result)
        if place in taken:
            result = result.detach().clone()
            place = _storage(result)
        elif result._is_view():  # of something that nobody else sees
            result = on_its_own(result)
        if place:
            taken.add(place)
        fresh.append(result)
    return fresh


def on_its_own(view: Tensor) -> Tensor:
    """The same memory as a tensor that is no view."""
    made = torch.empty(0, dtype=view.dtype, device=view.device)
    return made.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def _storage(tensor: Tensor) -> int:
    """The address of a tensor's storage, 0 where it has none."""
    if tensor.layout is not torch.strided:
        return 0
    return tensor.untyped_storage().data_ptr()


def shared_storage(arguments: Sequence[Value]) -> tuple[tuple[int, ...], ...]:
    """Groups of positions whose tensors share storage, each of two or more, in order.

    A caller that compiles for one pattern of sharing compares it with that of the call.
    """
    groups: dict[int, list[int]] = {}
    for position, value in enumerate(arguments):
        if isinstance(value, Tensor) and (place := _storage(value)):
            groups.setdefault(place, []).append(position)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def has_strides(tensor: Tensor, strides: Sequence[int]) -> bool:
    """Whether stepping by `strides` reaches each element; dimensions of size 1 do not matter."""
    return all(
        size <= 1 or have == want for size, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


def coerce(tensor: Tensor, strides: Sequence[int] | None = None) -> Tensor:
    """The tensor in row-major order, or with the given strides; copied only where it differs.

    Lazy conjugates and negatives are resolved: compiled code reads memory as it is.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if strides is None:
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    if tensor.numel() == 0 or has_strides(tensor, strides):
        return tensor
    laid_out = torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device)
    return laid_out.copy_(tensor)
