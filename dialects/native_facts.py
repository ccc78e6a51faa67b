"""Facts about the torch that native code is called by: found and verified by the runtime, read by code generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorLayout:
    """Byte offsets inside a Python tensor and what it points to, and the words that an ordinary CPU tensor has there.

    `tensor`: Python object -> its at::Tensor (a pointer to the implementation). Of the implementation: `storage` (a
    pointer, whose `data` is the address), `offset` (i64, elements), `dtype` (i16, a ScalarType), `keys` (i64), `rank`
    (i64), `inline` (five sizes, then five strides) or `outline` (a pointer to sizes, then strides, for higher ranks).
    `plain_keys` are the key sets of ordinary CPU tensors.
    """

    tensor: int
    storage: int
    data: int
    offset: int
    dtype: int
    keys: int
    rank: int
    inline: int
    outline: int
    plain_keys: tuple[int, ...]

    INLINE_RANK = 5


@dataclass(frozen=True)
class NativeFacts:
    """What a torch build lets native code do.

    `excluded_keys`: dispatch keys (autograd, autocast, Python modes) that are off while a program calls the library.
    `layout` is None where it could not be verified: then programs are called with pointers that Python reads.
    """

    excluded_keys: int = 0
    layout: TensorLayout | None = None
