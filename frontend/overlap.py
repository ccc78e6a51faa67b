"""Which inputs share memory: a fact that a program which writes to its inputs was compiled for, tested at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from isthmus import ir
from isthmus.dialects import aten
from isthmus.frontend.captured import Captured, Compiled, Value
from isthmus.frontend.torch_private import storage_of

Relation = dict[tuple[int, int], int]
"""Pairs of arguments that share memory -> how many bytes the second starts after the first."""

MANY = 16
"""Up to this many tensors, parameters and buffers that the program writes are tested too, beside the moving inputs."""


def relation(tensors: Sequence[tuple[int, Tensor]]) -> Relation:
    """Say which of the numbered tensors overlap in memory, and how."""
    spans = [(i, *span) for i, t in tensors if (span := _span(t)) is not None]
    found: Relation = {}
    for n, (i, storage, start, end) in enumerate(spans):
        for j, other_storage, other_start, other_end in spans[n + 1 :]:
            if storage == other_storage and start < other_end and other_start < end:
                found[i, j] = other_start - start
    return found


def _span(tensor: Tensor) -> tuple[int, int, int] | None:
    """Storage, first and last byte; None where there is no memory."""
    if tensor.layout != torch.strided or 0 in tensor.shape:
        return None
    reach = sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return storage_of(tensor), start, start + (reach + 1) * tensor.element_size()


@dataclass(frozen=True)
class OverlapCheck:
    """The inputs to look at, and how they overlapped when the program was captured."""

    watched: tuple[int, ...]
    expected: Relation

    def holds(self, arguments: Sequence[Value]) -> bool:
        """Tell whether these arguments overlap as those of the capture did."""
        tensors = [(i, cast(Tensor, arguments[i])) for i in self.watched]
        if not self.expected:
            storages = {storage_of(t) for _, t in tensors}
            if len(storages) == len(tensors):
                return True
        return relation(tensors) == self.expected


def check_of(captured: Captured, examples: Sequence[object]) -> OverlapCheck | None:
    """Give the check that a captured program needs; None where it writes to no input or has only one."""
    written = aten.written_arguments(ir.function(captured.module, "main").body.block)
    tensors = [i for i, x in enumerate(examples) if isinstance(x, Tensor)]
    moving = [i for i in tensors if captured.inputs[i].kind == "tensor"]
    watched = sorted({*moving, *(i for i in written if i in tensors)})
    watched = watched if len(watched) <= MANY else moving
    if not written or len(watched) < 2:
        return None
    return OverlapCheck(tuple(watched), relation([(i, cast(Tensor, examples[i])) for i in watched]))


def checked(compiled: Compiled, check: OverlapCheck, otherwise: Callable[..., Sequence[Value]]) -> Compiled:
    """Give what runs `otherwise` on arguments that share memory in another way than the program was compiled for."""

    def run(arguments: list[Value]) -> Sequence[Value]:
        return compiled(arguments) if check.holds(arguments) else otherwise(*arguments)

    return run
