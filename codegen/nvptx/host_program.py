"""A whole direction for a GPU as one native function of the host: launches and library calls in order on a stream.

    i32 @run(ptr %arguments, ptr %outputs, ptr %temporary, ptr %saved, ptr %sizes, ptr %handles)

As the CPU's, but kernels are launched by the driver's own function, memory is the device's, and `handles` has more
words at its end. The status is 0, `DECLINED` where nothing has run because a buffer is not where the code takes it to
be, or 1 + the number of the step that failed; the error word then is what the driver said.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd
from typing import Protocol

from isthmus import ir
from isthmus.codegen.cpu.aten import aten_call
from isthmus.codegen.cpu.dispatch import blob, empty, keep
from isthmus.codegen.cpu.dispatch_keys import exclude_keys, include_keys
from isthmus.codegen.cpu.frame import Frame, Tensors
from isthmus.codegen.cpu.native_call import Call, has_call
from isthmus.codegen.cpu.program import Steps
from isthmus.codegen.cpu.sizes import SizeValues, product
from isthmus.codegen.llvm_text import I8, I32, I64, PTR, Module, Value
from isthmus.codegen.nvptx.host_products import emit_product, plan_product
from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import (
    ERROR_SPACING,
    Branch,
    Buffer,
    Copy,
    Exchange,
    KernelCall,
    LibraryCall,
    Loop,
    Program,
    Step,
    TensorMap,
    flat,
)
from isthmus.sizes import Dim, Size

STREAM, ERRORS, SEEN, EVENT = range(4)
"""Words behind those of the CPU's `handles`: the stream; where launches note errors (device memory); where the host
looks at them; the event that tells that they are there."""
DECLINED = -1
_LONG = 24
"""Launches in a row that are worth letting other Python threads run."""


class Launched(Protocol):
    """How a kernel is launched (see GpuKernel)."""

    @property
    def block(self) -> int: ...
    @property
    def grid(self) -> Dim: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def symbols(self) -> tuple[str, ...]: ...
    @property
    def maps(self) -> tuple[TensorMap, ...]: ...
    @property
    def resident(self) -> int: ...


ANYWHERE = "_anywhere"
"""Follows a kernel's name where its code takes buffers at any address."""


def refusal(program: Program, launches: Mapping[str, Launched]) -> str:
    """Say why a program has no such function; empty where it has one."""
    if not has_call(program):
        return "it saves tensors one by one"
    unsure = False
    for step in flat(program.steps):
        if isinstance(step, Branch | Loop | Exchange):
            return "its control flow is the host's"
        if isinstance(step, LibraryCall) and _route(step) is None:
            return f"'{step.symbol}' is called from Python"
        if isinstance(step, KernelCall):
            if step.symbol not in launches:
                return f"{step.symbol} is no machine code"
            if unsure and any(b.place.kind == "argument" for b in step.buffers[step.reads :]):
                return "it looks for errors before it writes arguments"
            unsure |= step.checks is not None and not step.rechecks
    return ""


def anywhere(program: Program, launches: Mapping[str, Launched], *, aligned_handles: bool = False) -> tuple[str, ...]:
    """Give the kernels whose buffers may turn out to be at any address, arguments apart.

    `aligned_handles`: whoever makes the library calls sees to it that what they give is aligned.
    """
    found = [
        s.symbol for s in program.kernel_calls if not _is_aligned(s, launches[s.symbol].alignment, aligned_handles)
    ]
    return tuple(dict.fromkeys(found))


