"""Python objects of this package as bytes: what a whole program needs beside its machine code.

Entries of the cache are trusted as machine code is; still only classes of this package are made from them.
"""

from __future__ import annotations

import io
import pickle

_PLAIN = {("builtins", "frozenset"), ("builtins", "complex"), ("collections", "OrderedDict")}


def dump(value: object) -> bytes:
    """Give the bytes of a value made of this package's dataclasses and plain data."""
    return pickle.dumps(value, protocol=5)


def restore(data: bytes) -> object:
    """Make the value again; pickle.UnpicklingError where the bytes name anything else or are damaged."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> object:
        if module_name.startswith("isthmus.") or (module_name, global_name) in _PLAIN:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"a stored program does not hold {module_name}.{global_name}")
