"""The native call of a program on a GPU: a builtin that reads the tensors and makes every launch and library call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import KernelCall, LibraryCall, Program
from isthmus.runtime import cache, cpu, handles
from isthmus.runtime.arguments import written
from isthmus.runtime.build import versions
from isthmus.runtime.call import builtin
from isthmus.runtime.convention import Value
from isthmus.runtime.cuda_driver import Driver
from isthmus.runtime.cuda_kernels import Loaded
from isthmus.runtime.device_errors import ErrorWords
from isthmus.runtime.layout import native_facts
from isthmus.runtime.support import external_symbols
from isthmus.runtime.torch_private import current_stream

_NO_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT: a thread that has not used the device yet; the first launch fails, so nothing has run."""


class Again(Exception):
    """The call has to be made in Python: nothing has run, or nothing that matters."""


class NativeCall:
    """One program's builtin, loaded; safe to call from several threads where no launch can fail."""

    def __init__(
        self, program: Program, object_: bytes, code: Mapping[str, Loaded], driver: Driver, errors: ErrorWords,
        device: torch.device,
    ) -> None:  # fmt: skip
        """`code`: the kernels by the names that the object calls them. LookupError where torch lacks a function."""
        self._program, self._driver, self._device = program, driver, device
        functions = {name: driver.address(loaded.function) for name, loaded in code.items()}
        symbols = {**external_symbols(device), **driver.entry_points(), **functions}
        loaded = cpu.load([object_], symbols, needs=tuple(code.values()))
        words = {
            "isthmus_error_words": errors.address,
            "isthmus_seen_words": errors.host_address,
            "isthmus_event": errors.event,
        }
        for name, value in words.items():
            ctypes.c_int64.from_address(loaded[name]).value = value
        self.builtin = builtin(loaded["call"], loaded)
        """Takes the temporary arena, the saved one, the stream, then the arguments."""
        self._writes_arguments = bool(written(program))

    def __call__(self, temporary: Tensor | None, arena: Tensor | None, arguments: Sequence[Value]) -> list[Tensor]:
        """Queue the program on the current stream; Again where Python has to."""
        return self.read(self.builtin(temporary, arena, current_stream(self._device), *arguments))

    def read(self, results: object) -> list[Tensor]:
        """Give the list that the builtin gives, or raise what it says instead; Again where nothing has run."""
        if type(results) is list:
            return cast("list[Tensor]", results)
        if results is None:
            raise Again
        status, word = cast("tuple[int, int]", results)
        if status < 0 or word == _NO_CONTEXT:
            raise Again
        raise self._error(status, word)

    def _error(self, status: int, word: int) -> BaseException:
        step = self._program.step(status - 1)
        if isinstance(step, KernelCall):
            return self._driver.error(word, f"launching {step.symbol}")
        if not self._writes_arguments:
            return Again()  # there eager's own exception is raised
        what = step.symbol if isinstance(step, LibraryCall) else "a copy"
        return RuntimeError(f"{what} failed: {handles.last_error()}")


def native_call(
    program: Program,
    text: Callable[[NativeFacts], str],
    code: Mapping[str, Loaded],
    driver: Driver,
    errors: ErrorWords,
    device: torch.device,
    *,
    use_cache: bool = True,
) -> NativeCall | None:
    """Compile and load a program's builtin; None where this torch does not let native code read its tensors."""
    facts, target = native_facts(device), cpu.host_target()
    if facts.layout is None:
        return None
    source = text(facts)

    def make() -> bytes:
        return cpu.compile_text(source, target, 0)

    key = cache.digest("gpu program", source, *versions(target))
    object_ = cache.current().get_or_make(key, make) if use_cache else make()
    try:
        return NativeCall(program, object_, code, driver, errors, device)
    except LookupError:
        return None
