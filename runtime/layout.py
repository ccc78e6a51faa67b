"""Where a tensor's fields lie in memory: searched for on probe tensors and verified before anything relies on it."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isthmus.dialects.native_facts import NativeFacts, TensorLayout
from isthmus.runtime import handles, symbols
from isthmus.runtime.handles import SCALAR_TYPES
from isthmus.runtime.torch_private import dispatch_keys, excluded_keys

_REACH = 320
"""How many bytes of an object are searched."""

_NEEDED = (
    "aoti_torch_empty_strided",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "_Py_NoneStruct",
    "Py_IncRef",
)


_CPU = torch.device("cpu")


@functools.cache
def native_facts(device: torch.device = _CPU) -> NativeFacts:
    """What this torch lets native code do with tensors of a device."""
    if device != _CPU:
        return _facts_of_device(device)
    guard = "_ZN3c104impl23ExcludeDispatchKeyGuard"
    guarded = symbols.has(f"{guard}C1ENS_14DispatchKeySetE", f"{guard}D1Ev")
    layout = None
    if handles.available() and symbols.has(*_NEEDED) and os.environ.get("ISTHMUS_FAST_CALLS") != "0":
        layout = find_layout()
    return NativeFacts(excluded_keys() if guarded else 0, layout)


def _facts_of_device(device: torch.device) -> NativeFacts:
    """Tensors of a device lie in the host's memory as others do, and have keys of their own."""
    facts = native_facts()
    if facts.layout is None or not symbols.has("aoti_torch_get_device_index"):
        return replace(facts, layout=None)
    layout = replace(facts.layout, plain_keys=_plain_keys(device))
    probes = [torch.empty(3, 5, device=device)[1:], torch.nn.Parameter(torch.empty((), device=device))]
    return replace(facts, layout=layout if all(_agrees(layout, t) for t in probes) else None)


def find_layout() -> TensorLayout | None:
    """Find the layout; None where the search fails or any probe disagrees with it."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            layout = _search(memory.fileno())
            return layout if layout is not None and all(_agrees(layout, t) for t in _probes()) else None
    except (OSError, struct.error, ValueError):
        return None


def _search(memory: int) -> TensorLayout | None:
    """Look for values that nothing else has, in several tensors at the same place."""
    base = torch.empty(5000)
    probes = [
        base.as_strided((3, 5, 7), (211, 29, 2), 13),
        base.as_strided((11, 2, 4), (97, 53, 3), 1009),
        base.as_strided((6, 19, 9), (57, 5, 17), 331),
    ]
    high = base.as_strided((2, 3, 1, 1, 1, 5), (701, 67, 1, 1, 1, 3))
    for tensor in (16, 24, 32):
        try:
            found = [_words(memory, _words(memory, id(p) + tensor, 1)[0], _REACH // 8) for p in probes]
        except OSError:
            continue
        shapes = [(3, *p.shape, None, None, *p.stride()) for p in probes]
        rank = _common(found, shapes)
        offset = _common(found, [(int(p.storage_offset()),) for p in probes])
        keys = _common(found, [(dispatch_keys(p),) for p in probes])
        storage = _find_storage(memory, found[0], base.data_ptr())
        dtype = _find_dtype(memory, tensor)
        outline = _find_outline(memory, id(high) + tensor, (*high.shape, *high.stride()))
        if None in (rank, offset, keys, storage, dtype, outline):
            continue
        assert rank is not None and offset is not None and keys is not None
        assert storage is not None and dtype is not None and outline is not None
        return TensorLayout(
            tensor=tensor,
            storage=storage[0],
            data=storage[1],
            offset=8 * offset,
            dtype=dtype,
            keys=8 * keys,
            rank=8 * rank,
            inline=8 * rank + 8,
            outline=outline,
            plain_keys=_plain_keys(),
        )
    return None


def _words(memory: int, address: int, count: int) -> tuple[int, ...]:
    """Read 64-bit words; OSError (never a crash) where nothing is mapped."""
    data = os.pread(memory, 8 * count, address)
    if len(data) != 8 * count:
        raise OSError("short read")
    return struct.unpack(f"<{count}Q", data)


def _common(words: Sequence[tuple[int, ...]], patterns: Sequence[tuple[int | None, ...]]) -> int | None:
    """The only place where each pattern (None: anything) is found in its words."""
    places = set(range(len(words[0])))
    for have, pattern in zip(words, patterns, strict=True):
        places &= {
            k
            for k in range(len(have) - len(pattern) + 1)
            if all(want is None or want == word for want, word in zip(pattern, have[k:], strict=False))
        }
    return places.pop() if len(places) == 1 else None


def _find_storage(memory: int, words: tuple[int, ...], data: int) -> tuple[int, int] | None:
    """A pointer to something that has the address; the allocation's owner follows it and is often equal."""
    for k, pointer in enumerate(words):
        try:
            found = _words(memory, pointer, 8) if 0x1000 < pointer < 1 << 47 else ()
        except OSError:
            continue
        if data in found:
            return 8 * k, 8 * found.index(data)
    return None


