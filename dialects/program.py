"""The native call as data: what it takes and gives, where values live, which steps it runs.

Read off a function at the kernel level by code generation, obeyed by the runtime; no IR objects inside, so that a
program can be stored and loaded without compiling anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from isthmus.diagnostics import SourceLocation
from isthmus.ir import LiteralValue, Shape, contiguous_strides, itemsize
from isthmus.sizes import Dim, evaluate

PlaceKind: TypeAlias = Literal["argument", "output", "temporary", "saved", "handle"]

Route: TypeAlias = Literal["gemm", "shim", "dispatcher", "python"]
"""How a library call is made: BLAS on raw pointers, torch's C function, torch's dispatcher by name, or Python."""


ERROR_SPACING = 16
"""Bytes from the error word of one launch to that of the next, where a program on a device has several."""


@dataclass(frozen=True)
class Place:
    """Where memory is: argument or result number, byte offset in an arena, or number of a tensor that a call made."""

    kind: PlaceKind
    at: Dim


@dataclass(frozen=True)
class Buffer:
    """A strided view of memory: strides and offset in elements."""

    place: Place
    dtype: str
    shape: Shape
    strides: Shape
    offset: Dim = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether it is row-major from the start of its memory."""
        return self.offset == 0 and self.strides == contiguous_strides(self.shape)

    @property
    def bytes(self) -> Dim:
        """Bytes of its elements."""
        total: Dim = itemsize(self.dtype)
        for size in self.shape:
            total = total * size
        return total


@dataclass(frozen=True)
class Argument:
    """One argument of the call: a tensor, an int that carries a size, or a saved value.

    A `saved` argument can be read from the arena that the forward call left (at this byte offset) instead. Arguments
    of one `storage` may share memory, others do not.
    """

    dtype: str
    shape: Shape
    strides: Shape
    is_size: bool = False
    saved: Dim | None = None
    name: str = ""
    storage: int = 0


@dataclass(frozen=True)
class SizeSource:
    """Where a symbol is read: a dimension of an argument, or an int argument (dimension None)."""

    name: str
    argument: int
    dimension: int | None = None


@dataclass(frozen=True)
class TensorMap:
    """A buffer of a kernel as its GPU's copy engine sees it: boxes of a tensor, innermost dim first.

    `strides`: bytes from neighbour to neighbour along each dim but the innermost; `box`: elements that one copy moves,
    128 bytes of them along the innermost dim, swizzled in shared memory; `offset`: bytes from the buffer's pointer.
    dtype "tf32": f32 that a copy rounds to 10 bits of mantissa.
    """

    buffer: int
    dtype: str
    shape: Shape
    strides: Shape
    box: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class KernelCall:
    """Partitions 0 .. partitions of a kernel on buffers: operands, then results.

    The first `reads` buffers are operands. `symbols` are the sizes that the kernel gets, in its order: symbols of the
    program, or numbers where code for any length serves. `checks`: per index check of the kernel the dimension and its
    size; None where the kernel cannot fail and takes no error word.
    """

    symbol: str
    buffers: tuple[Buffer, ...]
    reads: int
    symbols: tuple[str | int, ...] = ()
    partitions: Dim = 1
    checks: tuple[tuple[int, Dim], ...] | None = None
    location: SourceLocation | None = None
    rechecks: bool = False
    """Whether it can fail only where an earlier kernel of the program has failed."""


@dataclass(frozen=True)
class LibraryCall:
    """A call of an operator by name, `prim.dot` or an ATen overload: operands in, results written or made.

    `arguments` are those of the operator, with `Operand(i)` for operand i; for a primitive [key, value] pairs.
    """

    symbol: str
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    arguments: tuple[LiteralValue, ...] = ()
    route: Route = "python"
    schema: str | None = None
    location: SourceLocation | None = None


@dataclass(frozen=True)
class Copy:
    """The elements of `source` into `target`, of the same shape and dtype."""

    source: Buffer
    target: Buffer


@dataclass(frozen=True)
class Exchange:
    """Copies that happen at once: every source is read before any target is written."""

    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Branch:
    """One of two runs of steps, by a boolean in memory."""

    condition: Buffer
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


@dataclass(frozen=True)
class Loop:
    """Steps that are repeated: while `flag`, which the steps of `condition` set, is true; or `count` times.

    In a counted loop the symbol `variable` is the number of the turn, which runs backwards if `reverse`.
    """

    body: tuple[Step, ...]
    condition: tuple[Step, ...] = ()
    flag: Buffer | None = None
    count: Dim = 0
    variable: str = ""
    reverse: bool = False


