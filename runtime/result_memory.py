"""Memory of large results: what an earlier result has left is used again, so that no call pays for page faults.

A result is a fresh tensor with a fresh storage. Only where its bytes lie is decided here: in a block that comes back
when the storage dies, as it would to an allocator, and not before (`docs/decisions/memory-of-large-results.md`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from isthmus.dialects.native_facts import TensorLayout
from isthmus.runtime import cpu
from isthmus.runtime.torch_private import no_dispatch_modes

LEAST = 1 << 20
"""Bytes from which on a result counts as large: below, torch's allocator has memory at hand that is mapped already."""

_OWNER = {"deleter": 8, "context": 16, "bytes": 32}
"""Fields of a storage by their distance from its address: looked at before they are relied on."""


def text_fields(layout: TensorLayout) -> dict[str, str]:
    """What the shared machine code needs to know about storages and blocks."""
    huge = 2 << 20
    fields = {name: layout.data + distance for name, distance in _OWNER.items()}
    numbers = {**fields, "data": layout.data, "storage": layout.storage, "header": 64, "least": LEAST, "huge": huge}
    return {name: str(number) for name, number in numbers.items()}


class ResultMemory:
    """The blocks of one program's large results, one per result at most while nobody uses it."""

    def __init__(self, code: cpu.Loaded, results: int) -> None:
        """`code`: what all programs share. MemoryError where there is none for the pool itself."""
        self._close = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code["isthmus_pool_close"])
        opened = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(code["isthmus_pool_open"])(results)
        if not opened:
            raise MemoryError("no memory for the pool of results")
        self.address = cast(int, opened)
        self._results = results

    def kept_bytes(self) -> int:
        """What is kept at the moment for results to come."""
        slots = (ctypes.c_uint64 * self._results).from_address(self.address + 16)
        return sum(ctypes.c_uint64.from_address(block + 16).value for block in slots if block)

    def __del__(self) -> None:
        self._close(self.address)


@functools.cache
def works(code: cpu.Loaded, layout: TensorLayout) -> bool:
    """Whether storages of this torch take memory of ours and bring it back; the first to ask makes the code stay.

    Results can outlive everything else of a process, so what brings their memory back is never unloaded.
    """
    if not sys.platform.startswith("linux") or os.environ.get("ISTHMUS_REUSE_RESULTS") == "0":
        return False
    with torch.inference_mode(False), no_dispatch_modes():
        if not all(_owns_plainly(layout, _bytes(n)) for n in (5, LEAST + 3, 3 * LEAST)):
            return False
        code.stay()
        return _comes_back(code, layout)


def _bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cpu")


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _storage(layout: TensorLayout, tensor: Tensor) -> int:
    return _word(_word(id(tensor) + layout.tensor) + layout.storage)


def _owns_plainly(layout: TensorLayout, tensor: Tensor) -> bool:
    """Whether the storage has its address twice, its size, and the same deleter as any other."""
    storage, other = _storage(layout, tensor), _bytes(7)
    data, deleter = storage + layout.data, _word(storage + layout.data + _OWNER["deleter"])
    return (
        _word(data + _OWNER["context"]) == _word(data) == tensor.data_ptr()
        and _word(data + _OWNER["bytes"]) == tensor.numel()
        and deleter != 0
        and deleter == _word(_storage(layout, other) + layout.data + _OWNER["deleter"])
    )


def _comes_back(code: cpu.Loaded, layout: TensorLayout) -> bool:
    """Try it: a storage moved to a new block, dropped, and a second one that gets the same block."""
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    move = cast("Callable[[int, int, int], int | None]", kind(code["isthmus_reuse_one"]))
    memory, seen = ResultMemory(code, 1), list[int | None]()
    for _ in range(2):
        tensor = _bytes(LEAST)
        seen.append(move(memory.address, 0, _word(id(tensor) + layout.tensor)))
        if seen[-1] is None or tensor.data_ptr() != seen[-1] or memory.kept_bytes():
            return False
        tensor[-1] = 1
        del tensor
        if memory.kept_bytes() < LEAST:
            return False
    return seen[0] == seen[1]
