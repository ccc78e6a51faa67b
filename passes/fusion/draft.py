"""One kernel, tried: the scalar program of some nodes over one space, or the reason why they do not fit together.

Legality is this construction. A value that a node of the kernel makes may be used exactly at the index at which it is
made; arithmetic wanted elsewhere is computed again there, a reduction wanted elsewhere refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel import Expr, constant, is_nonnegative, value
from isthmus.dialects.kernel.index import Atom
from isthmus.dialects.prim.base import dim as as_dim
from isthmus.dialects.prim.base import integer, ints
from isthmus.ir import LiteralValue, Shape
from isthmus.passes.analysis.access import Index, operand_index
from isthmus.passes.fusion.graph import ANCHORED, Kind, Node, Value, kept
from isthmus.sizes import Dim

LARGEST_BODY = 1024
"""Scalar ops in one kernel; more only cost compile time."""


class Refused(Exception):
    """Why some nodes cannot be one kernel."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(eq=False, slots=True)
class Instr:
    """One scalar op. `bits`: the dims it depends on; `level`: the row walk it is part of."""

    kind: str
    args: tuple[Instr, ...]
    dtype: str
    data: object
    op: Operation | None
    number: int
    bits: int
    level: int
    cost: float

    @property
    def after(self) -> int:
        """The level at which its value is known."""
        return self.level + (self.kind == "reduce")


@dataclass(frozen=True, slots=True)
class Sink:
    """A write of a value of the graph: kind `store`, `accumulate` or `scatter`."""

    kind: str
    value: Value
    instr: Instr
    index: Index
    indices: tuple[Instr, ...] = ()
    combine: str = "set"


Key = tuple[Value, Index, "Instr | None"]