Step: TypeAlias = KernelCall | LibraryCall | Copy | Exchange | Branch | Loop


def inside(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The runs of steps that a step holds."""
    if isinstance(step, Branch):
        return (step.then, step.otherwise)
    return (step.condition, step.body) if isinstance(step, Loop) else ()


def flat(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps in the order of their numbers: each before those that it holds."""
    for step in steps:
        yield step
        for run in inside(step):
            yield from flat(run)


def touched(step: Step) -> tuple[Buffer, ...]:
    """The memory that a step itself reads or writes."""
    if isinstance(step, KernelCall):
        return step.buffers
    if isinstance(step, LibraryCall):
        return (*step.operands, *step.results)
    if isinstance(step, Copy):
        return (step.source, step.target)
    if isinstance(step, Exchange):
        return tuple(b for copy in step.copies for b in (copy.source, copy.target))
    if isinstance(step, Branch):
        return (step.condition,)
    return () if step.flag is None else (step.flag,)


@dataclass(frozen=True)
class Program:
    """One direction as a native call `run(arguments, outputs, temporary, saved, sizes, handles)`.

    `results` are those of the function in order; the first `kept` of them are the caller's, the rest is handed to the
    backward. `handles` counts the tensors that library calls make. `saved_at`: byte offsets of saved values in the
    arena that the backward reads. `extra_sizes`: symbols that only arguments in the arena show; where the arena is
    used, their values are passed as ints after the arguments.

    The array `handles` has two more entries: a number by which the runtime knows the program, and the error word of
    the kernel that failed. The status is 0, or 1 + the number of the step that failed (`flat` counts).
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Buffer, ...]
    kept: int
    steps: tuple[Step, ...]
    symbols: tuple[SizeSource, ...] = ()
    temporary_bytes: Dim = 0
    saved_bytes: Dim = 0
    handles: int = 0
    saved_at: tuple[tuple[int, Dim], ...] = ()
    extra_sizes: tuple[SizeSource, ...] = ()

    @property
    def library_calls(self) -> tuple[LibraryCall, ...]:
        """The calls into the library, in order."""
        return tuple(s for s in flat(self.steps) if isinstance(s, LibraryCall))

    @property
    def sizes_wanted(self) -> tuple[str, ...]:
        """Symbols whose values a backward is told beside its arguments."""
        return tuple(source.name for source in self.extra_sizes)

    @property
    def saves_in_arena(self) -> bool:
        """Whether all that is saved, but arguments and results, is in the arena."""
        kept = {b.place for b in self.results[: self.kept]}
        return all(b.place.kind in ("saved", "argument") or b.place in kept for b in self.results[self.kept :])

    @property
    def saved_elsewhere(self) -> frozenset[int]:
        """Which of the saved values lie in arguments, or in results that the caller keeps."""
        return frozenset(j for j, b in enumerate(self.results[self.kept :]) if b.place.kind != "saved")

    @property
    def handed_over(self) -> tuple[int, ...]:
        """The results that lie where saved arguments were, in the arena."""
        in_arena = {Place("argument", k) for k, argument in enumerate(self.arguments) if argument.saved is not None}
        return tuple(k for k, buffer in enumerate(self.results[: self.kept]) if buffer.place in in_arena)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels that it runs, each once."""
        return tuple(dict.fromkeys(s.symbol for s in self.kernel_calls))

    @property
    def kernel_calls(self) -> tuple[KernelCall, ...]:
        """The kernel launches, in order."""
        return tuple(s for s in flat(self.steps) if isinstance(s, KernelCall))

    def step(self, number: int) -> Step:
        """A step by its number."""
        return next(s for k, s in enumerate(flat(self.steps)) if k == number)

    def sizes(self, shapes: Sequence[Sequence[int] | int]) -> dict[str, int]:
        """The values of the symbols in a call with arguments of these shapes (ints as they are)."""
        found: dict[str, int] = {}
        for source in self.symbols:
            shape = shapes[source.argument]
            if isinstance(shape, int):
                found[source.name] = shape
            else:
                assert source.dimension is not None
                found[source.name] = shape[source.dimension]
        return found


def numbers(dims: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape or strides in numbers."""
    return tuple(evaluate(d, sizes) for d in dims)
