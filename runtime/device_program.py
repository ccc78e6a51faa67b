"""A compiled function on a device: launches and library calls in order on the current stream.

Memory comes from torch's allocator, so it is reused in the order of the stream: temporaries live for the call, what is
saved for a backward until that lets go. Everything here but the launch itself works on any device of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias, cast

import torch
from torch import Tensor

from isthmus.dialects.program import Buffer, Program, numbers
from isthmus.runtime import library
from isthmus.runtime.arena import ArenaPool, Lease
from isthmus.runtime.arguments import Arguments, saved_view, written
from isthmus.runtime.convention import Value
from isthmus.runtime.device_errors import ErrorWords
from isthmus.runtime.device_native import Again, NativeCall
from isthmus.runtime.device_steps import Actions, Frame, Kernel
from isthmus.runtime.fresh import on_its_own
from isthmus.runtime.interpret_table import DTYPES
from isthmus.runtime.torch_private import (
    current_stream,
    device_is_current,
    no_dispatch_modes,
    number_of_current,
    stream_of,
)
from isthmus.sizes import Dim, evaluate

_Quick: TypeAlias = Callable[["list[Value]", "Tensor | None"], "tuple[list[Tensor], Lease | None]"]


class DeviceProgram:
    """One direction on a device: takes arguments, gives results as fresh tensors. Safe to call from several threads."""

    fresh = True

    def __init__(
        self, program: Program, kernels: Sequence[Kernel], device: torch.device, *, alignment: int = 1
    ) -> None:
        """`kernels`: how each launch of the program is made, in order.

        `alignment`: what the address of every argument has to be a multiple of; others are laid out anew.
        """
        self.program = program
        self.device = device
        launches = zip(program.kernel_calls, kernels, strict=True)
        self._by_torch = {step.symbol: k.reason for step, k in launches if k.launch is None}
        self.native = not self.fallbacks
        self.takes = Arguments(program, device, alignment)
        self._arenas = ArenaPool(keep=0, device=str(device))
        self._only_launches = not program.library_calls and not self._by_torch
        self._native: NativeCall | None = None
        self._quick: _Quick | None = None
        self._temporary = _known_bytes(program.temporary_bytes)
        self._saved = _known_bytes(program.saved_bytes)
        self._handed_over = program.handed_over
        self.overwrites = written(program)
        """The arguments that are written over; those of a backward are saved values."""
        self._outputs: dict[int, Buffer] = {}
        for buffer in program.results:
            if buffer.place.kind == "output" and isinstance(buffer.place.at, int):
                self._outputs.setdefault(buffer.place.at, buffer)
        self._actions = Actions(program, kernels, device, lambda frame: self.errors.check_now(lambda: frame.sizes))
        self.errors = ErrorWords(self._actions.failing, device)

    def use(self, native: NativeCall) -> None:
        """Make calls by machine code wherever nothing about them is unusual."""
        self._native = native
        self._quick = self._usual_call(native)

    @property
    def is_one_call(self) -> bool:
        """Whether the usual call is one call of machine code."""
        return self._native is not None

    # ---- the protocol of executables

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run; gives all results, saved intermediates as tensors of their own."""
        results, lease = self._call(arguments, None, everything=True)
        del lease  # its memory stays with the views
        return results

    def save_in_arena(self, arguments: list[Value], /) -> tuple[list[Tensor], Lease | None]:
        """Run; gives the results that the caller keeps, and the arena with the rest."""
        return self._call(arguments, None)

    def run_from_arena(self, arguments: list[Value], arena: Tensor, /) -> list[Tensor]:
        """Run with the saved intermediates where the forward left them."""
        return self._call(arguments, arena)[0]

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

    @property
    def fallbacks(self) -> tuple[tuple[str, str], ...]:
        """What is neither machine code of ours nor a library call that may be one: name and reason."""
        calls = dict.fromkeys(c.symbol for c in self.program.library_calls if not library.is_allowed(c))
        return (*self._by_torch.items(), *((symbol, "a library call") for symbol in calls))

    # ---- calls

    def _call(
        self, arguments: list[Value], arena: Tensor | None, *, everything: bool = False
    ) -> tuple[list[Tensor], Lease | None]:
        if self._native is not None and not (everything and self.saves):
            try:
                if self._quick is not None:
                    return self._quick(arguments, arena)
                if self._is_current():
                    return self._call_natively(self._native, arguments, arena)
            except Again:
                pass
            if not self._is_current():
                with torch.cuda.device(self.device):
                    return self._call(arguments, arena, everything=everything)
        return self._call_in_python(arguments, arena, everything)

    def _usual_call(self, native: NativeCall) -> _Quick | None:
        """Give the usual call as one function, where sizes are known, nothing can fail and nothing is handed over.

        Every Python frame counts: a backward runs in a thread whose core has seen none of this lately.
        """
        saved, temporary_bytes, saves = self._saved, self._temporary, self.saves
        if self.errors or saved is None or temporary_bytes is None or self._handed_over:
            return None
        device, arenas, empty, uint8 = self.device, self._arenas, torch.empty, torch.uint8
        call, stream = native.builtin, stream_of(device)
        current, number = (number_of_current(), device.index or 0) if device.type == "cuda" else (int, 0)

        def quick(arguments: list[Value], arena: Tensor | None) -> tuple[list[Tensor], Lease | None]:
            if current() != number:
                raise Again
            lease = temporary = None
            if saves and arena is None:
                arena = empty(saved or 16, dtype=uint8, device=device)
                lease = Lease(arena, arenas)
            if temporary_bytes:
                temporary = empty(temporary_bytes, dtype=uint8, device=device)
            return native.read(call(temporary, arena, stream(), *arguments)), lease

        return quick

    def _call_natively(
        self, native: NativeCall, arguments: list[Value], arena: Tensor | None
    ) -> tuple[list[Tensor], Lease | None]:
        lease = temporary = None
        in_arena = arena is not None
        if arena is None and self.saves:
            arena = self._memory(self._saved, self.program.saved_bytes, arguments, in_arena)
            lease = Lease(arena, self._arenas)
        if self._temporary != 0:
            temporary = self._memory(self._temporary, self.program.temporary_bytes, arguments, in_arena)
        if not self.errors:
            results = native(temporary, arena, arguments)
        else:
            with self.errors.lock:
                results = native(temporary, arena, arguments)
                self.errors.check(lambda: self.takes.sizes_of_call(arguments, in_arena=in_arena))
        if self._handed_over:
            self._take_apart(results, arguments, in_arena)
        return results, lease

    def _take_apart(self, results: list[Tensor], arguments: list[Value], in_arena: bool) -> None:
        """Where the machine code has given the arena, give what lies in it."""
        sizes = self.takes.sizes_of_call(arguments, in_arena=in_arena)
        for k in self._handed_over:
            argument = self.program.arguments[cast(int, self.program.results[k].place.at)]
            results[k] = on_its_own(saved_view(argument, results[k], sizes))

    def _memory(self, known: int | None, wanted: Dim, arguments: list[Value], in_arena: bool) -> Tensor:
        if known is None:
            known = _whole(evaluate(wanted, self.takes.sizes_of_call(arguments, in_arena=in_arena)))
        return torch.empty(known, dtype=torch.uint8, device=self.device)

    def _call_in_python(
        self, arguments: list[Value], arena: Tensor | None, everything: bool
    ) -> tuple[list[Tensor], Lease | None]:
        with self.entered():
            values, sizes = self.takes.bound(arguments, in_arena=arena is not None)
            lease = None
            if arena is None and self.saves:
                lease = Lease(self.new_arena(sizes), self._arenas)
                arena = lease.tensor
            frame = self.prepare(values, sizes, arena)
            self.execute(frame)
            self._return_moved(arguments, values)
            wanted = self.program.results if everything else self.program.results[: self.program.kept]
            return [self.result(b, frame) for b in wanted], lease

    def entered(self) -> AbstractContextManager[object]:
        """Off the tape and out of autocast, with the device current; Python's dispatch modes see nothing of it."""
        if self._only_launches and self._is_current():
            return no_dispatch_modes()
        return self._entered()

    @contextmanager
    def _entered(self) -> Generator[None]:
        device = nullcontext() if self._is_current() else torch.cuda.device(self.device)
        with no_dispatch_modes(), torch.no_grad(), torch.autocast(self.device.type, enabled=False), device:
            yield

    @property
    def saves(self) -> bool:
        """Whether anything is left in an arena for a backward."""
        return bool(self.program.saved_at) or self.program.saved_bytes != 0

    def new_arena(self, sizes: Mapping[str, int]) -> Tensor:
        """Memory for what is saved."""
        nbytes = _whole(evaluate(self.program.saved_bytes, sizes))
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _is_current(self) -> bool:
        return self.device.type != "cuda" or device_is_current(self.device)

    def prepare(self, values: list[Value], sizes: dict[str, int], arena: Tensor | None) -> Frame:
        """Give a call its memory."""
        frame = Frame(self.program, values, sizes)
        frame.saved = arena
        for at, buffer in self._outputs.items():
            shape, strides = numbers(buffer.shape, sizes), numbers(buffer.strides, sizes)
            frame.outputs[at] = torch.empty_strided(shape, strides, dtype=DTYPES[buffer.dtype], device=self.device)
        if self.program.temporary_bytes:
            needed = _whole(evaluate(self.program.temporary_bytes, sizes))
            frame.temporary = torch.empty(needed, dtype=torch.uint8, device=self.device)
        frame.settle()
        return frame

    def execute(self, frame: Frame) -> None:
        """Run the steps on the current stream, then raise what a kernel found."""
        if not self.errors:
            self.run_rest(frame)
            return
        with self.errors.lock:
            self.run_first(frame)
            self.errors.mark()
            self.run_rest(frame)
            self.errors.check(lambda: frame.sizes)

    def run_first(self, frame: Frame) -> None:
        """Run the steps up to the last that can fail on the current stream, and copy what was found to the host."""
        frame.stream = current_stream(self.device)
        frame.error_words = self.errors.address
        self._actions.first(frame)
        self.errors.copy()

    def run_rest(self, frame: Frame) -> None:
        """Run the steps after the last that can fail on the current stream."""
        frame.stream = current_stream(self.device)
        self._actions.rest(frame)

    @property
    def rest_is_empty(self) -> bool:
        """Whether `run_rest` does nothing."""
        return self._actions.rest_is_empty

    def result(self, buffer: Buffer, frame: Frame) -> Tensor:
        """One result of a call."""
        kind, at = buffer.place.kind, buffer.place.at
        if kind == "output":
            return frame.outputs[cast(int, at)]
        if kind == "argument":
            found = frame.argument(cast(int, at))
            return found if self.program.arguments[cast(int, at)].saved is None else on_its_own(found)
        return frame.handles[cast(int, at)] if kind == "handle" else frame.tensor(buffer)

    def _return_moved(self, given: list[Value], taken: list[Value]) -> None:
        """Numbers of the host that the program overwrites get their new value."""
        for k in self.takes.written:
            if k < len(given) and isinstance(original := given[k], Tensor) and original.device != self.device:
                original.copy_(cast(Tensor, taken[k]))


def _known_bytes(wanted: Dim) -> int | None:
    """Bytes of an arena where no size decides about them; 0 where there is none."""
    return None if not isinstance(wanted, int) else _whole(wanted) if wanted else 0


def _whole(nbytes: int) -> int:
    """Bytes of an arena: whole elements of every dtype, and never none."""
    return max(16, (nbytes + 15) // 16 * 16)
