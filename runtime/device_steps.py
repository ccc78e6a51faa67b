"""The steps of a program on a device, prepared: each becomes a function of the running call."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from isthmus.dialects.program import (
    ERROR_SPACING,
    Branch,
    Buffer,
    Copy,
    Exchange,
    KernelCall,
    LibraryCall,
    Loop,
    Place,
    Program,
    Step,
    flat,
    numbers,
    touched,
)
from isthmus.runtime.arguments import saved_view, typed
from isthmus.runtime.convention import Value
from isthmus.runtime.device_library import library_call
from isthmus.runtime.interpret_table import DTYPES
from isthmus.sizes import evaluate


class Launch(Protocol):
    """Runs one kernel on buffers at these addresses, on a stream."""

    def __call__(
        self, pointers: list[int], sizes: Mapping[str, int], symbols: Sequence[str | int], stream: int
    ) -> None:
        """Launch; the pointers are those of the call's buffers, then that of the error word where it can fail."""
        ...


class OnTensors(Protocol):
    """Runs one kernel by torch's own operators."""

    def __call__(self, operands: Sequence[Tensor], sizes: Mapping[str, int]) -> Sequence[Tensor]:
        """Give the results as new tensors."""
        ...


@dataclass(frozen=True)
class Kernel:
    """How one launch is made: by machine code, or (and then why) by torch's operators on whole tensors.

    `starts`: per buffer the elements that its pointer is ahead of the tensor.
    """

    launch: Launch | None = None
    on_tensors: OnTensors | None = None
    starts: tuple[int, ...] = ()
    reason: str = ""


