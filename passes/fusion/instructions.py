"""Scalar instructions of a kernel that is tried: shared where equal, with the dims and the row walk they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects.kernel import Expr, constant, is_nonnegative, value
from isthmus.dialects.kernel.index import Atom
from isthmus.ir import LiteralValue
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.graph import Value
from isthmus.sizes import Dim

LARGEST_BODY = 1024
"""Scalar ops in one kernel; more only cost compile time."""


class Refused(Exception):
    """Why some nodes cannot be one kernel."""

    def __init__(self, reason: str, about: Value | None = None) -> None:
        """`reason` is said of the value `about`, or of the nodes together."""
        self._said, self.about = reason, about
        self.reason = reason if about is None else f"{about} {reason}"
        super().__init__(self.reason)

    def of(self, names: Mapping[Value, Value]) -> Refused:
        """Give the same about other values: each of these stands for another one."""
        return Refused(self._said, None if self.about is None else names[self.about])


@dataclass(eq=False, slots=True)
class Instr:
    """One scalar op. `bits`: the dims it depends on; `level`: the row walk it is part of, known at level `after`."""

    kind: str
    args: tuple[Instr, ...]
    dtype: str
    data: object
    op: Operation | None
    number: int
    bits: int
    level: int
    after: int
    cost: float


class Instructions:
    """The scalar program of one kernel over a space of these sizes, while it is written."""

    def __init__(self, sizes: Sequence[Dim]) -> None:
        self.sizes = tuple(sizes)
        self.instrs: list[Instr] = []
        self._loads: list[Instr] = []
        self._made: dict[object, Instr] = {}
        self._checked: dict[Instr, int] = {}
        self._checks: list[Instr] = []
        self._bounds: list[Dim] = []

    def loads(self) -> list[Instr]:
        """Give its loads; `data` is (value, index, whether a predicate guards it)."""
        return self._loads

    def bound(self, atom: Atom) -> Dim | None:
        """How many values a dim of the space or a checked index takes."""
        kind, number, _ = atom
        if kind == "d":
            return self.sizes[cast(int, number)]
        return self._bounds[cast(int, number)] if kind == "v" else None

    def checked(self, number: int) -> Instr:
        """Give the checked index that v<number> of this draft's indices is."""
        return self._checks[number]

    def instr(
        self,
        kind: str,
        args: tuple[Instr, ...],
        dtype: str,
        data: object,
        op: Operation | None,
        identity: object = None,
        cost: float = 0.0,
    ) -> Instr:
        """Give the one instruction that is this; `identity` tells arithmetic ops apart."""
        key = (kind, args, dtype, data, identity)
        found = self._made.get(key)
        if found is not None:
            return found
        bits, level = 0, 0
        for a in args:
            bits |= a.bits
            if a.after > level:
                level = a.after
        after = level
        if kind in ("reduce", "dot"):
            bits &= ~mask(cast("tuple[str, frozenset[int]]", data)[1])
            after += 1
        elif kind == "load":
            bits |= index_bits(cast("tuple[Value, Index]", data)[1])
        elif kind == "index":
            bits |= mask(cast(Expr, data).dims())
        elif kind == "cumulative":
            bits |= mask(cast("tuple[str, frozenset[int], bool]", data)[1])
        number = len(self.instrs)
        made = self._made[key] = Instr(kind, args, dtype, data, op, number, bits, level, after, cost)
        self.instrs.append(made)
        if kind == "load":
            self._loads.append(made)
        if number >= LARGEST_BODY:
            raise Refused(f"the body would have more than {LARGEST_BODY} ops")
        return made

    def _named(self, index: Index) -> tuple[Instr, ...]:
        """The checked indices that an index names, in order."""
        if not self._checks:
            return ()
        return tuple(self._checks[k] for k in sorted(frozenset[int]().union(*(e.values() for e in index))))

    def constant(self, number: LiteralValue, dtype: str) -> Instr:
        """A scalar constant."""
        return self.instr("const", (), dtype, ir.Literal.of(number), None)

    def index(self, expr: Expr) -> Instr:
        """A position as i64."""
        return self.instr("index", self._named((expr,)), "i64", expr, None)

    def convert(self, x: Instr, dtype: str, op: Operation | None = None) -> Instr:
        """x in another dtype."""
        return x if x.dtype == dtype else self.instr("convert", (x,), dtype, None, op)

    def select(self, p: Instr, a: Instr, b: Instr) -> Instr:
        """p ? a : b"""
        return a if a is b else self.instr("select", (p, a, b), a.dtype, None, None)

    def compare(self, predicate: str, expr: Expr, number: Dim) -> Instr:
        """expr ⋄ number"""
        return self.instr("cmp", (self.index(expr), self.index(constant(number))), "i1", predicate, None)

    def both(self, a: Instr | None, b: Instr | None) -> Instr | None:
        """a and b; None is true."""
        if a is None or b is None or a is b:
            return b if a is None else a
        return self.instr("and", (a, b), "i1", None, None)

    def check(self, raw: Instr, size: Dim, dim: int, predicate: Instr | None) -> tuple[Expr, Instr | None]:
        """Give the index that a position is, and its check; positions known to be inside need none."""
        raw = self.convert(raw, "i64")
        if raw.kind == "index" and self.within(cast(Expr, raw.data), size) is None:
            return cast(Expr, raw.data), None
        args = (raw,) if predicate is None else (raw, predicate)
        made = self.instr("check", args, "i64", (size, dim), None)
        number = self._checked.setdefault(made, len(self._bounds))
        if number == len(self._bounds):
            self._bounds.append(size)
            self._checks.append(made)
        return value(number), made

    def within(self, expr: Expr, size: Dim) -> Instr | None:
        """0 ≤ expr < size; None where it always holds."""
        reach = expr.range(self.bound)
        low_known = reach is not None and is_nonnegative(reach[0])
        high_known = reach is not None and is_nonnegative(size - 1 - reach[1])
        low = None if low_known else self.compare("ge", expr, 0)
        high = None if high_known else self.compare("lt", expr, size)
        return self.both(low, high)


def linear_position(index: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """The row-major position of an index in a shape."""
    total = constant(0)
    for expr, size in zip(index, shape, strict=True):
        total = total * size + expr
    return total


@cache
def mask(dims: frozenset[int]) -> int:
    """A set of dims as bits."""
    return sum(1 << d for d in dims)


@cache
def index_bits(index: Index) -> int:
    """The dims that an index depends on, as bits."""
    bits = 0
    for expr in index:
        bits |= mask(expr.dims())
    return bits


def identity(kind: str, dtype: str) -> LiteralValue:
    """Give what a combiner leaves alone."""
    if kind in ("max", "min"):
        if ir.is_float(dtype):
            return -math.inf if kind == "max" else math.inf
        if dtype == "i1":
            return kind == "min"
        bits = 8 * ir.itemsize(dtype)
        low, high = (0, 255) if dtype == "u8" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        return low if kind == "max" else high
    number = {"add": 0, "mul": 1, "or": 0, "and": -1}[kind]
    if dtype == "i1":
        return bool(number)
    if dtype == "u8":
        return number % 256
    return number if ir.is_integer(dtype) else complex(number) if ir.is_complex(dtype) else float(number)
