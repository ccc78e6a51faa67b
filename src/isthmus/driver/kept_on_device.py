"""Whole programs of a GPU on disk: the program as data; its kernels are in the cache by name, its launches too.

Only what runs none of its kernels by torch's operators is kept. A kernel's code for buffers at odd addresses can not be
made without the kernel itself, so a program from disk lays out anew the arguments that lie at such.
"""

from __future__ import annotations

import pickle
import struct

import torch

from isthmus.codegen.nvptx import host_program
from isthmus.dialects.program import Program
from isthmus.driver.on_device import native_of
from isthmus.runtime import cache, cpu
from isthmus.runtime.build import versions
from isthmus.runtime.cuda_driver import Driver, driver
from isthmus.runtime.cuda_kernels import Generated, KernelLoader, Loaded
from isthmus.runtime.cuda_launch import Launcher
from isthmus.runtime.device_attention import register
from isthmus.runtime.device_libraries import libraries_of, load_behind
from isthmus.runtime.device_program import DeviceProgram
from isthmus.runtime.device_steps import Kernel
from isthmus.runtime.stored import dump, restore


class Gone(Exception):
    """A kernel is no longer in the cache."""


def _gone(arch: str, aligned: bool) -> Generated:
    raise Gone


def _entry(key: str, loader: KernelLoader) -> str:
    return cache.digest("stored on device", key, loader.arch, loader.driver.linker, *versions(cpu.host_target()))


def keep_on_device(
    key: str, program: Program, device: torch.device, more: object = None, *, with_driver: Driver | None = None
) -> None:
    """Keep a program under a key that says what it was compiled from, and what the caller needs beside it."""
    loader = KernelLoader(with_driver or driver(), device.index or 0)
    cache.current().put(_entry(key, loader), cache.pack({"program": dump(program), "more": dump(more)}))


def kept_on_device(
    key: str, device: torch.device, *, with_driver: Driver | None = None
) -> tuple[DeviceProgram, object] | None:
    """Load what `keep_on_device` left; None where it, or one of its kernels, is not there."""
    register()
    loader = KernelLoader(with_driver or driver(), device.index or 0)
    entry = cache.current().get(_entry(key, loader))
    if entry is None:
        return None
    try:
        sections = cache.unpack(entry)
        program, more = restore(sections["program"]), restore(sections["more"])
        assert isinstance(program, Program)
        load_behind(device, *libraries_of(program))
        loaded = loader.load(dict.fromkeys(program.kernels, _gone))
        kernels: list[Kernel] = []
        there: dict[str, Loaded] = {}
        alignment = 1
        for step in program.kernel_calls:
            code = loaded[step.symbol]
            assert isinstance(code, Loaded)
            there[step.symbol] = code
            kernels.append(Kernel(Launcher(loader, step.symbol, _gone, code)))
            alignment = max(alignment, code.facts.alignment)
        made = DeviceProgram(program, kernels, device, alignment=alignment)
        native = native_of(program, kernels, loader, made)
        facts = {name: code.facts for name, code in there.items()}
        if native is None and host_program.anywhere(program, facts, aligned_handles=True):
            return None
    except (Gone, AssertionError, KeyError, pickle.UnpicklingError, AttributeError, EOFError, struct.error):
        return None
    if native is not None:
        made.use(native)
    return made, more
