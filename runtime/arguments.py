"""The arguments of a compiled function, looked at one by one: wrong ones are named, other layouts laid out anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from isthmus.diagnostics import IRError
from isthmus.dialects.program import Argument, Copy, Exchange, KernelCall, LibraryCall, Program, flat, numbers
from isthmus.runtime.convention import Value
from isthmus.runtime.fresh import coerce, has_strides
from isthmus.runtime.interpret_table import DTYPES
from isthmus.sizes import Dim, evaluate


def typed(arena: Tensor, start: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The memory from byte `start` of an arena on, as a tensor."""
    if 0 in shape:
        return arena.new_empty(tuple(shape), dtype=dtype).as_strided(tuple(shape), tuple(strides))
    size = dtype.itemsize
    span = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * size
    memory = arena[start : start + span]
    if memory.storage_offset() % size:  # complex numbers in memory that is aligned for their parts
        part = torch.float32 if dtype == torch.complex64 else torch.float64
        halves = (*(2 * s for s in strides), 1)
        return torch.view_as_complex(typed(arena, start, part, (*shape, 2), halves))
    memory = memory.view(dtype)
    return memory.as_strided(tuple(shape), tuple(strides), memory.storage_offset())


def saved_view(argument: Argument, arena: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """A saved argument as a view of the arena that the forward left."""
    assert argument.saved is not None
    shape, strides = numbers(argument.shape, sizes), numbers(argument.strides, sizes)
    return typed(arena, evaluate(argument.saved, sizes), DTYPES[argument.dtype], shape, strides)


class Arguments:
    """The arguments of one program on one device."""

    def __init__(self, program: Program, device: torch.device, alignment: int = 1) -> None:
        """`alignment`: what addresses have to be multiples of; a tensor at another one is copied."""
        self.program = program
        self.device = device
        self._low = alignment - 1
        self.written = written(program)
        """Numbers of the arguments that are written in place."""
        self._plain = [_plain(a) for a in program.arguments]
        self._saved = frozenset(k for k, a in enumerate(program.arguments) if a.saved is not None)

    def checked(self, given: Sequence[Value], arena: Tensor | None) -> list[Value]:
        """The arguments in the order of the program; saved ones that are in the arena as its views."""
        found, sizes = self.bound(given, in_arena=arena is not None)
        for k, (argument, value) in enumerate(zip(self.program.arguments, found, strict=True)):
            if value is None and argument.saved is not None:
                assert arena is not None
                found[k] = saved_view(argument, arena, sizes)
        return found

    def bound(self, given: Sequence[Value], *, in_arena: bool) -> tuple[list[Value], dict[str, int]]:
        """The arguments in the order of the program, None for saved ones that are in the arena; the symbols' values."""
        found, sizes = self._passed(given, in_arena)
        for k, (argument, value) in enumerate(zip(self.program.arguments, found, strict=True)):
            if not (in_arena and k in self._saved) and not argument.is_size:
                found[k] = self._tensor(k, argument, value, sizes)
        return found, sizes

    def sizes_of_call(self, given: Sequence[Value], *, in_arena: bool) -> dict[str, int]:
        """The values of the symbols alone."""
        return self._passed(given, in_arena)[1] if self.program.symbols else {}

    def _passed(self, given: Sequence[Value], in_arena: bool) -> tuple[list[Value], dict[str, int]]:
        program = self.program
        missing = self._saved if in_arena else frozenset[int]()
        extra = len(program.extra_sizes) if missing else 0
        wanted = len(program.arguments) - len(missing) + extra
        if len(given) != wanted:
            raise IRError(f"@{program.name} takes {wanted} arguments, not {len(given)}")
        passed = iter(given)
        found: list[Value] = [None if k in missing else next(passed) for k in range(len(program.arguments))]
        return found, self.sizes(found, dict(zip([s.name for s in program.extra_sizes], passed, strict=False)))

    def _tensor(self, number: int, argument: Argument, value: Value, sizes: Mapping[str, int]) -> Tensor:
        found = self._laid_out(number, argument, value, sizes)
        return found.clone() if self._low and found.data_ptr() & self._low else found

    def _laid_out(self, number: int, argument: Argument, value: Value, sizes: Mapping[str, int]) -> Tensor:
        plain = self._plain[number]
        if plain and isinstance(value, Tensor) and type(value) in _KINDS and self._is_plain(value, plain):
            return value
        name = argument.name or f"argument {number}"
        if not isinstance(value, Tensor):
            raise IRError(f"@{self.program.name} wants a tensor for {name}, not a {type(value).__name__}")
        if value.device != self.device and value.device.type == "cpu" and value.dim() == 0:
            value = value.to(self.device)  # eager lets numbers of the host join, too
        if value.device != self.device or value.layout is not torch.strided or value.dtype != DTYPES[argument.dtype]:
            where = "the CPU" if self.device.type == "cpu" else str(self.device)
            raise IRError(
                f"@{self.program.name} was compiled for {argument.dtype} on {where} for {name}, not {value.dtype} on"
                f" {value.device}"
            )
        if len(value.shape) != len(argument.shape):
            raise IRError(f"@{self.program.name} wants {len(argument.shape)} dimensions of {name}, not {value.dim()}")
        wanted = numbers(argument.shape, sizes)
        if tuple(value.shape) != wanted:
            raise IRError(f"@{self.program.name} wants {list(wanted)} for {name}, not {list(value.shape)}")
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        strides = numbers(argument.strides, sizes)
        if value.numel() == 0 or has_strides(value, strides):
            return value
        if number in self.written:
            raise IRError(f"{name} is written in place and does not have the strides {list(strides)}")
        return coerce(value, strides)

    def _is_plain(self, value: Tensor, plain: _Plain) -> bool:
        """Whether there is nothing to do about a tensor, in the fewest questions."""
        return (
            value.dtype is plain.dtype
            and value.shape == plain.shape
            and value.stride() == plain.strides
            and value.device == self.device
            and not value.is_neg()
            and not (plain.is_complex and value.is_conj())
        )

    def sizes(self, arguments: Sequence[Value], passed: Mapping[str, Value] | None = None) -> dict[str, int]:
        """The values of the symbols; those in `passed` came as ints of their own."""
        found: dict[str, int] = {}
        for source in self.program.symbols:
            value = (passed or {}).get(source.name, arguments[source.argument])
            if isinstance(value, Tensor):
                assert source.dimension is not None
                found[source.name] = value.shape[source.dimension]
            else:
                found[source.name] = int(cast(int, value))
        return found


_KINDS = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class _Plain:
    """What an argument of known sizes is when nothing is wrong."""

    dtype: torch.dtype
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    is_complex: bool


def _plain(argument: Argument) -> _Plain | None:
    if argument.is_size or not all(isinstance(d, int) for d in (*argument.shape, *argument.strides)):
        return None
    dtype = DTYPES[argument.dtype]
    return _Plain(dtype, argument.shape, argument.strides, dtype.is_complex)


def written(program: Program) -> frozenset[int]:
    """Give the numbers of the arguments that a program writes in place."""
    found: set[int] = set()
    for step in flat(program.steps):
        if isinstance(step, KernelCall):
            targets = step.buffers[step.reads :]
        elif isinstance(step, LibraryCall):
            targets = step.results
        elif isinstance(step, Copy | Exchange):
            targets = [c.target for c in (step.copies if isinstance(step, Exchange) else (step,))]
        else:
            continue
        found.update(cast(int, b.place.at) for b in targets if b.place.kind == "argument")
    return frozenset(found)
