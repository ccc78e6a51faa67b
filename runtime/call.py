"""A compiled function at run time: one native call, on memory that is kept between calls.

The usual call is one call of a builtin that reads the tensors itself (`@call`). Where it finds anything unusual, or
cannot be used with this torch, Python looks at every argument, says what is wrong or lays it out anew, and calls
`@run` with pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from isthmus.dialects.program import Buffer, KernelCall, Program, numbers
from isthmus.runtime import handles, library
from isthmus.runtime.arena import ArenaPool, Lease
from isthmus.runtime.arguments import Arguments, typed
from isthmus.runtime.convention import Executable, Value
from isthmus.runtime.cpu import Loaded
from isthmus.runtime.forks import work_alone_in_children
from isthmus.runtime.interpret_table import DTYPES
from isthmus.runtime.layout import native_facts
from isthmus.runtime.result_memory import LEAST, ResultMemory, works
from isthmus.runtime.support import external_symbols as external_symbols
from isthmus.runtime.support import support
from isthmus.runtime.torch_private import no_dispatch_modes
from isthmus.sizes import evaluate

_last_native = False


def last_call_native() -> bool:
    """Whether the last compiled forward or backward of this process ran as one native call.

    That is: machine code from entry to exit, with no Python inside and no library call that is
    not on the allow-list (`runtime.library.NATIVE`).
    """
    return _last_native


def note_call(executable: Executable) -> None:
    """Record what kind of executable runs now."""
    global _last_native
    _last_native = bool(getattr(executable, "native", False))


_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 6)
_FASTCALL = 0x80
_DIVISION_BY_ZERO = 127


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def builtin(address: int, *needs: object) -> Callable[..., object]:
    """Make a Python function, of machine code that takes its arguments as an array of objects, which owns `needs`."""
    method = _MethodDef(b"call", address, _FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    owned = (method, *needs)  # as the builtin's `self` they live as long as it does
    return cast("Callable[..., object]", make(ctypes.addressof(method), owned, None))


class NativeProgram:
    """One direction, loaded: takes arguments, gives results as fresh tensors. Safe to call from several threads."""

    fresh = True

    def __init__(self, program: Program, loaded: Loaded, *, reuse_results: bool = True) -> None:
        self.program = program
        self.native = all(library.is_native(c) for c in program.library_calls)
        self._loaded = loaded
        self._takes = Arguments(program, torch.device("cpu"))
        self._registered = library.Registered(program)
        self._run = _RUN(loaded["run"])
        self._temporaries = ArenaPool()
        self._arenas = ArenaPool()
        self._static_temporary = program.temporary_bytes if isinstance(program.temporary_bytes, int) else 0
        self._saves_nothing = len(program.results) == program.kept and program.saved_bytes == 0
        self.result_memory = self._make_result_memory() if reuse_results and "call" in loaded else None
        self._fast = self._make_builtin() if "call" in loaded else None
        work_alone_in_children()

    def _make_builtin(self) -> Callable[..., object]:
        number = ctypes.c_int64.from_address(self._loaded["isthmus_program_number"])
        number.value = self._registered.number
        return builtin(self._loaded["call"], self._loaded, self.result_memory)

    def _make_result_memory(self) -> ResultMemory | None:
        """Memory that large results leave to the next ones; None where no result can be large, or torch is unknown."""
        made = [b.bytes for b in self.program.results if b.place.kind == "output"]
        code, layout = support(), native_facts().layout
        if not any(not isinstance(n, int) or n >= LEAST for n in made) or layout is None or not works(code, layout):
            return None
        memory = ResultMemory(code, len(made))
        ctypes.c_uint64.from_address(self._loaded["isthmus_result_memory"]).value = memory.address
        return memory

    def direct(self) -> Callable[..., list[Tensor]] | None:
        """Give a function of the arguments one by one that does the usual call in one Python frame, or None.

        Under Dynamo every Python frame costs half a microsecond, and the builtin itself takes less.
        """
        fast, temporaries = self._fast, self._temporaries
        if fast is None or not self._saves_nothing:
            return None
        free, keep, native, size = temporaries.free, temporaries.keep, self.native, self._static_temporary
        unusual = self._unusual

        def call_without_arena(*arguments: Value) -> list[Tensor]:
            global _last_native
            _last_native = native
            results = fast(None, None, *arguments)
            if type(results) is list:
                return results  # pyright: ignore[reportUnknownVariableType] (a cast is a call)
            return unusual(results, list(arguments), None)

        if self.program.temporary_bytes == 0:
            return call_without_arena

        def call(*arguments: Value) -> list[Tensor]:
            global _last_native
            _last_native = native
            try:
                temporary = free.pop()
            except IndexError:
                temporary = temporaries.take(size)
            results = fast(temporary, None, *arguments)
            if type(results) is list:
                if len(free) < keep:
                    free.append(temporary)
                return results  # pyright: ignore[reportUnknownVariableType]
            return unusual(results, list(arguments), None)

        return call

    # ---- the protocol of executables

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run; gives all results, saved intermediates as tensors of their own."""
        if self._saves_nothing:
            return self._fast_or_slow(arguments, None)
        results, lease = self._save(arguments, everything=True)
        del lease  # its memory stays with the views
        return results

    def save_in_arena(self, arguments: list[Value], /) -> tuple[list[Tensor], Lease | None]:
        """Run; gives the results that the caller keeps, and the arena with the rest."""
        return self._save(arguments, everything=False)

    def run_from_arena(self, arguments: list[Value], arena: Tensor, /) -> list[Tensor]:
        """Run with the saved intermediates where the forward left them."""
        return self._fast_or_slow(arguments, arena)

    @property
    def sizes_wanted(self) -> tuple[str, ...]:
        """Symbols whose values follow the arguments of `run_from_arena`."""
        return self.program.sizes_wanted

    @property
    def saves_in_arena(self) -> bool:
        """Whether all that is saved, but arguments and results, is in the arena."""
        return self.program.saves_in_arena

    @property
    def saved_elsewhere(self) -> frozenset[int]:
        """Which of the saved values lie in arguments, or in results that the caller keeps."""
        return self.program.saved_elsewhere

    # ---- calls

    def _save(self, arguments: list[Value], *, everything: bool) -> tuple[list[Tensor], Lease | None]:
        needed = self.program.saved_bytes
        if not isinstance(needed, int):
            needed = evaluate(needed, self._takes.sizes(arguments))
        lease = self._arenas.lend(needed) if needed or self.program.saved_at else None  # what is saved may be empty
        arena = lease.tensor if lease is not None else None
        if everything:
            return self._slow(arguments, arena, everything=True), lease
        return self._fast_or_slow(arguments, arena), lease

    def _fast_or_slow(self, arguments: list[Value], arena: Tensor | None) -> list[Tensor]:
        if self._fast is None:
            return self._slow(arguments, arena)
        free = self._temporaries.free
        # An arena that turns out too small sends the call to `_slow`, which replaces it.
        try:
            temporary = free.pop()
        except IndexError:
            temporary = self._temporaries.take(self._static_temporary)
        try:
            results = self._fast(temporary, arena, *arguments)
        finally:
            if len(free) < self._temporaries.keep:
                free.append(temporary)
        if type(results) is list:
            return results  # pyright: ignore[reportUnknownVariableType]
        return self._unusual(results, arguments, arena)

    def _unusual(self, results: object, arguments: list[Value], arena: Tensor | None) -> list[Tensor]:
        """The builtin did not give a list: it found something to look at (nothing has run), or a call failed."""
        if results is None:
            return self._slow(arguments, arena)
        status, word = cast("tuple[int, int]", results)
        raise self._error(status, word, self._takes.sizes(self._takes.checked(arguments, arena)))

    def _slow(self, arguments: list[Value], arena: Tensor | None, *, everything: bool = False) -> list[Tensor]:
        """Look at every argument, then run on pointers; Python's dispatch modes see none of it."""
        with no_dispatch_modes():
            return self._run_on_pointers(arguments, arena, everything)

    def _run_on_pointers(self, arguments: list[Value], arena: Tensor | None, everything: bool) -> list[Tensor]:
        program = self.program
        values = self._takes.checked(arguments, arena)
        sizes = self._takes.sizes(values)
        made = self._outputs(sizes)
        temporary = self._temporaries.take(evaluate(program.temporary_bytes, sizes))
        count = program.handles
        words = (ctypes.c_uint64 * (count + 2))()
        words[count] = self._registered.number
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(_address(v) for v in values))
        outputs = (ctypes.c_void_p * max(1, len(program.results)))(
            *(made[k].data_ptr() if k in made else None for k in range(len(program.results)))
        )
        numbers_ = (ctypes.c_int64 * max(1, len(sizes)))(*(sizes[s.name] for s in program.symbols))
        try:
            base = arena.data_ptr() if arena is not None else None
            status = self._run(pointers, outputs, temporary.data_ptr(), base, numbers_, words)
            if status:
                raise self._error(status, ctypes.c_int64(words[count + 1]).value, sizes)
            wanted = program.results if everything else program.results[: program.kept]
            taken: dict[int, Tensor] = {}
            return [self._result(b, values, made, words, taken, arena, sizes) for b in wanted]
        finally:
            self._temporaries.give(temporary)
            for k in range(count):
                if words[k]:
                    handles.free(words[k])

    def _result(
        self,
        buffer: Buffer,
        arguments: Sequence[Value],
        made: Mapping[int, Tensor],
        words: ctypes.Array[ctypes.c_uint64],
        taken: dict[int, Tensor],
        arena: Tensor | None,
        sizes: Mapping[str, int],
    ) -> Tensor:
        kind, at = buffer.place.kind, evaluate(buffer.place.at, sizes)
        if kind == "output":
            shape = numbers(buffer.shape, sizes)
            whole = made[at]
            return whole if whole.shape == shape else whole.as_strided(shape, numbers(buffer.strides, sizes))
        if kind == "argument":
            return cast(Tensor, arguments[at])
        if kind == "handle":
            if at not in taken:  # a result can be handed over more than once
                handle, words[at] = words[at], 0
                taken[at] = handles.take(handle)
            return taken[at]
        assert kind == "saved" and arena is not None
        shape, strides = numbers(buffer.shape, sizes), numbers(buffer.strides, sizes)
        return typed(arena, at, DTYPES[buffer.dtype], shape, strides)

    def _outputs(self, sizes: Mapping[str, int]) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for buffer in self.program.results:
            at = buffer.place.at
            if buffer.place.kind == "output" and isinstance(at, int) and at not in found:
                shape, strides = numbers(buffer.shape, sizes), numbers(buffer.strides, sizes)
                found[at] = torch.empty_strided(shape, strides, dtype=DTYPES[buffer.dtype])
        return found

    # ---- looking closer

    def _error(self, status: int, word: int, sizes: Mapping[str, int]) -> BaseException:
        """The exception of a failed step, as eager would raise it."""
        error = library.raised()
        if error is not None:
            return error
        step = self.program.step(status - 1)
        if isinstance(step, KernelCall) and step.checks is not None:
            error = kernel_error(step, word, sizes)
            if step.location is not None:
                error.add_note(f"from {step.location}")
            return error
        return RuntimeError(f"step {status} of @{self.program.name} failed")


class OutOfRange(IndexError, RuntimeError):
    """An index out of range: eager raises the one or the other, by the operator."""


def kernel_error(step: KernelCall, word: int, sizes: Mapping[str, int]) -> Exception:
    """The exception that an error word stands for."""
    check = (word >> 56) & 0xFF
    if check == _DIVISION_BY_ZERO:
        return RuntimeError("ZeroDivisionError")
    index = word & ((1 << 56) - 1)
    index -= (index >> 55) << 56
    assert step.checks is not None
    dimension, bound = step.checks[check - 1]
    return OutOfRange(f"index {index} is out of bounds for dimension {dimension} with size {evaluate(bound, sizes)}")


def _address(value: Value) -> int | None:
    return value.data_ptr() if isinstance(value, Tensor) else None