def host_program_text(
    program: Program,
    facts: NativeFacts,
    launches: Mapping[str, Launched],
    tensors: Tensors,
    *,
    processors: int = 1,
) -> str:
    """Give the LLVM text of `@run` and `@call` for a program that `refusal` has nothing against.

    `processors`: how many the device has, for kernels of which so many blocks for each are enough.
    """
    module = Module()
    for name in (*program.kernels, *(f"{n}{ANYWHERE}" for n in anywhere(program, launches))):
        module.global_text(f"@{name} = external global i8")
    frame = Frame(module, program, tensors)
    f = frame.f
    guard = exclude_keys(f, facts) if program.library_calls or _has_copies(program) else None
    steps = _DeviceSteps(frame, launches, processors)
    steps.require_aligned()
    steps.emit(program.steps)
    f.line("br label %exit")
    f.start("exit")
    include_keys(f, guard)
    f.finish(f.load(frame.status, I32))
    _DeviceCall(module, program, facts).emit()
    return str(module)


def _has_copies(program: Program) -> bool:
    return any(isinstance(s, Copy) for s in program.steps)


def _route(call: LibraryCall) -> str | None:
    """How a call is made from machine code; None where only Python can make it."""
    if call.symbol == "prim.dot" and plan_product(call) is not None:
        return "product"
    if call.symbol.startswith("prim.attention") or not call.operands:
        return None
    found = aten_call(call)
    if found is None:
        return None
    pairs = zip(found.schema.arguments, found.arguments, strict=True)
    return None if any(a.base == "Device" and v is not None for a, v in pairs) else "dispatcher"


# ---- alignment


def divisor(dim: Dim) -> int:
    """A number that divides a size, whatever its symbols are; 0 divides zero alone."""
    return gcd(*(c for _, c in dim.terms)) if isinstance(dim, Size) else abs(dim)


def _offset(buffer: Buffer) -> Dim:
    """Bytes from the start of a buffer's memory: of the arena, of the argument."""
    start = buffer.place.at if buffer.place.kind in ("temporary", "saved") else 0
    return start + buffer.offset * ir.itemsize(buffer.dtype)


def _is_aligned(step: KernelCall, alignment: int, handles: bool = False) -> bool:
    """Whether all buffers are multiples of the alignment where arguments are, and maybe what library calls give."""
    own = all(handles or b.place.kind != "handle" for b in step.buffers)
    return own and all(divisor(_offset(b)) % alignment == 0 for b in step.buffers)


# ---- @run


@dataclass(frozen=True)
class _Parameters:
    """Memory for the values of a launch's parameters, for tensor maps behind them, and for the addresses of all."""

    values: Value
    maps: tuple[Value, ...]
    addresses: Value


_MAP_DTYPES = {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}
"""CUtensorMapDataType."""
_MAP_BYTES = 128
_NOT_INTERLEAVED, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE = 0, 3, 2, 0
"""CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill."""


