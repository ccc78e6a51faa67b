"""Addresses of the C functions that compiled code may call: torch's own libraries first.

Torch's libgomp is loaded under a private name; code that linked the system's instead would get a
second pool of threads. So every name is looked up in the libraries that torch has mapped.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os

import torch


@functools.cache
def libraries() -> tuple[ctypes.CDLL, ...]:
    """Torch's shared libraries, already mapped into this process, and the process itself."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    found: list[ctypes.CDLL] = []
    for pattern in ("libgomp*.so*", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libc10.so"):
        found.extend(ctypes.CDLL(path) for path in sorted(glob.glob(os.path.join(folder, pattern))))
    found.append(ctypes.CDLL(None))
    return tuple(found)


@functools.cache
def find(name: str) -> int | None:
    """The address of an exported function or variable, None where nobody exports it."""
    for library in libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


def has(*names: str) -> bool:
    """Whether this torch exports all of these functions."""
    return all(find(name) is not None for name in names)
