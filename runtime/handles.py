"""Torch tensors as the C interface has them: handles made from memory, handles as Python tensors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from isthmus.runtime import symbols

_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
_FROM_BLOB = "aoti_torch_create_tensor_from_blob"
_EMPTY = "aoti_torch_empty_strided"
_DATA = "aoti_torch_get_data_ptr"
_DELETE = "aoti_torch_delete_tensor_object"
_CPU = 0

SCALAR_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}


def available() -> bool:
    """Whether this torch exports what is needed here."""
    return symbols.has(_WRAP, _FROM_BLOB, _EMPTY, _DATA, _DELETE)


@functools.cache
def _function(name: str, result: object, *arguments: object) -> Callable[..., object]:
    address = symbols.find(name)
    assert address is not None, f"torch does not export {name}"
    kind = ctypes.PYFUNCTYPE(cast("type[ctypes.c_int]", result), *cast("tuple[type[ctypes.c_int], ...]", arguments))
    return kind(address)


def _check(status: object) -> None:
    if status:
        raise RuntimeError(last_error())


def last_error() -> str:
    """The message of the last error inside torch's C interface on this thread, if this torch keeps it."""
    if not symbols.has("torch_exception_get_what_without_backtrace"):
        return "a library call failed"
    text = _function("torch_exception_get_what_without_backtrace", ctypes.c_char_p)()
    return cast(bytes, text or b"a library call failed").decode(errors="replace")


def from_memory(address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """A tensor that looks at memory and owns nothing: the caller keeps the memory alive."""
    rank = len(shape)
    made = ctypes.c_void_p()
    make = _function(
        _FROM_BLOB,
        ctypes.c_int32,
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
        *(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p),
    )
    sizes, steps = (ctypes.c_int64 * max(1, rank))(*shape), (ctypes.c_int64 * max(1, rank))(*strides)
    _check(make(address, rank, sizes, steps, 0, SCALAR_TYPES[dtype], _CPU, 0, ctypes.addressof(made)))
    assert made.value is not None
    return take(made.value)


def take(handle: int) -> Tensor:
    """The Python tensor of a handle, which is given up."""
    try:
        return cast(Tensor, _function(_WRAP, ctypes.py_object, ctypes.c_void_p)(handle))
    finally:
        free(handle)


def free(handle: int) -> None:
    """Give up a handle."""
    _function(_DELETE, ctypes.c_int32, ctypes.c_void_p)(handle)


def empty(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """A new tensor as a handle, and the address of its memory."""
    rank = len(shape)
    made, data = ctypes.c_void_p(), ctypes.c_void_p()
    words = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int32] * 3, ctypes.c_void_p)
    make = _function(_EMPTY, ctypes.c_int32, *words)
    sizes, steps = (ctypes.c_int64 * max(1, rank))(*shape), (ctypes.c_int64 * max(1, rank))(*strides)
    _check(make(rank, sizes, steps, SCALAR_TYPES[dtype], _CPU, 0, ctypes.addressof(made)))
    _check(_function(_DATA, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(made, ctypes.addressof(data)))
    assert made.value is not None
    return made.value, data.value or 0