class _DeviceSteps(Steps):
    """Writes the steps of a program on a device."""

    def __init__(self, frame: Frame, launches: Mapping[str, Launched], processors: int) -> None:
        super().__init__(frame)
        self._launches, self._processors = launches, processors
        calls = self._program.kernel_calls
        failing = [s for s in calls if s.checks is not None and not s.rechecks]
        self._word = {id(s): ERROR_SPACING * k for k, s in enumerate(failing)}
        self._last_failing = id(failing[-1]) if failing else 0
        most = max((len(s.buffers) + 1 + len(s.symbols) for s in calls), default=1)
        self._parameters = self._room(most)

    def _room(self, count: int, maps: Sequence[TensorMap] = ()) -> _Parameters:
        f = self._f
        values, addresses = f.slot(I64, count, align=16), f.slot(PTR, count + len(maps), align=16)
        room = tuple(f.slot(I8, _MAP_BYTES) for _ in maps)
        for k, place in enumerate([*(f.address(values, k, "i64") for k in range(count)), *room]):
            f.store(place, f.address(addresses, k, "ptr"))
        return _Parameters(values, room, addresses)

    def require_aligned(self) -> None:
        """Decline where an argument is not as aligned as the code of a kernel takes it to be."""
        f, frame = self._f, self._frame
        wanted: dict[int, int] = {}
        for step in self._program.kernel_calls:
            for buffer in step.buffers:
                if buffer.place.kind == "argument":
                    at = buffer.place.at
                    assert isinstance(at, int)
                    wanted[at] = max(wanted.get(at, 1), self._launches[step.symbol].alignment)
        low = f.const(0, I64)
        for at, alignment in wanted.items():
            if alignment > 1:
                low = low | (f.cast("ptrtoint", frame.argument(at), I64) & (alignment - 1))
        if low.constant is None:
            with frame.leaving(f.compare("ne", low, 0), DECLINED):
                pass

    def _kernels(self, first: int, run: Sequence[KernelCall]) -> None:
        for number, step in enumerate(run, first):
            self._launch(number, step)

    def _launch(self, number: int, step: KernelCall) -> None:
        f, frame, facts = self._f, self._frame, self._launches[step.symbol]
        symbols = {own: self._symbol(name) for own, name in zip(facts.symbols, step.symbols, strict=True)}
        size = SizeValues(f, symbols)
        with self._where_it_matters(step, size(facts.grid)) as grid:
            words = [f.cast("ptrtoint", frame.address(b), I64) for b in step.buffers]
            code = self._code(step, facts, words)
            if step.checks is not None:
                spare = ERROR_SPACING * len(self._word)
                words.append(frame.extra(ERRORS) + self._word.get(id(step), spare))
            words += symbols.values()
            parameters = self._room(len(words), facts.maps) if facts.maps else self._parameters
            for k, word in enumerate(words):
                f.store(word, f.address(parameters.values, k, "i64"))
            for map_, place in zip(facts.maps, parameters.maps, strict=True):
                self._describe(number, map_, place, words[map_.buffer], size)
            if facts.resident:
                most = f.const(facts.resident * self._processors, I64)
                grid = f.select(f.compare("slt", grid, most), grid, most)
            one, none = f.const(1, I32), Value(f, "null", PTR)
            stream = f.cast("inttoptr", frame.extra(STREAM), PTR)
            block, shared = f.const(facts.block, I32), f.const(facts.shared_bytes, I32)
            sizes = (f.cast("trunc", grid, I32), one, one, block, one, one, shared)
            status = f.call("cuLaunchKernel", I32, code, *sizes, stream, parameters.addresses, none)
            self._require_success(number, status)
        if id(step) == self._last_failing:
            self._publish(number)

    @contextmanager
    def _where_it_matters(self, step: KernelCall, grid: Value) -> Generator[Value]:
        """Nothing is launched where there are no blocks, or no result has an element; gives the number of blocks."""
        f, frame = self._f, self._frame
        counts = [product(b.shape) for b in step.buffers[step.reads :]]
        if grid.constant and any(isinstance(n, int) and n for n in counts):
            yield grid
            return
        elements = f.const(0, I64)
        for count in counts:
            elements = elements | frame.size(count)
        some = f.compare("sgt", grid, 0) & f.compare("ne", elements, 0)
        with f.when(some):
            yield grid

    def _code(self, step: KernelCall, facts: Launched, words: Sequence[Value]) -> Value:
        """The function: that for any address where a buffer turns out not to be aligned."""
        f = self._f
        code = Value(f, f"@{step.symbol}", PTR)
        if _is_aligned(step, facts.alignment):
            return code
        low = words[0]
        for word in words[1:]:
            low = low | word
        aligned = f.compare("eq", low & (facts.alignment - 1), 0)
        return f.select(aligned, code, Value(f, f"@{step.symbol}{ANYWHERE}", PTR))

    def _publish(self, number: int) -> None:
        """After the last launch that can fail: what all have found goes to the host."""
        f, frame = self._f, self._frame
        stream = f.cast("inttoptr", frame.extra(STREAM), PTR)
        size = f.const(ERROR_SPACING * len(self._word), I64)
        seen, event = (f.cast("inttoptr", frame.extra(k), PTR) for k in (SEEN, EVENT))
        status = f.call("cuMemcpyDtoHAsync_v2", I32, seen, frame.extra(ERRORS), size, stream)
        status = status | f.call("cuEventRecord", I32, event, stream)
        self._require_success(number, status)

    def _require_success(self, number: int, status: Value) -> None:
        f, frame = self._f, self._frame
        with frame.failing(f.compare("ne", status, 0), number):
            f.store(f.cast("zext", status, I64), frame.error_word)

    def _describe(self, number: int, map_: TensorMap, place: Value, base: Value, size: SizeValues) -> None:
        """Tell the copy engine about a tensor: rows of 128 bytes, swizzled; what lies outside is read as 0."""
        f, rank = self._f, len(map_.shape)
        shape, strides = self._longs(map_.shape, size), self._longs(map_.strides, size)
        box = self._frame.constant_array("i32", [str(n) for n in map_.box])
        steps = self._frame.constant_array("i32", ["1"] * rank)
        address = f.cast("inttoptr", base + map_.offset, PTR)
        kind, count = f.const(_MAP_DTYPES[map_.dtype], I32), f.const(rank, I32)
        modes = [f.const(n, I32) for n in (_NOT_INTERLEAVED, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE)]
        arguments = (place, kind, count, address, shape, strides, box, steps, *modes)
        self._require_success(number, f.call("cuTensorMapEncodeTiled", I32, *arguments))

    def _longs(self, dims: Sequence[Dim], size: SizeValues) -> Value:
        f = self._f
        array = f.slot(I64, max(1, len(dims)), align=8)
        for k, dim in enumerate(dims):
            f.store(size(dim), f.address(array, k, "i64"))
        return array

    def _symbol(self, name: str | int) -> Value:
        return self._f.const(name, I64) if isinstance(name, int) else self._frame.size.symbol(name)

    # ---- library calls

    def _single(self, number: int, step: Step) -> None:
        if isinstance(step, Copy):
            self._copy(number, step)
        else:
            super()._single(number, step)

    def _copy(self, number: int, step: Copy) -> None:
        f = self._f
        target, source = blob(self._frame, step.target), blob(self._frame, step.source)
        status = f.call("aoti_torch_copy_", I32, target, source, f.const(0, I32))
        for handle in (target, source):
            f.call("aoti_torch_delete_tensor_object", I32, handle)
        self._check(number)(status)

    def _check(self, number: int) -> Callable[[Value], None]:
        def check(status: Value) -> None:
            with self._frame.failing(self._f.compare("ne", status, 0), number):
                self._f.store(self._f.const(0, I64), self._frame.error_word)

        return check

    def _library(self, number: int, call: LibraryCall) -> None:
        if _route(call) == "product":
            for result in call.results:
                if result.place.kind == "handle":
                    keep(self._frame, empty(self._frame, result), result)
            views = plan_product(call)
            assert views is not None
            emit_product(self._frame, views, self._check(number))
        else:
            self._dispatch(number, call, self._check(number))

    def _refused(self, number: int, call: LibraryCall) -> None:
        """A result of another shape or dtype."""
        self._f.store(self._f.const(0, I64), self._frame.error_word)


# ---- @call


class _DeviceCall(Call):
    """The builtin: behind the arenas it takes the stream."""

    leading = 3
    reuses = False
    constants = ("isthmus_error_words", "isthmus_seen_words", "isthmus_event")

    def _is_long(self) -> bool:
        return bool(self._program.library_calls) or len(self._program.kernel_calls) > _LONG

    def _more_words(self) -> list[Value]:
        f = self._f
        stream = f.call("isthmus_integer", I64, f.load(f.address(f.arguments[1], 2, "ptr"), PTR))
        self._require(f.compare("sge", stream, 0))
        return [stream, *(f.load(Value(f, f"@{name}", PTR), I64) for name in self.constants)]
