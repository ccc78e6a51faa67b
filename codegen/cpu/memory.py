"""Loads and stores of a kernel: contiguous vectors, one element, or lane by lane.

The part of an address that is known in an outer loop is computed there, once per buffer and
index expression.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.codegen.cpu.plan import Access
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import (
    MEMORY,
    PARTS,
    Complex,
    Operand,
    from_memory,
    from_parts,
    parts_of,
    to_memory,
)
from isthmus.codegen.llvm_text import I64, PTR, Type, Value
from isthmus.dialects.kernel import Expr

Combine = Callable[[Operand, Operand], Operand]
"""(what is in memory, what is stored) -> what memory holds afterwards"""


def element(dtype: str) -> tuple[str, int]:
    """Give the LLVM scalar in memory and how many of them make an element."""
    return (MEMORY[PARTS[dtype]], 2) if dtype in PARTS else (MEMORY[dtype], 1)


def pointer(state: State, access: Access, scope: int) -> Value:
    """Give the address of what is known of an access in a scope; remembered in the open frame."""
    expr = access.prefixes[scope]
    if scope > 0 and expr is access.prefixes[scope - 1]:
        return pointer(state, access, scope - 1)
    key = (access.buffer, expr)
    for frame in reversed(state.frames):
        found = frame.pointers.get(key)
        if found is not None:
            return found
    if scope == 0:
        base, delta = state.buffers[access.buffer], state.size(expr.constant)
        if access.partition_stride != 0:
            delta = delta + state.partition * state.size(access.partition_stride)
    else:
        base = pointer(state, access, scope - 1)
        delta = _moved(state, expr - access.prefixes[scope - 1], hidden=scope == state.plan.crowded)
    scalar, parts = element(access.dtype)
    result = state.f.address(base, delta * parts, scalar)
    state.frames[-1].pointers[key] = result
    return result


def _moved(state: State, expr: Expr, *, hidden: bool) -> Value:
    """Give how far a scope moves addresses, in elements; computed once per frame.

    `hidden`: a register whose origin LLVM does not see. Loads and stores then have their own bases and this index,
    which is what loop strength reduction finds for many streams, too, after half of the time that a compilation takes.
    """
    for frame in reversed(state.frames):
        found = frame.moves.get(expr)
        if found is not None:
            return found
    with state.vector(1):
        moved = state.evaluate(expr)
    if hidden and moved.constant is None:
        moved = state.f.emit(f'call i64 asm "", "=r,0"(i64 {moved.name})', I64)
    state.frames[-1].moves[expr] = moved
    return moved


class Place:
    """The elements that an access touches here: an address and, where lanes differ, offsets."""

    def __init__(self, state: State, access: Access) -> None:
        self.state = state
        self.align = state.alignment(access)
        self.past_caches = state.past_caches.get(access.buffer)
        self.dtype = access.dtype
        self.scalar, self.parts = element(access.dtype)
        base = pointer(state, access, len(access.prefixes) - 1)
        late = state.evaluate(access.late, access.values) if access.late.terms else None
        if late is not None and late.type.lanes == 1:
            base = state.f.address(base, late * self.parts, self.scalar)
            late = None
        self.base = base
        stride = access.stride if state.lanes > 1 else 0
        self.contiguous = late is None and stride == 1
        self.uniform = late is None and stride == 0
        self.reversed = late is None and stride == -1 and self.parts == 1
        self._late, self._stride = late, stride

    def offsets(self) -> Value:
        """Give, lane by lane, the elements between the address and what the lane touches."""
        state = self.state
        total = state.f.const(0, I64.with_lanes(state.lanes))
        if self._stride != 0:
            total = state.lane_numbers() * state.splat_value(state.size(self._stride))
        return total if self._late is None else total + state.splat_value(self._late)

    # ---- loads

    def load(self, predicate: Value | None, default: Operand | None) -> Operand:
        """Read; where the predicate is false give `default` and touch nothing."""
        state = self.state
        scalar_predicate = predicate is None or predicate.type.lanes == 1
        if state.lanes == 1 or (self.uniform and scalar_predicate):
            with state.vector(1):
                return self._load_one(predicate, default)
        mask = state.mask
        if predicate is not None:
            wide = state.splat_value(predicate)
            mask = wide if mask is None else mask & wide
        loaded = from_parts([self._load_part(part, mask) for part in range(self.parts)])
        if default is None:
            return loaded
        assert mask is not None
        return choose(state, mask, loaded, state.splat(default))

    def _load_one(self, predicate: Value | None, default: Operand | None) -> Operand:
        state, f = self.state, self.state.f
        if predicate is None:
            return self._read(self.base)
        assert default is not None
        parts = parts_of(default)
        slots = [f.slot(p.type) for p in parts]
        for slot, part in zip(slots, parts, strict=True):
            f.store(part, slot)
        with f.when(predicate), state.frame():
            for slot, part in zip(slots, parts_of(self._read(self.base)), strict=True):
                f.store(part, slot)
        return from_parts([f.load(slot, part.type) for slot, part in zip(slots, parts, strict=True)])

    def _read(self, address: Value) -> Operand:
        f, type_ = self.state.f, Type.of(self.scalar)
        if self.parts == 2:
            second = f.address(address, 1, self.scalar)
            return Complex(f.load(address, type_), f.load(second, type_))
        return from_memory(self.state.math, f.load(address, type_), self.dtype)

    def _load_part(self, part: int, mask: Value | None) -> Value:
        state, f = self.state, self.state.f
        type_ = Type.of(self.scalar, state.lanes)
        if self.contiguous and self.parts == 1:
            raw = self._read_vector(self.base, type_, mask)
        elif self.reversed:
            backwards = range(state.lanes - 1, -1, -1)
            start = f.address(self.base, 1 - state.lanes, self.scalar)
            turned = None if mask is None else f.shuffle(mask, None, list(backwards))
            raw = f.shuffle(self._read_vector(start, type_, turned), None, list(backwards))
        else:
            raw = self._gather(part, type_, mask)
        return raw if self.parts == 2 else from_memory(state.math, raw, self.dtype)

    def _read_vector(self, address: Value, type_: Type, mask: Value | None) -> Value:
        f = self.state.f
        if mask is None:
            return f.load(address, type_, self.align)
        return f.masked_load(address, mask, f.const(0, type_))

    def _gather(self, part: int, type_: Type, mask: Value | None) -> Value:
        f = self.state.f
        addresses = self._addresses(part)
        mask = mask or f.const(1, type_.with_scalar("i1"))
        name = f"llvm.masked.gather.{type_.suffix}.v{type_.lanes}p0"
        f.module.declare(name, type_, [addresses.type, mask.type, type_])
        align = max(1, type_.bits // 8)
        aligned = f"{addresses.type.text} align {align} {addresses.name}"
        zero = f.const(0, type_)
        return f.emit(f"call {type_.text} @{name}({aligned}, {mask!r}, {zero!r})", type_)

    def _addresses(self, part: int) -> Value:
        f = self.state.f
        offsets = self.offsets() * self.parts + part if self.parts > 1 else self.offsets()
        type_ = PTR.with_lanes(offsets.type.lanes)
        return f.emit(f"getelementptr {self.scalar}, ptr {self.base.name}, {offsets!r}", type_)

    # ---- stores

    def store(self, x: Operand, combine: Combine | None = None) -> None:
        """Write, combined with what is there where `combine` is given; lanes in order."""
        state = self.state
        if state.lanes == 1 or (self.uniform and x.type.lanes == 1):
            with state.vector(1):
                self._store_one(self.base, x, combine)
            return
        x = state.splat(x)
        if self.contiguous and isinstance(x, Value):
            if combine is not None:
                combined = combine(self.load(None, None), x)
                assert isinstance(combined, Value)
                x = combined
            raw = to_memory(state.math, x, self.dtype)
            if state.mask is None:
                self._store_vector(raw)
            else:
                state.f.masked_store(raw, self.base, state.mask)
            return
        self._store_lanes(x, combine)

    def _store_vector(self, raw: Value) -> None:
        """Write neighbours, past the caches where that is asked for and the buffer begins at a line."""
        f = self.state.f
        if self.past_caches is None:
            f.store(raw, self.base, self.align)
            return
        begins_at_line, does_not = self.past_caches
        with f.when(begins_at_line):
            f.store_past_caches(raw, self.base)
        with f.when(does_not):
            f.store(raw, self.base, self.align)

    def _store_lanes(self, x: Operand, combine: Combine | None) -> None:
        """Write one lane after the other, so that of equal addresses the last one stays."""
        state, f = self.state, self.state.f
        offsets, mask = self.offsets(), state.mask
        for lane in range(state.lanes):
            one = _lane(state, x, lane)
            offset = f.extract(offsets, lane) * self.parts
            exists = None if mask is None else f.extract(mask, lane)
            with state.vector(1):
                if exists is None:
                    self._store_one(f.address(self.base, offset, self.scalar), one, combine)
                else:
                    with f.when(exists), state.frame():
                        self._store_one(f.address(self.base, offset, self.scalar), one, combine)

    def _store_one(self, address: Value, x: Operand, combine: Combine | None) -> None:
        f = self.state.f
        if combine is not None:
            x = combine(self._read(address), x)
        if isinstance(x, Complex):
            for number, part in enumerate(parts_of(x)):
                f.store(part, f.address(address, number, self.scalar))
        else:
            f.store(to_memory(self.state.math, x, self.dtype), address)


def _lane(state: State, x: Operand, lane: int) -> Operand:
    return from_parts([state.f.extract(part, lane) for part in parts_of(x)])


def choose(state: State, condition: Value, yes: Operand, no: Operand) -> Operand:
    """Choose lane by lane between two operands of the same dtype."""
    pairs = zip(parts_of(yes), parts_of(no), strict=True)
    return from_parts([state.f.select(condition, a, b) for a, b in pairs])


def fill(state: State, access: Access, count: Value, value: Operand) -> None:
    """Set the `count` elements of an accumulation's result that belong to this partition."""
    f, (scalar, parts) = state.f, element(access.dtype)
    start = state.partition * state.size(access.partition_stride) * parts
    base = f.address(state.buffers[access.buffer], start, scalar)
    raw = [to_memory(state.math, v, access.dtype) if parts == 1 else v for v in parts_of(value)]
    with f.loop(0, count) as i:
        for part, number in enumerate(raw):
            f.store(number, f.address(base, i * parts + part, scalar))
