"""Reductions: independent accumulators, combined in an order that only the shape decides.

Each unrolled copy of the body has an accumulator of its own; at the end ((a0 + a1) + (a2 + a3)),
then the lanes by halves. Sums of floats go through two levels: after each chunk of a row the
accumulators are added to totals, so that a long sum loses no more than a short one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from isthmus import ir
from isthmus.codegen import elementwise
from isthmus.codegen.complex_math import multiply
from isthmus.codegen.cpu.memory import choose
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import (
    PARTS,
    REGISTER,
    Complex,
    Operand,
    from_parts,
    parts_of,
    round_to,
)
from isthmus.codegen.llvm_text import Number, Type, Value

INTEGER_BITS = {"i64": 64, "i32": 32, "i16": 16, "i8": 8}


def identity(kind: str, dtype: str) -> Number | complex:
    """Give the number that changes nothing when combined; of a sum +0.0, as eager starts with."""
    if kind == "add":
        return 0
    if kind == "mul":
        return 1
    if kind in ("and", "or"):
        return (-1 if dtype != "i1" else 1) if kind == "and" else 0
    if dtype == "i1":
        return 0 if kind == "max" else 1
    if dtype == "u8":
        return 0 if kind == "max" else 255
    if ir.is_float(dtype):
        return -math.inf if kind == "max" else math.inf
    bits = INTEGER_BITS[dtype]
    return -(1 << bits - 1) if kind == "max" else (1 << bits - 1) - 1


class Combiner(elementwise.Context):
    """How two operands of one dtype become one."""

    def __init__(self, state: State, kind: str, dtype: str) -> None:
        self.math = state.math
        self.kind = kind
        self.dtype = dtype

    def division_by_zero(self, zero: Value) -> None:
        """Combining never divides."""

    def __call__(self, a: Operand, b: Operand) -> Operand:
        """Combine; narrow floats stay in f32. Of zeros with two signs the first is the larger and the smaller."""
        if isinstance(a, Complex):
            assert isinstance(b, Complex)
            if self.kind == "mul":
                return multiply(self.math, a, b)
            return Complex(a.real + b.real, a.imaginary + b.imaginary)
        b = cast(Value, b)
        if self.kind == "max":
            return elementwise.larger(self, b, a, self.dtype)
        if self.kind == "min":
            return elementwise.smaller(self, b, a, self.dtype)
        if self.kind in ("and", "or"):
            return a & b if self.kind == "and" else a | b
        return a + b if self.kind == "add" else a * b

    def rounded(self, a: Operand, b: Operand) -> Operand:
        """Combine two numbers of memory into one that memory holds exactly."""
        result = self(a, b)
        return result if isinstance(result, Complex) else round_to(self.math, result, self.dtype)


Merge = Callable[[list[Operand], list[Operand]], list[Operand]]


class Accumulator:
    """The running values of one reduction: `copies` slots for each of its registers."""

    def __init__(
        self,
        state: State,
        dtypes: Sequence[str],
        identities: Sequence[Number | complex],
        merge: Merge,
        copies: int,
        lanes: int,
        *,
        two_levels: bool,
    ) -> None:
        self.state = state
        self._dtypes = tuple(dtypes)
        self.merge = merge
        self._lanes = lanes
        self._starts = [self._constant(v, d) for v, d in zip(identities, dtypes, strict=True)]
        self._copies = [self._slots() for _ in range(copies)]
        self.two_levels = two_levels
        """Whether `flush` does anything."""
        self._totals = [self._slots() for _ in range(copies)] if two_levels else None

    def _constant(self, value: Number | complex, dtype: str) -> Operand:
        f, type_ = self.state.f, Type.of(REGISTER[PARTS.get(dtype, dtype)], self._lanes)
        if dtype in PARTS:
            return Complex(f.const(complex(value).real, type_), f.const(0.0, type_))
        assert not isinstance(value, complex)
        return f.const(value, type_)

    def _slots(self) -> list[list[Value]]:
        f = self.state.f
        return [[f.slot(p.type) for p in parts_of(start)] for start in self._starts]

    def _put(self, slots: list[list[Value]], values: Sequence[Operand]) -> None:
        for places, value in zip(slots, values, strict=True):
            for slot, part in zip(places, parts_of(value), strict=True):
                self.state.f.store(part, slot, 64)

    def _get(self, slots: list[list[Value]]) -> list[Operand]:
        f = self.state.f
        found: list[Operand] = []
        for places, start in zip(slots, self._starts, strict=True):
            parts = [f.load(s, p.type, 64) for s, p in zip(places, parts_of(start), strict=True)]
            found.append(from_parts(parts))
        return found

    def start(self) -> None:
        """Set everything to the identity."""
        for slots in (*self._copies, *(self._totals or ())):
            self._put(slots, self._starts)

    def step(self, values: Sequence[Operand]) -> None:
        """Combine values of this place into the accumulator of its copy; lanes that do not exist stay."""
        state = self.state
        slots = self._copies[state.copy % len(self._copies)]
        wide = [self._widened(v) for v in values]
        if state.mask is not None:
            mask = state.mask
            wide = [choose(state, mask, v, s) for v, s in zip(wide, self._starts, strict=True)]
        self._put(slots, self.merge(self._get(slots), wide))

    def _widened(self, value: Operand) -> Operand:
        return value if value.type.lanes == self._lanes else self.state.splat(value)

    def flush(self) -> None:
        """Add what the accumulators hold to the totals and begin anew."""
        for slots, totals in zip(self._copies, self._totals or (), strict=False):
            self._put(totals, self.merge(self._get(totals), self._get(slots)))
            self._put(slots, self._starts)

    def finish(self, *, across_lanes: bool) -> list[Operand]:
        """Give the result: scalars where lanes are combined too; narrow floats are rounded."""
        return self.rounded(self.merged(across_lanes=across_lanes))

    def merged(self, *, across_lanes: bool) -> list[Operand]:
        """Give the combination of all copies, narrow floats not rounded yet."""
        if self._totals is not None:
            self.flush()
        values = [self._get(slots) for slots in self._totals or self._copies]
        while len(values) > 1:
            values = [self.merge(values[i], values[i + 1]) for i in range(0, len(values), 2)]
        result = values[0]
        lanes = self._lanes
        while across_lanes and lanes > 1:
            lanes //= 2
            low = [self._half(v, range(lanes)) for v in result]
            high = [self._half(v, range(lanes, 2 * lanes)) for v in result]
            result = self.merge(low, high)
        return result

    def rounded(self, values: list[Operand]) -> list[Operand]:
        """Round narrow floats to what memory holds."""
        math_ = self.state.math
        return [
            v if isinstance(v, Complex) else round_to(math_, v, d) for v, d in zip(values, self._dtypes, strict=True)
        ]

    def _half(self, value: Operand, lanes: Sequence[int]) -> Operand:
        f = self.state.f

        def pick(part: Value) -> Value:
            if len(lanes) == 1:
                return f.extract(part, lanes[0])
            return f.shuffle(part, None, list(lanes))

        if isinstance(value, Complex):
            return Complex(pick(value.real), pick(value.imaginary))
        return pick(value)


def make(
    state: State, kind: str, dtype: str, copies: int, lanes: int, of: type[Accumulator] | None = None
) -> Accumulator:
    """Make the accumulator of a reduction of one value, or of (value, position) for argmax; `of`: in one level."""
    made = of or Accumulator
    if kind in ("argmax", "argmin"):
        extremum = kind.removeprefix("arg")
        start = [identity(extremum, dtype), (1 << 63) - 1]
        merge = _arg_merge(state, extremum, dtype)
        return made(state, (dtype, "i64"), start, merge, copies, lanes, two_levels=False)
    combine = Combiner(state, kind, dtype)
    two_levels = of is None and kind == "add" and (ir.is_float(dtype) or ir.is_complex(dtype))
    return made(
        state,
        (dtype,),
        [identity(kind, dtype)],
        lambda a, b: [combine(a[0], b[0])],
        copies,
        lanes,
        two_levels=two_levels,
    )


def _arg_merge(state: State, extremum: str, dtype: str) -> Merge:
    """Take the more extreme value; of equal ones, and of NaNs, which beat all, the first."""
    f, unsigned = state.f, dtype in ("u8", "i1")

    def merge(a: list[Operand], b: list[Operand]) -> list[Operand]:
        x, y = cast(Value, a[0]), cast(Value, b[0])
        i, j = cast(Value, a[1]), cast(Value, b[1])
        direction = "lt" if extremum == "max" else "gt"
        if x.type.is_float:
            better = f.compare(f"o{direction}", x, y)
            x_nan, y_nan = state.math.is_nan(x), state.math.is_nan(y)
            better = (better & ~x_nan) | (y_nan & ~x_nan)
            same = f.compare("oeq", x, y) | (x_nan & y_nan)
        else:
            better = f.compare(f"{'u' if unsigned else 's'}{direction}", x, y)
            same = f.compare("eq", x, y)
        take = better | (same & f.compare("slt", j, i))
        return [f.select(take, y, x), f.select(take, j, i)]

    return merge