class Draft:
    """The kernel of `frames`: for each node the index, in the space's dims, of what it walks over.

    A node's frame is the index of its operand where it reduces or scatters (updates), of its result else; for windows
    the index of the result, then that within the window.
    """

    def __init__(self, sizes: Sequence[Dim], frames: Mapping[Node, Index], stored: Callable[[Value], bool]) -> None:
        self.sizes = tuple(sizes)
        self.frames = frames
        self.instrs: list[Instr] = []
        self.sinks: list[Sink] = []
        self.anchors: dict[Value, Index] = {v: i for n, index in frames.items() for v, i in anchors(n, index)}
        self._stored = stored
        self._made: dict[object, Instr] = {}
        self._memo: dict[Key, Instr] = {}
        self._checked: dict[Instr, int] = {}
        self._checks: list[Instr] = []
        self._bounds: list[Dim] = []
        for node in sorted(frames, key=lambda n: n.number):
            self._sink(node, frames[node])

    # ---- what the kernel touches

    def loads(self) -> list[Instr]:
        """Give its loads; `data` is (value, index)."""
        return [i for i in self.instrs if i.kind == "load"]

    def bound(self, atom: Atom) -> Dim | None:
        """How many values a dim of the space or a checked index takes."""
        kind, number, _ = atom
        if kind == "d":
            return self.sizes[cast(int, number)]
        return self._bounds[cast(int, number)] if kind == "v" else None

    def checked(self, number: int) -> Instr:
        """Give the checked index that v<number> of this draft's indices is."""
        return self._checks[number]

    # ---- sinks

    def _sink(self, node: Node, frame: Index) -> None:
        if node.kind is Kind.PARTIAL:
            (x,) = node.operands
            kind = cast(str, ir.literal(cast(prim.ReduceOp, node.op), "kind"))
            instr = self.value_at(x, frame)
            self.sinks.append(Sink("accumulate", node.value, instr, anchors(node, frame)[0][1], (), kind))
        elif node.kind is Kind.SCATTER:
            self._scatter(node, frame)
        else:
            for result, index in anchors(node, frame):
                if self._stored(result):
                    instr = self.value_at(result, index)
                    self.sinks.append(Sink("store", result, instr, index))

    def _scatter(self, node: Node, frame: Index) -> None:
        op = cast(prim.ScatterOp, node.op)
        start, updates, *indices = node.operands
        if start in self.anchors:
            raise Refused("a scatter starts from a complete value")
        x = self.value_at(updates, frame)
        rank = len(indices[0].shape)
        at, checks = self._gathered(indices, ints(op.dims.data), node.value.shape, frame[:rank], None)
        index = _spread(node.value.shape, ints(op.dims.data), at, frame[rank:])
        kind = cast(str, op.kind.data)
        self.sinks.append(Sink("scatter", node.value, x, index, checks, kind))

    # ---- values

    def value_at(self, value_: Value, index: Index, predicate: Instr | None = None) -> Instr:
        """Give the scalar that is the value's element at an index; Refused where this kernel cannot have it."""
        memo = self._memo
        stack: list[Key] = [(value_, index, predicate)]
        goal = stack[0]
        while stack:
            key = stack[-1]
            if key in memo:
                stack.pop()
                continue
            made = self._step(key)
            if isinstance(made, Instr):
                memo[key] = made
                stack.pop()
            else:
                stack += made
        return memo[goal]

    def _step(self, key: Key) -> Instr | list[Key]:
        value_, index, predicate = key
        anchor = self.anchors.get(value_)
        if anchor is not None:
            if anchor == index:
                if predicate is not None:
                    return self._forward((value_, index, None))
                return self._anchored(value_, index)
            if value_.maker.kind in ANCHORED:
                raise Refused(f"{value_} is wanted at an index other than the one at which it is reduced")
        elif value_.root or value_.maker.kind in ANCHORED:
            return self._load(value_, index, predicate)
        return self._inline(value_, index, predicate)

    def _forward(self, key: Key) -> Instr | list[Key]:
        found = self._memo.get(key)
        return [key] if found is None else found

    def _need(self, keys: Sequence[Key]) -> list[Instr] | list[Key]:
        """Give what all the keys stand for, or those that are missing."""
        memo = self._memo
        missing = [k for k in keys if k not in memo]
        return missing if missing else [memo[k] for k in keys]

    def _inline(self, value_: Value, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        node = value_.maker
        if node.form == "arith":
            memo = self._memo
            args: list[Instr] = []
            missing: list[Key] = []
            for operand in node.operands:
                key = (operand, index, predicate)
                found = memo.get(key)
                if found is None:
                    missing.append(key)
                else:
                    args.append(found)
            return missing or self._arith(node, value_.dtype, tuple(args))
        if node.form == "view":
            at = operand_index(cast(prim.ViewOp, node.op), index, self.bound)
            return self._forward((node.operands[0], at, predicate))
        if node.form == "copy":
            return self._forward((node.operands[0], index, predicate))
        return _HANDLERS[node.form](self, cast(Operation, node.op), node, index, predicate)

    def _anchored(self, value_: Value, index: Index) -> Instr | list[Key]:
        node = value_.maker
        if node.kind in (Kind.PARTIAL, Kind.SCATTER):
            raise Refused(f"{value_} is complete only when every partition is done")
        if node.kind is Kind.REDUCE:
            return self._reduce(node)
        if node.kind is Kind.CUMULATIVE:
            found = self._need([(node.operands[0], index, None)])
            if not _complete(found):
                return cast(list[Key], found)
            scan = cast(prim.CumulativeOp, node.op)
            dims = frozenset[int]().union(*(index[d].dims() for d in node.reduced))
            if not dims:
                return cast(list[Instr], found)[0]
            data = (scan.kind.data, dims, scan.reverse.data)
            return self.instr("cumulative", tuple(cast(list[Instr], found)), value_.dtype, data, node.op)
        if node.kind is Kind.WINDOW:
            return self._window(node, value_)
        return self._inline(value_, index, None)

    def _reduce(self, node: Node) -> Instr | list[Key]:
        frame = self.frames[node]
        (x,) = node.operands
        found = self._need([(x, frame, None)])
        if not _complete(found):
            return cast(list[Key], found)
        (element,) = cast(list[Instr], found)
        dims = frozenset[int]().union(*(frame[d].dims() for d in node.reduced))
        kind = cast(str, ir.literal(cast(prim.ReduceOp, node.op), "kind"))
        if not dims:  # every reduced size is 1
            return self.constant(0, "i64") if isinstance(node.op, prim.ArgReduceOp) else element
        if isinstance(node.op, prim.ArgReduceOp):
            position = self.index(frame[node.reduced[0]])
            pair = self.instr("reduce", (element, position), x.dtype, (f"arg{kind}", dims), node.op)
            return self.instr("second", (pair,), "i64", None, node.op)
        return self.instr("reduce", (element,), x.dtype, (kind, dims), node.op)

    def _window(self, node: Node, value_: Value) -> Instr | list[Key]:
        """The elements of each window, those outside the operand left out by a predicate."""
        op = cast(prim.ReduceWindowOp, node.op)
        (x,) = node.operands
        dims, frame = ints(op.dims.data), self.frames[node]
        rank = len(x.shape)
        at, inside = list(frame[:rank]), None
        columns = [ints(p.data) for p in (op.strides, op.low, op.dilations)]
        for d, within, stride, low, dilation in zip(dims, frame[rank:], *columns, strict=True):
            at[d] = at[d] * stride + within * dilation + (-low)
            inside = self.both(inside, self._within(at[d], x.shape[d]))
        found = self._need([(x, tuple(at), inside)])
        if not _complete(found):
            return cast(list[Key], found)
        (element,) = cast(list[Instr], found)
        rows = frozenset[int]().union(*(e.dims() for e in frame[rank:]))
        pool = isinstance(op, prim.MaxPoolOp)
        kind = "max" if pool else cast(str, op.kind.data)
        if inside is not None:
            element = self.select(inside, element, self.constant(identity(kind, x.dtype), x.dtype))
        if not pool:
            return self.instr("reduce", (element,), x.dtype, (kind, rows), op) if rows else element
        position = self.index(_linear([at[d] for d in dims], [x.shape[d] for d in dims]))
        if inside is not None:
            position = self.select(inside, position, self.constant((1 << 63) - 1, "i64"))
        if not rows:
            return element if value_ is node.results[0] else position
        pair = self.instr("reduce", (element, position), x.dtype, ("argmax", rows), op)
        return pair if value_ is node.results[0] else self.instr("second", (pair,), "i64", None, op)

    # ---- kinds of inlined ops

    def _const(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        return self.constant(ir.literal(cast(prim.ConstOp, op), "value"), node.value.dtype)

    def _size(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        return self.index(constant(as_dim(cast(prim.SizeOp, op).expr.data)))

    def _iota(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        return self.convert(self.index(index[integer(cast(prim.IotaOp, op).dim.data)]), node.value.dtype)

    def _rng(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        found = self._need([(node.operands[0], (), None)])
        if not _complete(found):
            return cast(list[Key], found)
        (key,) = cast(list[Instr], found)
        rng = cast(prim.RngOp, op)
        counter = self.index(_linear(index, node.value.shape) + as_dim(rng.offset.data))
        return self.instr("rng", (key, counter), node.value.dtype, rng.kind.data, op, None, node.cost)

    def _gather(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        x, *indices = node.operands
        rank = len(indices[0].shape)
        keys: list[Key] = [(i, index[:rank], predicate) for i in indices]
        found = self._need(keys)
        if not _complete(found):
            return cast(list[Key], found)
        dims = ints(cast(prim.GatherOp, op).dims.data)
        at, _ = self._gathered(indices, dims, x.shape, index[:rank], predicate)
        return self._forward((x, _spread(x.shape, dims, at, index[rank:]), predicate))

    def _gathered(
        self, indices: Sequence[Value], dims: tuple[int, ...], shape: Shape, index: Index, predicate: Instr | None
    ) -> tuple[list[Expr], tuple[Instr, ...]]:
        """Give the indices that data-dependent positions are, checked against the sizes, and the checks."""
        at: list[Expr] = []
        checks: list[Instr] = []
        for operand, d in zip(indices, dims, strict=True):
            raw = self.convert(self.value_at(operand, index, predicate), "i64")
            if raw.kind == "index" and self._known_inside(cast(Expr, raw.data), shape[d]):
                at.append(cast(Expr, raw.data))
                continue
            args = (raw,) if predicate is None else (raw, predicate)
            check = self.instr("check", args, "i64", (shape[d], d), None)
            number = self._checked.setdefault(check, len(self._bounds))
            if number == len(self._bounds):
                self._bounds.append(shape[d])
                self._checks.append(check)
            at.append(value(number))
            checks.append(check)
        return at, tuple(checks)

    def _known_inside(self, expr: Expr, size: Dim) -> bool:
        reach = expr.range(self.bound)
        low, high = reach if reach is not None else (-1, 0)
        return is_nonnegative(low) and is_nonnegative(size - 1 - high)

    def _pad(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        pad = cast(prim.PadOp, op)
        (x,) = node.operands
        d, low, interior = integer(pad.dim.data), as_dim(pad.low.data), as_dim(pad.interior.data)
        shifted = index[d] + low * -1
        inner = shifted.floordiv(interior + 1, self.bound)
        inside = self._within(inner, x.shape[d])
        if interior != 0:
            rest = shifted - inner * (interior + 1)
            inside = self.both(inside, self.compare("eq", rest, 0))
        both = self.both(predicate, inside)
        found = self._need([(x, (*index[:d], inner, *index[d + 1 :]), both)])
        if not _complete(found):
            return cast(list[Key], found)
        (element,) = cast(list[Instr], found)
        return element if inside is None else self.select(inside, element, self.constant(pad.value.data, x.dtype))

    def _concat(self, op: Operation, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        d = integer(cast(prim.ConcatOp, op).dim.data)
        parts: list[tuple[Key, Instr | None]] = []
        start: Dim = 0
        for x in node.operands:
            inner = index[d] + start * -1
            inside = self._within(inner, x.shape[d])
            key = (x, (*index[:d], inner, *index[d + 1 :]), self.both(predicate, inside))
            parts.append((key, inside))
            start = start + x.shape[d]
        found = self._need([k for k, _ in parts])
        if not _complete(found):
            return cast(list[Key], found)
        elements = cast(list[Instr], found)
        chosen = elements[-1]
        for element, (_, inside) in reversed(list(zip(elements[:-1], parts[:-1], strict=True))):
            chosen = element if inside is None else self.select(inside, element, chosen)
        return chosen

    # ---- making instructions

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
            level = max(level, a.after)
        if kind == "reduce":
            bits &= ~mask(cast("tuple[str, frozenset[int]]", data)[1])
        elif kind == "load":
            bits |= self._index_bits(cast("tuple[Value, Index]", data)[1])
        elif kind == "index":
            bits |= mask(cast(Expr, data).dims())
        elif kind == "cumulative":
            bits |= mask(cast("tuple[str, frozenset[int], bool]", data)[1])
        made = Instr(kind, args, dtype, data, op, len(self.instrs), bits, level, cost)
        self.instrs.append(made)
        self._made[key] = made
        if len(self.instrs) > LARGEST_BODY:
            raise Refused(f"the body would have more than {LARGEST_BODY} ops")
        return made

    def _index_bits(self, index: Index) -> int:
        bits = 0
        for expr in index:
            bits |= mask(expr.dims())
        return bits

    def _load(self, value_: Value, index: Index, predicate: Instr | None) -> Instr:
        args = self._named(index)
        if predicate is not None:
            args = (*args, predicate)
        return self.instr("load", args, value_.dtype, (value_, index, predicate is not None), None)

    def _named(self, index: Index) -> tuple[Instr, ...]:
        """The checked indices that an index names, in order."""
        if not self._checks:
            return ()
        return tuple(self._checks[k] for k in sorted(frozenset[int]().union(*(e.values() for e in index))))

    def _arith(self, node: Node, dtype: str, operands: tuple[Instr, ...]) -> Instr:
        op = cast(prim.ElementwiseOp, node.op)
        if type(op) is prim.ConvertOp:
            return self.convert(operands[0], dtype, op)
        if dtype == "i64":
            folded = self._index_arithmetic(op, operands)
            if folded is not None:
                return folded
        return self.instr("arith", operands, dtype, None, op, node.identity, node.cost)

    def _index_arithmetic(self, op: prim.ElementwiseOp, operands: tuple[Instr, ...]) -> Instr | None:
        """Positions plus and times constants stay positions, so that reads at them stay affine."""
        if not isinstance(op, (prim.AddOp, prim.SubOp, prim.MulOp)):
            return None
        a, b = (_position(i) for i in operands)
        if a is None or b is None:
            return None
        if isinstance(op, prim.MulOp):
            if a.terms and b.terms:
                return None
            return self.index(b * a.constant if b.terms else a * b.constant)
        return self.index(a + b if isinstance(op, prim.AddOp) else a - b)

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

    def _within(self, expr: Expr, size: Dim) -> Instr | None:
        """0 ≤ expr < size; None where it always holds."""
        reach = expr.range(self.bound)
        low_known = reach is not None and is_nonnegative(reach[0])
        high_known = reach is not None and is_nonnegative(size - 1 - reach[1])
        low = None if low_known else self.compare("ge", expr, 0)
        high = None if high_known else self.compare("lt", expr, size)
        return self.both(low, high)


def _complete(found: list[Instr] | list[Key]) -> bool:
    return not found or isinstance(found[0], Instr)


def _position(instr: Instr) -> Expr | None:
    if instr.kind == "index":
        return cast(Expr, instr.data)
    if instr.kind == "const" and instr.dtype == "i64":
        return constant(cast(int, cast(ir.Literal, instr.data).data))
    return None


def _spread(shape: Shape, dims: tuple[int, ...], at: Sequence[Expr], rest: Sequence[Expr]) -> Index:
    """Put `at` at dims and the rest, in order, elsewhere."""
    others = iter(rest)
    return tuple(at[dims.index(d)] if d in dims else next(others) for d in range(len(shape)))


def _linear(index: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    total = constant(0)
    for expr, size in zip(index, shape, strict=True):
        total = total * size + expr
    return total


@cache
def mask(dims: frozenset[int]) -> int:
    """A set of dims as bits."""
    return sum(1 << d for d in dims)


def anchors(node: Node, frame: Index) -> list[tuple[Value, Index]]:
    """Give the index at which a node of this frame makes each of its values."""
    if node.kind in (Kind.REDUCE, Kind.PARTIAL):
        return [(v, tuple(frame[d] for d in kept(node))) for v in node.results]
    if node.kind is Kind.WINDOW:
        return [(v, frame[: len(v.shape)]) for v in node.results]
    return [(v, frame) for v in node.results]


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


Handler = Callable[[Draft, Operation, Node, Index, "Instr | None"], "Instr | list[Key]"]

_HANDLERS: dict[str, Handler] = {
    prim.ConstOp.name: Draft._const,  # pyright: ignore[reportPrivateUsage]
    prim.SizeOp.name: Draft._size,  # pyright: ignore[reportPrivateUsage]
    prim.IotaOp.name: Draft._iota,  # pyright: ignore[reportPrivateUsage]
    prim.RngOp.name: Draft._rng,  # pyright: ignore[reportPrivateUsage]
    prim.GatherOp.name: Draft._gather,  # pyright: ignore[reportPrivateUsage]
    prim.PadOp.name: Draft._pad,  # pyright: ignore[reportPrivateUsage]
    prim.ConcatOp.name: Draft._concat,  # pyright: ignore[reportPrivateUsage]
}
