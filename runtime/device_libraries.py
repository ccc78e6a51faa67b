"""Torch's libraries for a GPU, loaded by a thread behind a compilation: their first call reads hundreds of megabytes.

The thread imports the driver's package, multiplies zeros and attends to some, on the default stream; handles that
torch makes for a thread go back to its pool when the thread ends. Nothing depends on it: what fails is met again, and
told, by the program.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Sequence

import torch

from isthmus.dialects.program import Program
from isthmus.runtime.device_attention import register
from isthmus.runtime.torch_private import is_capturing

_begun: set[tuple[int, str]] = set()
"""(device, library) whose loading has begun."""


PRODUCTS, ATTENTION = "products", "attention"


def libraries_of(program: Program) -> tuple[str, ...]:
    """Give what a program will call."""
    symbols = [call.symbol for call in program.library_calls]
    found = {PRODUCTS: "prim.dot" in symbols, ATTENTION: any(s.startswith("isthmus::attention") for s in symbols)}
    return tuple(name for name, is_called in found.items() if is_called)


def load_behind(device: torch.device, *libraries: str) -> threading.Thread | None:
    """Begin to load libraries, once in a process for each device; gives the thread, if there is one."""
    number = device.index or 0
    new = [name for name in libraries if (number, name) not in _begun]
    if not new or device.type != "cuda" or not torch.cuda.is_available() or is_capturing(device):
        return None
    _begun.update((number, name) for name in new)
    register()
    thread = threading.Thread(target=_load, args=(device, new), name="isthmus: libraries")
    try:
        thread.start()
    except RuntimeError:  # no more threads: at a limit, or at the end of the process
        return None
    return thread


def _load(device: torch.device, names: Sequence[str]) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("cuda.bindings.driver")
    with contextlib.suppress(RuntimeError), torch.no_grad(), torch.cuda.device(device):
        if PRODUCTS in names:
            x = torch.zeros(64, 64, dtype=torch.bfloat16, device=device)
            torch.mm(x, x)
        if ATTENTION in names:
            q = torch.zeros(1, 1, 64, 64, dtype=torch.bfloat16, device=device)
            o, lse = torch.ops.isthmus.attention(q, q, q, True, 0.125)
            torch.ops.isthmus.attention_backward(o, q, q, q, o, lse, True, 0.125)
