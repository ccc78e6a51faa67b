"""What is known at the place in a kernel where code is being written: values, indices, lanes, mask."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

from xdsl.ir import SSAValue

from isthmus.codegen.cpu.plan import Access, Plan
from isthmus.codegen.cpu.sizes import SizeValues, floored
from isthmus.codegen.dtypes import Complex, Operand, splat
from isthmus.codegen.llvm_text import I32, I64, Function, Value
from isthmus.codegen.vector_math import Math
from isthmus.dialects.kernel import Expr, sizes_as_bounds
from isthmus.dialects.kernel.index import Atom
from isthmus.sizes import Dim

OperandT = TypeVar("OperandT", bound=Operand)

DIVISION_BY_ZERO = 127
"""The error number of an integer division by zero."""


@dataclass
class _Frame:
    """Values that exist from here to the end of the enclosing loop body."""

    values: dict[SSAValue, Operand] = field(default_factory=dict[SSAValue, Operand])
    vectors: dict[str, Operand] = field(default_factory=dict[str, Operand])
    pointers: dict[tuple[int, Expr], Value] = field(default_factory=dict[tuple[int, Expr], Value])
    moves: dict[Expr, Value] = field(default_factory=dict[Expr, Value])


class State:
    """The place where code is being written; loops push frames and set indices, lanes and mask."""

    def __init__(self, plan: Plan, f: Function, math: Math, size: SizeValues) -> None:
        self.plan = plan
        self.f = f
        self.math = math
        self._size = size
        self._sizes: dict[Dim, Value] = {}
        self.buffers: list[Value] = []
        self.error_word: Value | None = None
        self.past_caches: dict[int, tuple[Value, Value]] = {}
        """Buffers whose vectors are stored past the caches: whether they begin at a line, and whether they do not."""
        self.frames: list[_Frame] = [_Frame()]
        self.indices: dict[int, Value] = {}
        self.lanes = 1
        self.mask: Value | None = None
        """Lanes that exist; None: all of them."""
        self.copy = 0
        """Which of the unrolled copies of the body this is."""
        self.partition = f.const(0, I64)

    # ---- values

    @contextmanager
    def frame(self) -> Generator[None]:
        """Forget, at the end, what was computed inside."""
        self.frames.append(_Frame())
        yield
        self.frames.pop()

    @contextmanager
    def vector(self, lanes: int, mask: Value | None = None, copy: int = 0) -> Generator[None]:
        """Emit for `lanes` neighbours at once, those of `mask` only."""
        before = self.lanes, self.mask, self.copy
        self.lanes, self.mask, self.copy = lanes, mask, copy
        yield
        self.lanes, self.mask, self.copy = before

    def set(self, value: SSAValue, operand: Operand) -> None:
        """Remember the register of a body value."""
        self.frames[-1].values[value] = operand

    def has(self, value: SSAValue) -> bool:
        """Whether the value has been computed."""
        return any(value in frame.values for frame in self.frames)

    def get(self, value: SSAValue) -> Operand:
        """Give the register of a body value; KeyError where it was not computed yet."""
        for frame in reversed(self.frames):
            found = frame.values.get(value)
            if found is not None:
                return found
        raise KeyError(value)

    def splat(self, operand: Operand) -> Operand:
        """Repeat a scalar in the lanes of this place."""
        if operand.type.lanes == self.lanes:
            return operand
        parts = (operand.real.name, operand.imaginary.name) if isinstance(operand, Complex) else (operand.name,)
        if not parts[0].startswith("%"):
            return splat(self.math, operand, self.lanes)
        return self.shared(f"{self.lanes} {' '.join(parts)}", lambda: splat(self.math, operand, self.lanes))

    def shared(self, name: str, make: Callable[[], OperandT]) -> OperandT:
        """Give what is made of registers that exist here, and make it only once per frame."""
        for frame in reversed(self.frames):
            found = frame.vectors.get(name)
            if found is not None:
                return cast(OperandT, found)
        made = make()
        self.frames[-1].vectors[name] = made
        return made

    def splat_value(self, value: Value) -> Value:
        """Repeat a real scalar in the lanes of this place."""
        return cast(Value, self.splat(value))

    # ---- indices

    def size(self, dim: Dim) -> Value:
        """Give a size as an i64, computed at the entry of the function."""
        if isinstance(dim, int):
            return self.f.const(dim, I64)
        found = self._sizes.get(dim)
        if found is None:
            with self.f.at_entry():
                found = self._sizes[dim] = self._size(dim)
        return found

    def lane_numbers(self) -> Value:
        """Give 0, 1, 2, ... as i64, one per lane."""
        return self.f.lanes(range(self.lanes), "i64")

    def evaluate(self, expr: Expr, values: Sequence[SSAValue] = ()) -> Value:
        """Give an index expression: a vector where it differs between lanes."""
        total = self.size(expr.constant)
        for atom, coefficient in expr.terms:
            term = self._atom(atom, values)
            factor = self.size(coefficient)
            total = _add(self.f, total, _multiply(self.f, term, factor))
        return total

    def _atom(self, atom: Atom, values: Sequence[SSAValue]) -> Value:
        kind, index, by = atom
        if kind == "v":
            return cast(Value, self.get(values[cast(int, index)]))
        if kind == "d":
            scalar = self.indices[cast(int, index)]
            if self.lanes > 1 and index == self.plan.vector:
                return self.splat_value(scalar) + self.lane_numbers()
            return scalar
        inner = cast(Expr, index)
        value = self.evaluate(inner, values)
        reach = inner.range(sizes_as_bounds(self.plan.sizes))
        nonnegative = reach is not None and isinstance(reach[0], int) and reach[0] >= 0
        small = nonnegative and reach is not None and isinstance(reach[1], int)
        narrow = small and cast(int, cast(tuple[Dim, Dim], reach)[1]) < 2**31 and isinstance(by, int)
        return self._divide(kind, value, self.size(by), nonnegative, narrow)

    def _divide(self, kind: str, value: Value, by: Value, nonnegative: bool, narrow: bool) -> Value:
        f, lanes = self.f, value.type.lanes
        divisor = f.splat(by, lanes)
        if nonnegative:
            op = "udiv" if kind == "div" else "urem"
            if narrow:  # vectors of i32 divide by a constant with a multiplication
                short = value.type.with_scalar("i32")
                assert by.constant is not None
                result = f.binary(op, f.cast("trunc", value, short), f.const(by.constant, short))
                return f.cast("zext", result, value.type)
            return f.binary(op, value, divisor)
        return floored(f, value, divisor, remainder=kind == "mod")

    def alignment(self, access: Access) -> int | None:
        """The bytes that a contiguous vector of an access is a multiple of; None: those of its element."""
        return None

    # ---- errors

    def division_by_zero(self, zero: Value) -> None:
        """Write the error word where an existing lane divides by zero."""
        bad = self.existing(zero)
        with self.f.when(self.math.any(bad)):
            self._write_error(self.f.const(DIVISION_BY_ZERO << 56, I64))

    def index_error(self, number: int, bad: Value, index: Value) -> None:
        """Write the error word of check `number` where an existing lane is out of bounds."""
        bad = self.existing(bad)
        f = self.f
        with f.when(self.math.any(bad)):
            if bad.type.lanes > 1:  # any of the bad lanes: the largest, no order is promised
                index = f.select(bad, f.splat(index, bad.type.lanes), -(1 << 63))
                index = f.call(f"llvm.vector.reduce.smax.{index.type.suffix}", I64, index)
            low = index & ((1 << 56) - 1)
            self._write_error(low | (number << 56))

    def existing(self, condition: Value) -> Value:
        """Restrict a condition to the lanes that exist."""
        return condition if self.mask is None else self.splat_value(condition) & self.mask

    def _write_error(self, word: Value) -> None:
        assert self.error_word is not None
        self.f.line(f"store atomic i64 {word.name}, ptr {self.error_word.name} monotonic, align 8")

    def mask_below(self, count: Value) -> Value:
        """Give the mask of the first `count` lanes."""
        lanes = self.plan.lanes
        if count.constant is not None:
            return self.f.lanes([int(i < count.constant) for i in range(lanes)], "i1")
        short = self.f.splat(self.f.cast("trunc", count, I32), lanes)
        return self.f.compare("slt", self.f.lanes(range(lanes), "i32"), short)


def _add(f: Function, a: Value, b: Value) -> Value:
    lanes = max(a.type.lanes, b.type.lanes)
    return f.splat(a, lanes) + f.splat(b, lanes)


def _multiply(f: Function, a: Value, factor: Value) -> Value:
    return a * f.splat(factor, a.type.lanes)
