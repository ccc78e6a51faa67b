"""Threads of a block: who I am, and values that the threads of a group combine.

Threads of a warp exchange registers by shuffles, in a butterfly, so that all of them end with the same bits; warps
exchange what they have through shared memory, with one barrier for all values of a walk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from isthmus.codegen.dtypes import Operand, from_parts, parts_of
from isthmus.codegen.llvm_text import I1, I32, I64, PTR, VOID, Function, Type, Value

WARP = 32
Merge = Callable[[list[Operand], list[Operand]], list[Operand]]
"""Combine two lists of operands into one."""


class Threads:
    """The threads of one kernel's blocks: `count` of them, in groups of `group`."""

    def __init__(self, f: Function, name: str, count: int, group: int) -> None:
        self.f = f
        self.count, self.group = count, group
        self._name = name
        self._buffers = 0
        self._exchanges: list[int] = []
        """Values of each exchange through shared memory in the turn of a loop that is being written."""
        self.index = self._register("tid.x")
        self.block = self._register("ctaid.x")
        self.lane = self.index if group == count else self.index & (group - 1)
        """My number in the group."""
        self.groups = count // group
        self.partition = self.block
        """The partition of my group."""
        if self.groups > 1:
            self.partition = self.block * self.groups + f.binary("lshr", self.index, f.const(_log2(group), I64))
        self._mask: Value | None = None
        self._parity: Value | None = None
        """Which half of an exchange's memory this turn of a loop has; None: there is one only."""

    def _register(self, name: str) -> Value:
        return self.f.cast("zext", self.f.call(f"llvm.nvvm.read.ptx.sreg.{name}", I32), I64)

    @property
    def is_first(self) -> Value:
        """Whether I am the first of my group."""
        if self.group == 1:
            return self.f.const(1, I1)
        return self.f.compare("eq", self.lane, 0)

    @property
    def lane_of_warp(self) -> Value:
        """My number in the warp."""
        return self.index & (WARP - 1)

    @property
    def warp(self) -> Value:
        """The number of my warp in the block."""
        return self.f.binary("lshr", self.index, self.f.const(5, I64))

    def barrier(self) -> None:
        """Wait for all threads of the block; what they wrote to memory can be read then."""
        self.f.module.declare("llvm.nvvm.barrier.cta.sync.aligned.all", VOID, [I32])
        self.f.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    @contextmanager
    def turn(self, number: Value | None = None) -> Generator[None]:
        """One turn of a loop, of this number if turns are counted.

        What one warp still reads of this turn's exchange, another must not overwrite with the next one's. Counted turns
        take two halves of the memory by turns: whoever writes one of them again has passed the barrier between. Else
        the threads meet again at the end of a turn with one exchange; two exchanges have memory of their own, and the
        barrier of each keeps that of the other.
        """
        outside = self._exchanges, self._parity
        self._exchanges = []
        self._parity = None if number is None or self.group <= WARP else (number & 1) * WARP
        yield
        if len(self._exchanges) == 1 and self._parity is None:
            self.barrier()
        self._exchanges, self._parity = outside

    # ---- combining

    def combine(self, values: Sequence[tuple[Merge, list[Operand]]]) -> list[list[Operand]]:
        """Combine each list of operands over the group: every thread gets the result."""
        found = [self._within_warp(merge, operands, min(self.group, WARP)) for merge, operands in values]
        if self.group <= WARP:
            return found
        warps = self.group // WARP
        warp = self.warp
        places = [[self._exchanged(part.type) for x in operands for part in parts_of(x)] for operands in found]
        for operands, buffers in zip(found, places, strict=True):
            parts = [part for x in operands for part in parts_of(x)]
            for part, buffer in zip(parts, buffers, strict=True):
                # All lanes of a warp write the same number to the same place: no branch.
                self._put(part, self.f.address(buffer, self._in_half(warp), _stored(part.type)))
        self.barrier()
        self._exchanges.append(len(values))
        half = 1 << (warps.bit_length() - 1)  # the largest power of two; the warps beyond it are added first
        mine = self.index & (half - 1)
        results: list[list[Operand]] = []
        for (merge, _), operands, buffers in zip(values, found, places, strict=True):
            read = self._got(buffers, operands, self._in_half(mine))
            if half < warps:
                there = self.f.compare("slt", mine, warps - half)
                other = self.f.select(there, mine + half, mine)
                both = merge(read, self._got(buffers, operands, self._in_half(other)))
                read = [self._chosen(there, two, one) for two, one in zip(both, read, strict=True)]
            results.append(self._within_warp(merge, read, half))
        return results

    def _got(self, buffers: Sequence[Value], operands: Sequence[Operand], place: Value) -> list[Operand]:
        """What lies at a place of an exchange."""
        read: list[Operand] = []
        rest = list(buffers)
        for x in operands:
            parts = parts_of(x)
            here, rest = rest[: len(parts)], rest[len(parts) :]
            read.append(from_parts([self._get(b, place, p.type) for b, p in zip(here, parts, strict=True)]))
        return read

    def _chosen(self, condition: Value, yes: Operand, no: Operand) -> Operand:
        pairs = zip(parts_of(yes), parts_of(no), strict=True)
        return from_parts([self.f.select(condition, a, b) for a, b in pairs])

    def combine_warps(self, values: Sequence[tuple[Merge, list[Operand]]]) -> list[list[Operand]]:
        """Combine what threads of equal lanes have, warp by warp in order: every thread gets the result."""
        f, warps = self.f, self.count // WARP
        parts = [[part for x in operands for part in parts_of(x)] for _, operands in values]
        places = [[self.shared(part.type, self.count) for part in mine] for mine in parts]
        for mine, buffers in zip(parts, places, strict=True):
            for part, buffer in zip(mine, buffers, strict=True):
                self._put(part, f.address(buffer, self.index, _stored(part.type)))
        self.barrier()
        results: list[list[Operand]] = []
        for (merge, operands), mine, buffers in zip(values, parts, places, strict=True):
            total: list[Operand] | None = None
            for warp in range(warps):
                read = [
                    self._get(b, self.lane_of_warp + warp * WARP, p.type) for b, p in zip(buffers, mine, strict=True)
                ]
                one: list[Operand] = []
                for x in operands:
                    count = len(parts_of(x))
                    one.append(from_parts(read[:count]))
                    read = read[count:]
                total = one if total is None else merge(total, one)
            assert total is not None
            results.append(total)
        return results

    def _in_half(self, place: Value) -> Value:
        return place if self._parity is None else place + self._parity

    def _within_warp(self, merge: Merge, operands: list[Operand], count: int) -> list[Operand]:
        distance = count // 2
        while distance:
            others = [from_parts([self.exchange(p, distance) for p in parts_of(x)]) for x in operands]
            operands = merge(operands, others)
            distance //= 2
        return operands

    def vote(self, condition: Value) -> Value:
        """Give a bit for each thread of the warp: whether the condition holds there. All of them must be here."""
        return self.f.call("llvm.nvvm.vote.ballot.sync", I32, self.f.const(-1, I32), condition)

    def exchange(self, value: Value, distance: int) -> Value:
        """Give the value of the thread whose number differs by the bit `distance`."""
        f, bits = self.f, value.type.bits
        whole = value if not value.type.is_float else f.bitcast(value, Type.of(f"i{bits}"))
        if bits <= 32:
            moved = self._shuffle(f.cast("zext", whole, I32), distance)
            whole = f.cast("trunc", moved, whole.type)
        else:
            low = self._shuffle(f.cast("trunc", whole, I32), distance)
            high = self._shuffle(f.cast("trunc", f.binary("lshr", whole, f.const(32, I64)), I32), distance)
            whole = f.cast("zext", low, I64) | (f.cast("zext", high, I64) << 32)
        return f.bitcast(whole, value.type)

    def _shuffle(self, value: Value, distance: int) -> Value:
        f = self.f
        constants = [f.const(c, I32) for c in (distance, WARP - 1)]
        return f.call("llvm.nvvm.shfl.sync.bfly.i32", I32, self._members(), value, *constants)

    def _members(self) -> Value:
        """The threads of the warp that take part: those of my group, since others may have left."""
        if self.group >= WARP or self.groups == 1:
            return self.f.const(-1, I32)
        if self._mask is None:
            f = self.f
            with f.at_entry():
                lane = f.call("llvm.nvvm.read.ptx.sreg.laneid", I32)
                first = lane & (-self.group & (WARP - 1))
                self._mask = f.binary("shl", f.const((1 << self.group) - 1, I32), first)
        return self._mask

    # ---- shared memory

    def shared(self, type_: Type, count: int) -> Value:
        """Reserve shared memory for values of a type, of fixed size; gives its address."""
        self._buffers += 1
        name = f"@{self._name}_shared{self._buffers}"
        self.f.module.global_text(f"{name} = internal addrspace(3) global [{count} x {_stored(type_)}] undef, align 16")
        return Value(self.f, f"addrspacecast (ptr addrspace(3) {name} to ptr)", PTR)

    def _exchanged(self, type_: Type) -> Value:
        return self.shared(type_, WARP if self._parity is None else 2 * WARP)

    def _put(self, value: Value, address: Value) -> None:
        self.f.store(self.f.cast("zext", value, Type.of("i8")) if value.type is I1 else value, address)

    def _get(self, buffer: Value, index: Value, type_: Type) -> Value:
        value = self.f.load(self.f.address(buffer, index, _stored(type_)), Type.of(_stored(type_)))
        return self.f.compare("ne", value, 0) if type_ is I1 else value


def _stored(type_: Type) -> str:
    return "i8" if type_ is I1 else type_.scalar


def _log2(number: int) -> int:
    return number.bit_length() - 1