def _find_dtype(memory: int, tensor: int) -> int | None:
    """The 16-bit field that is the ScalarType in tensors of every dtype."""
    candidates = set(range(0, _REACH, 2))
    for dtype, number in SCALAR_TYPES.items():
        t = torch.empty(2, dtype=dtype)
        (impl,) = _words(memory, id(t) + tensor, 1)
        data = os.pread(memory, _REACH, impl)
        candidates = {k for k in candidates if struct.unpack_from("<H", data, k)[0] == number}
    return candidates.pop() if len(candidates) == 1 else None


def _find_outline(memory: int, place: int, wanted: tuple[int, ...]) -> int | None:
    (impl,) = _words(memory, place, 1)
    for k, pointer in enumerate(_words(memory, impl, _REACH // 8)):
        try:
            if 0x1000 < pointer < 1 << 47 and _words(memory, pointer, len(wanted)) == wanted:
                return 8 * k
        except OSError:
            continue
    return None


def _plain_keys(device: torch.device = _CPU) -> tuple[int, ...]:
    """Key sets of tensors whose memory is what they mean: no wrapper, no lazy conjugate, on the device."""
    with torch.inference_mode(False):
        plain = dispatch_keys(torch.empty(1, device=device))
    with torch.inference_mode():
        inference = dispatch_keys(torch.empty(1, device=device))
    return tuple(dict.fromkeys((plain, inference)))


def _probes() -> list[Tensor]:
    """Tensors of every kind that native code may be called with."""
    found = [torch.empty(2, 3, dtype=dtype) for dtype in SCALAR_TYPES]
    base = torch.empty(5000)
    found += [
        torch.empty(()),
        torch.empty(0, 4),
        base[17:39].view(2, 11),
        base.as_strided((4, 3), (1, 4), 5),
        base.as_strided((2, 2, 2, 2, 2), (16, 8, 4, 2, 1), 3),
        base.as_strided((1, 2, 1, 2, 1, 2, 3), (7, 6, 5, 4, 3, 2, 1), 9),
        torch.nn.Parameter(torch.empty(3, 3)),
        (torch.ones(2, requires_grad=True) * 2)[1:],
    ]
    with torch.inference_mode():
        found.append(torch.empty(3))
    return found


def _agrees(layout: TensorLayout, tensor: Tensor) -> bool:
    """Whether reading by the layout gives what torch says, so that reading can be trusted from now on."""

    def word(address: int) -> int:
        return ctypes.c_uint64.from_address(address).value

    impl, rank = word(id(tensor) + layout.tensor), tensor.dim()
    table = impl + layout.inline
    step = TensorLayout.INLINE_RANK
    if rank > step:
        table, step = word(impl + layout.outline), rank
    storage = word(impl + layout.storage)
    return (
        word(impl + layout.rank) == rank
        and all(word(table + 8 * d) == tensor.shape[d] for d in range(rank))
        and all(word(table + 8 * (step + d)) == tensor.stride(d) for d in range(rank))
        and word(impl + layout.offset) == tensor.storage_offset()
        and ctypes.c_uint16.from_address(impl + layout.dtype).value == SCALAR_TYPES[tensor.dtype]
        and word(impl + layout.keys) == dispatch_keys(tensor)
        and dispatch_keys(tensor) in layout.plain_keys
        and word(storage + layout.data) == tensor.untyped_storage().data_ptr()
    )
