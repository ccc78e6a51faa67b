"""Runs of kernels between library calls: one parallel region each, whose threads take partitions from counters.

A region is a list of groups, with a barrier before one that touches what a group before it writes. A group is one
kernel cut into partitions, or several kernels that are not cut and run on whichever thread comes first. Which thread
runs what changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from isthmus import ir
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.cpu.sizes import is_one
from isthmus.codegen.llvm_text import I32, I64, PTR, Function, Value
from isthmus.dialects.program import Argument, Buffer, KernelCall

LINE = 8
"""Words of a cache line: counters that threads write lie on lines of their own."""

TAKES = 4
"""How often a thread takes partitions of a kernel, were all equally fast: neighbours share what they pack or read."""


class Touched:
    """The memory that some kernels, which may run at once, read and write.

    Arguments of the program that are not given may share memory with each other.
    """

    def __init__(self, arguments: Sequence[Argument] = ()) -> None:
        self._storages = [a.storage for a in arguments]
        self._read: dict[object, list[Buffer]] = {}
        self._written: dict[object, list[Buffer]] = {}

    def add(self, kernel: KernelCall) -> None:
        """Let a kernel run too."""
        for k, buffer in enumerate(kernel.buffers):
            known = self._read if k < kernel.reads else self._written
            known.setdefault(self._memory(buffer), []).append(buffer)

    def meets(self, kernel: KernelCall) -> bool:
        """Whether a kernel may not run at once with these: one writes memory that the other touches."""
        for k, buffer in enumerate(kernel.buffers):
            memory = self._memory(buffer)
            others = self._written.get(memory, [])
            if k >= kernel.reads:
                others = [*others, *self._read.get(memory, [])]
            if any(_overlap(buffer, other) for other in others):
                return True
        return False

    def _memory(self, buffer: Buffer) -> object:
        """What tells apart memory that is never shared."""
        kind, at = buffer.place.kind, buffer.place.at
        if kind == "argument":
            return kind, self._storages[cast(int, at)] if self._storages else None
        return (kind, at) if kind in ("output", "handle") else kind


def _overlap(a: Buffer, b: Buffer) -> bool:
    """Whether two views of the same memory may meet; unknown sizes are anywhere, and so are arguments."""
    if a.place.kind in ("argument", "output", "handle"):
        return True
    here, there = _span(a), _span(b)
    return here is None or there is None or (here[0] < there[1] and there[0] < here[1])


def _span(buffer: Buffer) -> tuple[int, int] | None:
    """First byte and the one after the last; None where sizes are not known."""
    numbers = (buffer.place.at, buffer.offset, *buffer.shape, *buffer.strides)
    if not all(isinstance(n, int) for n in numbers):
        return None
    at, offset, *rest = cast("tuple[int, ...]", numbers)
    shape, strides = rest[: len(buffer.shape)], rest[len(buffer.shape) :]
    size = ir.itemsize(buffer.dtype)
    begin = at + offset * size
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return begin, begin + (reach * size if 0 not in shape else 0)


class KernelFrame:
    """The words that a run of kernels reads: pointers of buffers, sizes, partition counts, counters, error words.

    Filled by `@run` before the kernels start; threads of a region find everything at fixed places in it.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._stores: list[tuple[int, Value]] = []
        self.words = 0
        self._size_tables: dict[tuple[str | int, ...], int] = {}

    def reserve(self, count: int) -> int:
        """Give the place of `count` new words."""
        at, self.words = self.words, self.words + count
        return at

    def line(self) -> int:
        """Give a word on a cache line of its own."""
        self.words = -(-self.words // LINE) * LINE
        return self.reserve(LINE)

    def store(self, value: Value, at: int) -> None:
        """Fill a word when the kernels are about to start."""
        self._stores.append((at, value))

    def flush(self, words: Value) -> None:
        """Write the filling."""
        for at, value in self._stores:
            self._frame.f.store(value, self._frame.f.address(words, at, "i64"), align=8)
        self._stores.clear()

    def buffers(self, kernel: KernelCall) -> int:
        """Place of a kernel's pointers, the error word's last."""
        at = self.reserve(len(kernel.buffers) + (kernel.checks is not None))
        for k, buffer in enumerate(kernel.buffers):
            self.store(self._frame.address(buffer), at + k)
        return at

    def sizes(self, kernel: KernelCall) -> int:
        """Place of a kernel's sizes."""
        if kernel.symbols not in self._size_tables:
            at = self._size_tables[kernel.symbols] = self.reserve(max(1, len(kernel.symbols)))
            for k, size in enumerate(kernel.symbols):
                known = isinstance(size, int)
                self.store(self._frame.f.const(size, I64) if known else self._frame.size.symbol(size), at + k)
        return self._size_tables[kernel.symbols]


@dataclass(frozen=True)
class _Placed:
    """A kernel and where its words are."""

    kernel: KernelCall
    buffers: int
    sizes: int
    partitions: int | None
    error: int | None


Group = list[_Placed]
"""Kernels under one counter: one that is cut, or several that are not."""


def groups_of(kernels: Sequence[_Placed]) -> list[Group]:
    """Join neighbouring kernels that are not cut."""
    groups: list[Group] = []
    for kernel in kernels:
        if groups and not _is_cut(groups[-1]) and not _is_cut([kernel]):
            groups[-1].append(kernel)
        else:
            groups.append([kernel])
    return groups


def _is_cut(group: Group) -> bool:
    return not is_one(group[0].kernel.partitions)


def words_for(kernels: Sequence[KernelCall]) -> int:
    """Bound the words that a run of kernels needs."""
    return sum(len(k.buffers) + len(k.symbols) + 4 + 2 * LINE for k in kernels)


def emit_kernels(frame: Frame, words: Value, kernels: Sequence[tuple[int, KernelCall]], name: str) -> None:
    """Write a run of kernels (with their step numbers) into `@run`; `words` has room for `words_for` of them."""
    f = frame.f
    table = KernelFrame(frame)
    placed = [_place(frame, table, kernel) for _, kernel in kernels]
    for p in placed:
        if p.error is not None:
            table.store(f.const(0, I64), p.error)
            table.store(f.address(words, p.error, "i64"), p.buffers + len(p.kernel.buffers))
    groups = groups_of(placed)
    cut = [k for k, group in enumerate(groups) if _is_cut(group)]
    before, shared, after = groups, [], []
    if cut:  # what is not cut before and after needs no threads
        first, last = cut[0], cut[-1] + 1
        before, shared, after = groups[:first], groups[first:last], groups[last:]
    counters = [table.line() for _ in shared]
    for at in counters:
        table.store(f.const(0, I64), at)
    table.flush(words)
    _run_alone(f, words, before)
    if shared:
        _emit_region(frame, name, shared, counters)
        _start_region(frame, words, name, [p.kernel for group in shared for p in group])
    _run_alone(f, words, after)
    for (step, _), p in zip(kernels, placed, strict=True):
        if p.error is not None:
            _check(frame, words, p.error, step)


def _place(frame: Frame, table: KernelFrame, kernel: KernelCall) -> _Placed:
    partitions = None
    if not isinstance(kernel.partitions, int):
        partitions = table.reserve(1)
        table.store(frame.size(kernel.partitions), partitions)
    error = table.reserve(1) if kernel.checks is not None else None
    return _Placed(kernel, table.buffers(kernel), table.sizes(kernel), partitions, error)


def _call(f: Function, words: Value, p: _Placed, begin: Value, end: Value) -> None:
    buffers, sizes = (f.address(words, at, "i64") for at in (p.buffers, p.sizes))
    f.call_void(p.kernel.symbol, buffers, sizes, begin, end)


def _count(f: Function, words: Value, p: _Placed) -> Value:
    if p.partitions is not None:
        return f.load(f.address(words, p.partitions, "i64"), I64)
    assert isinstance(p.kernel.partitions, int)
    return f.const(p.kernel.partitions, I64)


def _taken_at_once(f: Function, total: Value) -> Value:
    """Partitions that a thread takes: all where it is alone, else few enough that a slow one keeps nobody waiting."""
    threads = f.cast("zext", f.call("omp_get_num_threads", I32), I64)
    shares = f.select(f.compare("sgt", threads, 1), threads * TAKES, 1)
    return f.intrinsic("smax", f.binary("sdiv", total, shares), f.const(1, I64))


def _run_alone(f: Function, words: Value, groups: Sequence[Group]) -> None:
    for p in (p for group in groups for p in group):
        _call(f, words, p, f.const(0, I64), _count(f, words, p))


def _emit_region(frame: Frame, name: str, groups: Sequence[Group], counters: Sequence[int]) -> None:
    """The function that every thread of the region runs."""
    f = Function(frame.module, name, [("words", PTR)], linkage="internal")
    (words,) = f.arguments
    running = Touched(frame.program.arguments)  # since the last barrier
    for group, counter in zip(groups, counters, strict=True):
        kernels = [p.kernel for p in group]
        if any(map(running.meets, kernels)):
            f.call_void("GOMP_barrier")
            running = Touched(frame.program.arguments)
        for kernel in kernels:
            running.add(kernel)
        cut = _is_cut(group)
        head, body, leave = f.label("take"), f.label("run"), f.label("taken")
        total = _count(f, words, group[0]) if cut else f.const(1, I64)
        step = _taken_at_once(f, total) if cut else f.const(1, I64)
        place = f.address(words, counter, "i64")
        f.line(f"br label %{head}")
        f.start(head)
        taken = f.emit(f"atomicrmw add ptr {place.name}, {step!r} monotonic", I64)
        f.line(f"br {f.compare('slt', taken, total)!r}, label %{body}, label %{leave}")
        f.start(body)
        if cut:
            _call(f, words, group[0], taken, f.intrinsic("smin", taken + step, total))
        else:
            _run_alone(f, words, [group])
        f.line(f"br label %{head}")
        f.start(leave)
    f.finish()


def _start_region(frame: Frame, words: Value, name: str, kernels: Sequence[KernelCall]) -> None:
    """Start the threads of torch's pool, but where sizes say that no kernel is cut."""
    f = frame.f
    region = Value(f, f"@{name}", PTR)
    unknown = [k.partitions for k in kernels if not isinstance(k.partitions, int)]
    zero = f.const(0, I32)
    if any(isinstance(k.partitions, int) and k.partitions > 1 for k in kernels):
        f.call_void("GOMP_parallel", region, words, zero, zero)
        return
    worth = f.compare("sgt", frame.size(unknown[0]), 1)
    for partitions in unknown[1:]:
        worth = worth | f.compare("sgt", frame.size(partitions), 1)
    threads = f.select(worth, zero, f.const(1, I32))
    f.call_void("GOMP_parallel", region, words, threads, zero)


def _check(frame: Frame, words: Value, error: int, step: int) -> None:
    f = frame.f
    word = f.load(f.address(words, error, "i64"), I64)
    with frame.failing(f.compare("ne", word, 0), step):
        f.store(word, frame.error_word)
