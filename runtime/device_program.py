"""A compiled function on a device: launches and library calls in order on the current stream.

Memory comes from torch's allocator, so it is reused in the order of the stream: temporaries live for the call, what is
saved for a backward until that lets go. Everything here but the launch itself works on any device of torch.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor

from isthmus.dialects.program import Buffer, Program, numbers
from isthmus.runtime import library
from isthmus.runtime.arena import ArenaPool, Lease
from isthmus.runtime.arguments import Arguments
from isthmus.runtime.call import kernel_error
from isthmus.runtime.convention import Value
from isthmus.runtime.device_steps import Actions, Frame, Kernel
from isthmus.runtime.interpret_table import DTYPES
from isthmus.runtime.torch_private import current_stream, device_is_current, is_capturing, no_dispatch_modes
from isthmus.sizes import evaluate


class DeviceProgram:
    """One direction on a device: takes arguments, gives results as fresh tensors. Safe to call from several threads."""

    fresh = True

    def __init__(self, program: Program, kernels: Sequence[Kernel], device: torch.device) -> None:
        """`kernels`: how each launch of the program is made, in order."""
        self.program = program
        self.device = device
        launches = zip(program.kernel_calls, kernels, strict=True)
        self._by_torch = {step.symbol: k.reason for step, k in launches if k.launch is None}
        self.native = not self.fallbacks
        self.takes = Arguments(program, device)
        self._arenas = ArenaPool(keep=0, device=str(device))
        self._words: Tensor | None = None
        self._only_launches = not program.library_calls and not self._by_torch
        self._outputs: dict[int, Buffer] = {}
        for buffer in program.results:
            if buffer.place.kind == "output" and isinstance(buffer.place.at, int):
                self._outputs.setdefault(buffer.place.at, buffer)
        self._lock = threading.Lock()
        self._actions = Actions(program, kernels, device, lambda frame: self.raise_errors(frame.sizes))

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
    def fallbacks(self) -> tuple[tuple[str, str], ...]:
        """What is neither machine code of ours nor a library call that may be one: name and reason."""
        calls = dict.fromkeys(c.symbol for c in self.program.library_calls if not library.is_allowed(c))
        return (*self._by_torch.items(), *((symbol, "a library call") for symbol in calls))

    # ---- calls

    def _call(
        self, arguments: list[Value], arena: Tensor | None, *, everything: bool = False
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
        """Run the steps on the current stream, then raise what a kernel found.

        While a graph is captured nothing is found: a later call that is not captured raises it.
        """
        frame.stream = current_stream(self.device)
        if not self._actions.failing:
            self._actions.run(frame)
            return
        with self._lock:  # the words are one call's at a time
            frame.error_words = self.make_error_words().data_ptr()
            self._actions.run(frame)
            self.raise_errors(frame.sizes)

    def make_error_words(self) -> Tensor:
        """Where launches that can fail say so: a word each, zero but after a failure."""
        if self._words is None:
            self._words = torch.zeros(2 * len(self._actions.failing), dtype=torch.int64, device=self.device)
        return self._words

    def raise_errors(self, sizes: Mapping[str, int]) -> None:
        """Wait for the launches so far and raise what the first failed one found, as eager does."""
        if self._words is None or not self._actions.failing or is_capturing(self.device):
            return
        for step, word in zip(self._actions.failing, self._words.tolist()[::2], strict=True):
            if word:
                self._words.zero_()
                error = kernel_error(step, word, sizes)
                if step.location is not None:
                    error.add_note(f"from {step.location}")
                raise error

    def result(self, buffer: Buffer, frame: Frame) -> Tensor:
        """One result of a call."""
        kind, at = buffer.place.kind, buffer.place.at
        if kind == "output":
            return frame.outputs[cast(int, at)]
        if kind == "argument":
            return frame.argument(cast(int, at))
        return frame.handles[cast(int, at)] if kind == "handle" else frame.tensor(buffer)

    def _return_moved(self, given: list[Value], taken: list[Value]) -> None:
        """Numbers of the host that the program overwrites get their new value."""
        for k in self.takes.written:
            if k < len(given) and isinstance(original := given[k], Tensor) and original.device != self.device:
                original.copy_(cast(Tensor, taken[k]))


def _whole(nbytes: int) -> int:
    """Bytes of an arena: whole elements of every dtype, and never none."""
    return max(16, (nbytes + 15) // 16 * 16)
