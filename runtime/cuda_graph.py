"""A program as a CUDA graph: captured at its second call with arguments of the same shapes, replayed from then on.

What an argument's memory is decides how the graph reads it: at the place where it was in both calls (parameters, what a
forward left for its backward), or from a buffer of the graph that each call copies into. A place that changes later is
found out, and the graph is captured again. Small results are copied out of the graph's memory. Large ones are handed
out as they are: a result that is still held at the next call keeps its memory (that call runs without a graph), and is
copied from then on.

Where launches can fail there are two graphs that share their memory: after the first nothing fails any more, and the
host looks at what it found while the second runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import torch
from torch import Tensor

from isthmus.dialects.program import Branch, Loop, Program, flat
from isthmus.runtime.arena import ArenaPool, Lease
from isthmus.runtime.convention import Value
from isthmus.runtime.device_program import DeviceProgram
from isthmus.runtime.device_steps import Frame
from isthmus.runtime.fresh import on_its_own
from isthmus.runtime.torch_private import (
    copy_all,
    current_stream,
    device_is_current,
    is_capturing,
    library_settings,
    restore_generator,
    storage_uses,
)

_CAPTURES = 6
"""Captures for one set of shapes, before the program runs without a graph."""
_LARGE = 1 << 20
"""Bytes of a result whose copy would cost more than a look at who holds it."""
_SHAPES = 16
"""Sets of shapes that have a graph at the same time."""

_CAPTURING = threading.RLock()
"""One capture at a time: each begins by waiting for its device and giving memory back."""

Key: TypeAlias = tuple[object, ...]


@dataclass
class _Recorded:
    """What is known about the calls with one set of shapes."""

    places: list[int]
    """Data pointers of the arguments in the last call, 0 for numbers."""
    moving: set[int] = field(default_factory=set[int])
    """Arguments that were somewhere else once."""
    captures: int = 0
    first: torch.cuda.CUDAGraph | None = None
    """The steps up to the last that can fail."""
    rest: torch.cuda.CUDAGraph | None = None
    buffers: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Argument -> where the graph reads it."""
    results: list[Tensor | int] = field(default_factory=list[Tensor | int])
    """Where the graph leaves each result; a number is an argument that is written in place."""
    holders: dict[int, int] = field(default_factory=dict[int, int])
    """Results that are handed out as they are -> how many tensors hold their memory when nobody else does."""
    copied: set[int] = field(default_factory=set[int])
    """Results that somebody held on to until the next call: they are copied from then on."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    arena: Tensor | None = None
    lease: weakref.ref[Lease] | None = None
    pool_bytes: int = 0
    """What the allocator took for the graph's own memory."""

    @property
    def is_captured(self) -> bool:
        """Whether there is something to replay."""
        return self.first is not None or self.rest is not None

    def forget(self) -> None:
        """Let go of the graph; its memory stays with whoever holds some of it."""
        self.first = self.rest = None
        self.results, self.holders, self.pool_bytes = [], {}, 0

    def is_free(self) -> bool:
        """Whether nobody looks at what the last call left."""
        if held := [k for k, n in self.holders.items() if storage_uses(cast(Tensor, self.results[k])) > n]:
            self.copied.update(held)
            self.forget()
            return False
        if self.arena is None:
            return True
        lease = self.lease() if self.lease is not None else None
        return (lease is None or lease.tensor is None) and storage_uses(self.arena) <= 1

    @property
    def extra_bytes(self) -> int:
        """Device memory that is held for replays."""
        static = [*self.buffers.values(), *([] if self.arena is None else [self.arena])]
        return self.pool_bytes + sum(t.nbytes for t in static)