class Frame:
    """One call while it runs: where everything is. `arguments` are None where the value is in the saved arena."""

    __slots__ = (
        *("_whole", "arguments", "bases", "error_words", "handles", "outputs", "program", "saved", "sizes", "stream"),
        "temporary",
    )

    def __init__(self, program: Program, arguments: list[Value], sizes: dict[str, int]) -> None:
        self.program = program
        self.arguments = arguments
        self.sizes = sizes
        self.outputs: dict[int, Tensor] = {}
        self.temporary: Tensor | None = None
        self.saved: Tensor | None = None
        self.handles: dict[int, Tensor] = {}
        self.stream = 0
        self.error_words = 0
        self.bases: list[int] = []
        """Addresses by slot (`slot_of`), once everything has its memory."""
        self._whole: dict[tuple[str, torch.dtype], Tensor] = {}

    def settle(self) -> None:
        """Note the addresses of everything that has its memory now."""
        saved = 0 if self.saved is None else self.saved.data_ptr()
        bases = [v.data_ptr() if isinstance(v, Tensor) else 0 for v in self.arguments]
        if self.saved is not None:
            for k, argument in enumerate(self.program.arguments):
                if argument.saved is not None and self.arguments[k] is None:
                    bases[k] = saved + evaluate(argument.saved, self.sizes)
        for k in range(len(self.program.results)):
            made = self.outputs.get(k)
            bases.append(0 if made is None else made.data_ptr())
        bases.append(0 if self.temporary is None else self.temporary.data_ptr())
        bases.append(saved)
        self.bases = bases

    def argument(self, k: int) -> Tensor:
        """An argument as a tensor."""
        value = self.arguments[k]
        if value is None:
            assert self.saved is not None
            value = self.arguments[k] = saved_view(self.program.arguments[k], self.saved, self.sizes)
        return cast(Tensor, value)

    def _base(self, place: Place) -> Tensor:
        at = cast(int, place.at)
        if place.kind == "argument":
            return self.argument(at)
        if place.kind == "output":
            return self.outputs[at]
        if place.kind == "handle":
            return self.handles[at]
        arena = self.temporary if place.kind == "temporary" else self.saved
        assert arena is not None
        return arena

    def pointer(self, buffer: Buffer) -> int:
        """The address of a buffer's first element."""
        place = buffer.place
        offset = evaluate(buffer.offset, self.sizes) * DTYPES[buffer.dtype].itemsize
        if place.kind == "handle":
            return self.handles[cast(int, place.at)].data_ptr() + offset
        if place.kind in ("temporary", "saved"):
            offset += evaluate(place.at, self.sizes)
        return self.bases[slot_of(place, self.program)] + offset

    def tensor(self, buffer: Buffer) -> Tensor:
        """A buffer as a tensor."""
        place, sizes = buffer.place, self.sizes
        shape, strides = numbers(buffer.shape, sizes), numbers(buffer.strides, sizes)
        base, dtype = self._base(place), DTYPES[buffer.dtype]
        offset = evaluate(buffer.offset, sizes)
        if place.kind in ("temporary", "saved"):
            start = evaluate(place.at, sizes) + offset * dtype.itemsize
            whole = self._whole.get((place.kind, dtype))
            if whole is None and base.numel() % dtype.itemsize == 0 and base.storage_offset() == 0:
                whole = self._whole[place.kind, dtype] = base.view(dtype)
            if whole is None or start % dtype.itemsize or 0 in shape:
                return typed(base, start, dtype, shape, strides)
            return whole.as_strided(shape, strides, start // dtype.itemsize)
        if not offset and base.shape == shape and base.stride() == strides:
            return base
        return base.as_strided(shape, strides, int(base.storage_offset()) + offset)


def slot_of(place: Place, program: Program) -> int:
    """Where the address of a place's memory is noted: arguments, then results, then the two arenas."""
    if place.kind == "argument":
        return cast(int, place.at)
    arguments, results = len(program.arguments), len(program.results)
    if place.kind == "output":
        return arguments + cast(int, place.at)
    return arguments + results + (0 if place.kind == "temporary" else 1)


Action: TypeAlias = Callable[[Frame], None]


class Actions:
    """Prepares the steps of one program."""

    def __init__(
        self, program: Program, kernels: Sequence[Kernel], device: torch.device, check: Callable[[Frame], None]
    ) -> None:
        """`kernels`: one per launch of the program, in order."""
        calls = [s for s in program.kernel_calls if s.checks is not None]
        self.failing = [s for s in calls if not s.rechecks]
        """The launches that can be the first to fail, in the order of their error words."""
        self._word = {id(s): ERROR_SPACING * k for k, s in enumerate(self.failing)}
        self._spare_word = ERROR_SPACING * len(self.failing)
        self._given = {r.place.at for r in program.results if r.place.kind == "handle"}
        launches = zip(program.kernel_calls, kernels, strict=True)
        self._kernels = {id(step): kernel for step, kernel in launches}
        self._program, self._device, self._check = program, device, check
        self._unsure = False
        self.looks_on_the_way = False
        """Whether the host has to look for errors before the program goes on."""
        dying = _last_uses(program.steps, self._given)
        prepared: list[list[Action]] = []
        for number, step in enumerate(program.steps):
            prepared.append(self._actions(step) + ([_forget(dying[number])] if number in dying else []))
        last = 1 + max((k for k, s in enumerate(program.steps) if self._can_fail(s)), default=-1)
        self.first = _in_order([a for actions in prepared[:last] for a in actions])
        """The steps up to the last that can fail."""
        self.rest = _in_order([a for actions in prepared[last:] for a in actions])
        """The steps after it."""
        self.rest_is_empty = last == len(program.steps)

    def _can_fail(self, step: Step) -> bool:
        return any(id(part) in self._word for part in flat([step]))

    def _sequence(self, steps: Sequence[Step]) -> Action:
        """One after the other."""
        return _in_order([action for step in steps for action in self._actions(step)])

    def _actions(self, step: Step) -> list[Action]:
        if isinstance(step, KernelCall):
            return self._kernel_call(step)
        if isinstance(step, LibraryCall):
            return [_library(step)]
        if isinstance(step, Copy):
            return [lambda frame: _copy(frame, step)]
        if isinstance(step, Exchange):
            return [lambda frame: _exchange(frame, step)]
        return [self._branch(step) if isinstance(step, Branch) else self._loop(step)]

    # ---- kernels

    def _kernel_call(self, step: KernelCall) -> list[Action]:
        """The launch; before a first write to the caller's tensors, what can have failed is looked at."""
        found: list[Action] = []
        writes = any(b.place.kind == "argument" for b in step.buffers[step.reads :])
        if writes and self._unsure:
            found.append(self._check)
            self._unsure, self.looks_on_the_way = False, True
        kernel = self._kernels[id(step)]
        if kernel.launch is not None:
            found.append(self._launch(step, kernel.launch))
            self._unsure |= id(step) in self._word
        else:
            assert kernel.on_tensors is not None
            found.append(_on_tensors(step, kernel.on_tensors, kernel.starts, self._device))
        return found

    def _launch(self, step: KernelCall, launch: Launch) -> Action:
        buffers, symbols = step.buffers, step.symbols
        word = None if step.checks is None else self._word.get(id(step), self._spare_word)

        known = self._known(buffers)
        results = step.buffers[step.reads :]
        can_be_empty = all(any(d == 0 or not isinstance(d, int) for d in b.shape) for b in results)

        def run(frame: Frame) -> None:
            if can_be_empty and all(0 in numbers(b.shape, frame.sizes) for b in results):
                return
            if known is not None:
                bases = frame.bases
                pointers = [bases[slot] + offset for slot, offset in known]
            else:
                pointers = [frame.pointer(b) for b in buffers]
            if word is not None:
                pointers.append(frame.error_words + word)
            launch(pointers, frame.sizes, symbols, frame.stream)

        return run

    def _known(self, buffers: Sequence[Buffer]) -> list[tuple[int, int]] | None:
        """Slot and byte of each buffer, where no size and no library call decides about them."""
        found: list[tuple[int, int]] = []
        for buffer in buffers:
            place, offset = buffer.place, buffer.offset
            start = place.at if place.kind in ("temporary", "saved") else 0
            if place.kind == "handle" or not isinstance(offset, int) or not isinstance(start, int):
                return None
            found.append((slot_of(place, self._program), start + offset * DTYPES[buffer.dtype].itemsize))
        return found

    # ---- control flow

    def _branch(self, step: Branch) -> Action:
        then, otherwise = self._sequence(step.then), self._sequence(step.otherwise)

        def run(frame: Frame) -> None:
            (then if frame.tensor(step.condition).item() else otherwise)(frame)

        return run

    def _loop(self, step: Loop) -> Action:
        condition, body = self._sequence(step.condition), self._sequence(step.body)
        flag = step.flag

        def repeat(frame: Frame) -> None:
            while True:
                condition(frame)
                if flag is None or not frame.tensor(flag).item():
                    return
                body(frame)

        def count(frame: Frame) -> None:
            turns = range(evaluate(step.count, frame.sizes))
            for turn in reversed(turns) if step.reverse else turns:
                frame.sizes[step.variable] = turn
                body(frame)

        return count if flag is None else repeat


def _in_order(actions: Sequence[Action]) -> Action:
    def run(frame: Frame) -> None:
        for action in actions:
            action(frame)

    return run


def _on_tensors(step: KernelCall, run_kernel: OnTensors, starts: Sequence[int], device: torch.device) -> Action:
    reads = step.reads
    buffers = [replace(b, offset=b.offset - n) for b, n in zip(step.buffers, starts, strict=True)]

    def run(frame: Frame) -> None:
        operands = [frame.tensor(b) for b in buffers[:reads]]
        with torch.device(device):
            made = run_kernel(operands, frame.sizes)
        for result, buffer in zip(made, buffers[reads:], strict=True):
            frame.tensor(buffer).copy_(result)

    return run


def _library(step: LibraryCall) -> Action:
    call = library_call(step)

    def run(frame: Frame) -> None:
        try:
            made = call(frame.tensor, frame.sizes)
        except Exception as error:
            if step.location is not None:
                error.add_note(f"in '{step.symbol}' from {step.location}")
            raise
        for buffer, result in zip(step.results, made, strict=True):
            if buffer.place.kind == "handle":
                frame.handles[cast(int, buffer.place.at)] = result

    return run


def _copy(frame: Frame, step: Copy) -> None:
    frame.tensor(step.target).copy_(frame.tensor(step.source))


def _exchange(frame: Frame, step: Exchange) -> None:
    """Every source is read before any target is written."""
    sources = [frame.tensor(c.source) for c in step.copies]
    if len(sources) > 1:
        sources = [s.clone() for s in sources]
    for source, copy in zip(sources, step.copies, strict=True):
        frame.tensor(copy.target).copy_(source)


def _forget(numbers_: Sequence[int]) -> Action:
    def run(frame: Frame) -> None:
        for number in numbers_:
            frame.handles.pop(number, None)

    return run


def _last_uses(steps: Sequence[Step], given: Container[object]) -> dict[int, list[int]]:
    """Step -> the tensors made by library calls that nothing after it touches and that are no results."""
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for part in flat([step]):
            for buffer in touched(part):
                if buffer.place.kind == "handle" and buffer.place.at not in given:
                    last[cast(int, buffer.place.at)] = number
    found: dict[int, list[int]] = {}
    for handle, number in last.items():
        found.setdefault(number, []).append(handle)
    return found
