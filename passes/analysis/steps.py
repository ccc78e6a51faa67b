"""Tensors that are one number on one side of a diagonal and another beyond: what is left of masks made in the program.

%c = prim.sub %columns, %rows : tensor<8x8xi64>          (iotas)
%l = prim.cmp %c, %zero {predicate = "le"}               true where column - row ≤ 0, else false
%m = prim.select %l, %zeros, %infinities                 0.0 there, -inf elsewhere
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints
from isthmus.sizes import Dim

Number: TypeAlias = bool | int | float


@dataclass(frozen=True)
class Affine:
    """constant + Σ factor·i[dim] at index i: whole numbers that are computed from positions."""

    factors: tuple[tuple[int, int], ...]
    constant: Dim


@dataclass(frozen=True)
class Step:
    """`inside` where i[column] - i[row] ≤ offset, else `outside`; a number everywhere where row is None.

    The column is the later dim.
    """

    inside: Number
    outside: Number
    row: int | None = None
    column: int | None = None
    offset: Dim = 0

    @property
    def place(self) -> tuple[int | None, int | None, Dim]:
        """Where it steps."""
        return self.row, self.column, self.offset


Known: TypeAlias = Affine | Step

_COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_ARITHMETIC: dict[type[Operation], Callable[[Number, Number], Number]] = {
    prim.AddOp: operator.add,
    prim.SubOp: operator.sub,
    prim.MulOp: operator.mul,
    prim.AndOp: lambda a, b: int(a) & int(b),
    prim.OrOp: lambda a, b: int(a) | int(b),
}
_DEEPEST = 24
"""Masks are made by a few ops."""


def step_of(x: SSAValue) -> Step | None:
    """Give the two numbers that a tensor consists of, and where it steps; None where it is not known to be so."""
    found = _known(x, {}, _DEEPEST)
    return found if isinstance(found, Step) else None


def _known(x: SSAValue, seen: dict[SSAValue, Known | None], depth: int) -> Known | None:
    if x not in seen:
        seen[x] = None if depth == 0 else _find(x, seen, depth - 1)
    return seen[x]


def _find(x: SSAValue, seen: dict[SSAValue, Known | None], depth: int) -> Known | None:
    op = x.owner
    if isinstance(op, prim.ConstOp):
        return _constant(op)
    if isinstance(op, prim.SizeOp):
        return Affine((), cast(Dim, op.expr.data))
    if isinstance(op, prim.IotaOp):
        whole = ir.dtype_of(x) in ("i64", "i32")  # differences of narrower ones begin anew
        return Affine(((cast(int, op.dim.data), 1),), 0) if whole else None
    if not isinstance(op, (prim.BroadcastOp, prim.ReshapeOp, prim.ElementwiseOp)):
        return None
    parts = [_known(v, seen, depth) for v in ir.operands_of(op)]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    if isinstance(op, prim.BroadcastOp):
        return _moved(known[0], dict(enumerate(ints(op.dims.data))))
    if isinstance(op, prim.ReshapeOp):
        return _reshaped(op, known[0])
    if all(isinstance(p, Step) for p in known):
        return _of_steps(op, [p for p in known if isinstance(p, Step)])
    return _of_positions(op, known)


def _constant(op: prim.ConstOp) -> Known | None:
    value = op.value.data
    number = _rounded(value, ir.dtype_of(op.y)) if isinstance(value, (bool, int, float)) else None
    return None if number is None else Step(number, number)


def _ordered(inside: Number, outside: Number, row: int, column: int, offset: Dim) -> Step:
    """i[c] - i[r] ≤ o is the contrary of i[r] - i[c] ≤ -o - 1."""
    if row < column:
        return Step(inside, outside, row, column, offset)
    return Step(outside, inside, column, row, -offset - 1)


def _moved(x: Known, to: dict[int, int]) -> Known:
    """With other numbers of dims."""
    if isinstance(x, Affine):
        return Affine(tuple(sorted((to[d], factor) for d, factor in x.factors)), x.constant)
    if x.row is None or x.column is None:
        return x
    return _ordered(x.inside, x.outside, to[x.row], to[x.column], x.offset)


def _reshaped(op: prim.ReshapeOp, x: Known) -> Known | None:
    """Through a reshape that only adds or removes dims of size 1."""
    before, after = (ir.shape_of(v) for v in (op.x, op.y))
    kept = [[d for d, size in enumerate(shape) if size != 1] for shape in (before, after)]
    if [before[d] for d in kept[0]] != [after[d] for d in kept[1]]:
        return None
    to = dict(zip(kept[0], kept[1], strict=True))
    dims = [d for d, _ in x.factors] if isinstance(x, Affine) else [d for d in (x.row, x.column) if d is not None]
    return _moved(x, to) if all(d in to for d in dims) else None


def _affine(x: Known) -> Affine | None:
    if isinstance(x, Affine):
        return x
    whole = x.row is None and isinstance(x.inside, int)
    return Affine((), int(x.inside)) if whole else None


def _of_positions(op: Operation, known: list[Known]) -> Known | None:
    """Sums, differences and comparisons of positions."""
    parts = [_affine(x) for x in known]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    a, b = parts[0], parts[1]
    if isinstance(op, (prim.SubOp, prim.AddOp)):
        return _combined(a, b, -1 if isinstance(op, prim.SubOp) else 1)
    if isinstance(op, prim.CmpOp):
        return _compared(_combined(a, b, -1), cast(str, op.predicate.data))
    return None


def _combined(a: Affine, b: Affine, sign: int) -> Affine:
    factors = dict(a.factors)
    for d, factor in b.factors:
        factors[d] = factors.get(d, 0) + sign * factor
    return Affine(tuple(sorted((d, f) for d, f in factors.items() if f != 0)), a.constant + sign * b.constant)


def _compared(difference: Affine, predicate: str) -> Step | None:
    """difference ⋄ 0 for a difference i[c] - i[r] + constant, or its negative."""
    if sorted(f for _, f in difference.factors) != [-1, 1]:
        return None
    (first, sign), (second, _) = difference.factors
    column, row = (first, second) if sign == 1 else (second, first)
    # i[column] - i[row] + constant ⋄ 0: "le" is ≤ -constant, "lt" ≤ -constant - 1, the others are their contraries
    within = {"le": 0, "gt": 0, "lt": 1, "ge": 1}.get(predicate)
    if within is None:
        return None
    truth = predicate in ("le", "lt")
    return _ordered(truth, not truth, row, column, -difference.constant - within)


def _of_steps(op: Operation, steps: list[Step]) -> Step | None:
    """An elementwise op on both sides of the one diagonal."""
    places = {s.place for s in steps if s.row is not None}
    if len(places) > 1:
        return None
    row, column, offset = places.pop() if places else (None, None, 0)
    sides = [_evaluated(op, [s.inside for s in steps]), _evaluated(op, [s.outside for s in steps])]
    if sides[0] is None or sides[1] is None:
        return None
    return Step(sides[0], sides[1], row, column, offset)


def _evaluated(op: Operation, numbers: list[Number]) -> Number | None:
    """One element; None for other ops and dtypes."""
    dtype = ir.dtype_of(op.results[0])
    if isinstance(op, prim.SelectOp):
        return numbers[1] if numbers[0] else numbers[2]
    if isinstance(op, prim.NotOp):
        return not numbers[0] if dtype == "i1" else None
    if isinstance(op, prim.CmpOp):
        return _COMPARISONS[cast(str, op.predicate.data)](numbers[0], numbers[1])
    if isinstance(op, prim.NegOp):
        return _rounded(-numbers[0], dtype)
    if isinstance(op, prim.ConvertOp):
        whole = dtype == "i1" or ir.is_float(dtype) or math.isfinite(numbers[0])
        return _rounded(numbers[0], dtype) if whole else None
    rule = _ARITHMETIC.get(type(op))
    return None if rule is None else _rounded(rule(numbers[0], numbers[1]), dtype)


def _rounded(x: Number, dtype: str) -> Number | None:
    """A number as an element of a dtype: one operation on float32 in double precision rounds as float32 does."""
    if dtype == "i1":
        return bool(x)
    if dtype == "f64":
        return float(x)
    if dtype == "f32":
        return _float32(float(x))
    return int(x) if dtype == "i64" and -(2**63) <= x < 2**63 else None


def _float32(x: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)