def _stream_for_products(device: torch.device) -> torch.cuda.Stream:
    """A stream that has cuBLAS's workspace before anything is captured: else each graph's pool holds one of its own."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.no_grad():
        x = torch.zeros(16, 16, device=device)
        torch.mm(x, x)
    torch.cuda.current_stream(device).wait_stream(stream)
    return stream


def _silent(text: str) -> None:
    del text


class GraphedProgram:
    """A `DeviceProgram` whose calls are replays where they can be; safe to call from several threads.

    `note` is told of each capture, and why there is none.
    """

    fresh = True

    def __init__(self, inner: DeviceProgram, note: Callable[[str], None] = _silent) -> None:
        self.inner = inner
        self.native = inner.native
        self.captures = 0
        self.replays = 0
        self._recorded: dict[Key, _Recorded] = {}
        self._calls_library = bool(inner.program.library_calls)
        self._nowhere = ArenaPool(keep=0, device=str(inner.device))
        self._lock = threading.RLock()
        self._note = note
        self._stream: torch.cuda.Stream | None = None
        self.refusal = self._why_not()
        """Why the program never becomes a graph; empty where it can be one."""
        if self.refusal:
            note(f"@{self.program.name} runs without a graph: {self.refusal}")

    def _why_not(self) -> str:
        if self.inner.device.type != "cuda":
            return "not on a GPU"
        if self.inner.fallbacks:
            return f"not all of it is machine code ({', '.join(name for name, _ in self.inner.fallbacks)})"
        if waiting := [c.symbol for c in self.program.library_calls if _waits(c.symbol)]:
            return f"{waiting[0]} waits for the device"
        return "the host decides what runs by numbers on the device" if _has_flags(self.program) else ""

    @property
    def program(self) -> Program:
        """The program."""
        return self.inner.program

    @property
    def fallbacks(self) -> tuple[tuple[str, str], ...]:
        """See DeviceProgram."""
        return self.inner.fallbacks

    @property
    def sizes_wanted(self) -> tuple[str, ...]:
        """See DeviceProgram."""
        return self.inner.sizes_wanted

    @property
    def saves_in_arena(self) -> bool:
        """See DeviceProgram."""
        return self.inner.saves_in_arena

    @property
    def saved_elsewhere(self) -> frozenset[int]:
        """See DeviceProgram."""
        return self.inner.saved_elsewhere

    @property
    def extra_bytes(self) -> int:
        """Device memory that graphs hold beside what a call without one would use while it runs."""
        return sum(known.extra_bytes for known in self._recorded.values())

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run; a program that saves intermediates gives them as tensors of their own, without a graph."""
        if self.inner.saves or len(self.program.results) != self.program.kept:
            return self.inner(arguments)
        found = self._replayed(arguments, None)
        return self.inner(arguments) if found is None else found[0]

    def save_in_arena(self, arguments: list[Value], /) -> tuple[list[Tensor], Lease | None]:
        """See DeviceProgram."""
        found = self._replayed(arguments, None)
        return self.inner.save_in_arena(arguments) if found is None else found

    def run_from_arena(self, arguments: list[Value], arena: Tensor, /) -> list[Tensor]:
        """See DeviceProgram."""
        found = self._replayed(arguments, arena)
        return self.inner.run_from_arena(arguments, arena) if found is None else found[0]

    # ---- replays

    def _replayed(self, arguments: list[Value], arena: Tensor | None) -> tuple[list[Tensor], Lease | None] | None:
        """Run as a graph; None where the call has to run without one."""
        device = self.inner.device
        if self.refusal:
            return None
        if not device_is_current(device):
            with torch.cuda.device(device):
                return self._replayed(arguments, arena)
        if is_capturing(device):
            return None
        settings = library_settings() if self._calls_library else ()  # a graph has those of its capture
        shapes = [(a.shape, a.stride()) if isinstance(a, Tensor) else a for a in arguments]
        key = (current_stream(device), settings, *shapes)
        given = [*arguments, arena]
        places = [a.data_ptr() if isinstance(a, Tensor) else 0 for a in given]
        with self._lock, torch.no_grad():
            known = self._recorded.get(key)
            same = known is not None and known.is_captured and places == known.places
            if not same and any(isinstance(a, Tensor) and a.device != device for a in arguments):
                return None  # at the same addresses they are on the same device
            if known is None:
                if len(self._recorded) < _SHAPES:
                    self._recorded[key] = _Recorded(places)
                return None
            if not known.is_free() or not ((known.is_captured and same) or self._has_graph(known, given, places)):
                return None
            return self._replay(known, arguments)

    def _has_graph(self, known: _Recorded, given: list[Value], places: list[int]) -> bool:
        """Whether there is a graph that reads these arguments where they are; captured here if need be."""
        moved = {k for k, (a, b) in enumerate(zip(known.places, places, strict=True)) if a != b} - known.moving
        known.places = places
        if known.is_captured and not moved:
            return True
        if known.captures >= _CAPTURES // 2:  # nothing but what cannot move is taken to stay
            moved = set(range(len(given)))
        known.moving |= {k for k in moved if self._may_move(k, given)}
        if known.captures >= _CAPTURES:
            if known.is_captured:
                self._note(f"@{self.program.name} runs without a graph: its arguments are somewhere else each time")
            known.forget()
            return False
        known.captures += 1
        try:
            self._capture(known, given)
        except RuntimeError as error:  # a library call that waits for the device, or no memory for a second copy
            known.forget()
            restore_generator(self.inner.device)
            self.refusal = f"it cannot be captured ({str(error).splitlines()[0]})"
            self._note(f"@{self.program.name} runs without a graph: {self.refusal}")
            return False
        return True

    def _may_move(self, k: int, given: list[Value]) -> bool:
        """Whether an argument may be read from a copy: not if it is written in place, nor the arena as a whole."""
        numbers = self._numbers(given[-1] is not None)
        return k < len(numbers) and numbers[k] not in self.inner.takes.written

    def _numbers(self, in_arena: bool) -> list[int]:
        """The numbers in the program of the arguments that are given: those in the arena are not."""
        return [k for k, a in enumerate(self.program.arguments) if not in_arena or a.saved is None]

    def _capture(self, known: _Recorded, given: list[Value]) -> None:
        inner, arena = self.inner, cast("Tensor | None", given[-1])
        known.forget()
        with _CAPTURING, inner.entered():
            values, known.sizes = inner.takes.bound(given[:-1], in_arena=arena is not None)
            known.buffers = self._buffers(known, given, values)
            if arena is None and inner.saves:
                if known.arena is None:
                    known.arena = inner.new_arena(known.sizes)
                arena = known.arena
            torch.cuda.synchronize(inner.device)
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(inner.device)
            frame = self._record(known, values, arena)
            results = [inner.result(b, frame) for b in self.program.results[: self.program.kept]]
            known.pool_bytes = torch.cuda.memory_reserved(inner.device) - before
        places = {id(v): k for k, v in enumerate(given)}
        known.results = [places.get(id(r), r) for r in results]
        del frame, results, values
        known.holders = {
            k: storage_uses(r)
            for k, r in enumerate(known.results)
            if isinstance(r, Tensor) and r.nbytes >= _LARGE and k not in known.copied
        }
        self.captures += 1
        self._note(f"@{self.program.name} captured, {known.extra_bytes / 2**20:.1f} MiB held for replays")

    def _record(self, known: _Recorded, values: list[Value], arena: Tensor | None) -> Frame:
        """Capture the steps as one graph or two that share a pool of memory; gives where everything is."""
        inner = self.inner
        _ = inner.errors.address  # made before: it outlives the graph
        if self._stream is None:
            self._stream = _stream_for_products(inner.device)
        pool = torch.cuda.graph_pool_handle()
        frame: Frame | None = None
        first, rest = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        if inner.errors:
            with torch.cuda.graph(first, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                frame = inner.prepare(values, known.sizes, arena)
                inner.run_first(frame)
            known.first = first
        if frame is None or not inner.rest_is_empty:
            with torch.cuda.graph(rest, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                frame = frame or inner.prepare(values, known.sizes, arena)
                inner.run_rest(frame)
            known.rest = rest
        return frame

    def _buffers(self, known: _Recorded, given: list[Value], values: list[Value]) -> dict[int, Tensor]:
        """Where the graph reads what is not always at one place, or not laid out as the program takes it."""
        found: dict[int, Tensor] = {}
        for k, number in enumerate(self._numbers(given[-1] is not None)):
            value = values[number]
            if not isinstance(value, Tensor):
                continue
            if value is not given[k]:
                found[k] = value
            elif k in known.moving:
                buffer = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                found[k] = values[number] = buffer.copy_(value)
        return found

    def _replay(self, known: _Recorded, arguments: list[Value]) -> tuple[list[Tensor], Lease | None]:
        if known.buffers:
            sources = [cast(Tensor, arguments[k]) for k in known.buffers]
            copy_all(list(known.buffers.values()), sources)
        self.replays += 1
        if known.first is None:
            assert known.rest is not None
            known.rest.replay()
        else:
            with self.inner.errors.lock:
                known.first.replay()
                self.inner.errors.mark()
                if known.rest is not None:
                    known.rest.replay()
                self.inner.errors.check(lambda: known.sizes)
        lease = None
        if known.arena is not None:
            lease = Lease(known.arena, self._nowhere)
            known.lease = weakref.ref(lease)
        return self._given(known, arguments), lease

    def _given(self, known: _Recorded, arguments: Sequence[Value]) -> list[Tensor]:
        """The results: small ones are copied, large ones handed out until the next call finds that they are held."""
        found: list[Tensor] = []
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        for k, result in enumerate(known.results):
            if isinstance(result, int):
                found.append(cast(Tensor, arguments[result]))
                continue
            if k in known.holders:
                found.append(on_its_own(result))
                continue
            fresh = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
            found.append(fresh)
            sources.append(result)
            targets.append(fresh)
        if targets:
            copy_all(targets, sources)
        return found


def _waits(symbol: str) -> bool:
    """Whether a library call looks at numbers on the host: linear algebra does."""
    name = symbol.removeprefix("aten.").removeprefix("_")
    return name.startswith(_LINEAR_ALGEBRA) and not name.startswith("linalg_vector_norm")


_LINEAR_ALGEBRA = (
    *("linalg_", "cholesky", "svd", "qr", "geqrf", "ormqr", "lu_", "logdet", "pinverse"),
    "triangular_solve",
)


def _has_flags(program: Program) -> bool:
    """Whether the host has to look at numbers on the way."""
    return any(isinstance(s, Branch) or (isinstance(s, Loop) and s.flag is not None) for s in flat(program.steps))
