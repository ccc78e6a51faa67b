"""The symbol table of an ELF object: what it defines and what it needs."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SYMTAB = 2
_UNDEFINED = 0
_LOCAL = 0
_OBJECT = 1
_FUNCTION = 2


@dataclass(frozen=True)
class Symbols:
    """Names of functions and variables that an object defines for others, and of all that it lacks."""

    defined: tuple[str, ...]
    undefined: tuple[str, ...]


def symbols_of(data: bytes) -> Symbols:
    """Read a relocatable 64-bit little-endian ELF object.

    Raises ValueError where the bytes are none.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF object")
    try:
        return _read(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged ELF object: {error}") from error


def _read(data: bytes) -> Symbols:
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", data, sections + i * size) for i in range(count)]
    defined: list[str] = []
    undefined: list[str] = []
    for _, kind, _, _, start, length, link, _ in headers:
        if kind != _SYMTAB:
            continue
        names = headers[link][4]
        entries = struct.iter_unpack("<IBBHQQ", data[start : start + length])
        for name, info, _, section, _, _ in entries:
            if not name or info >> 4 == _LOCAL:
                continue
            begin = names + name
            text = data[begin : data.index(b"\0", begin)].decode()
            if section == _UNDEFINED:
                undefined.append(text)
            elif info & 15 in (_OBJECT, _FUNCTION):
                defined.append(text)
    return Symbols(tuple(defined), tuple(undefined))
