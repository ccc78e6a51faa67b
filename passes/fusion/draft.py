"""One kernel, tried: the scalar program of some nodes over one space, or the reason why they do not fit together.

Legality is this construction. A value that a node of the kernel makes may be used exactly at the index at which it is
made; arithmetic wanted elsewhere is computed again there, a reduction wanted elsewhere refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel import Expr, constant
from isthmus.dialects.prim.base import ints
from isthmus.passes.analysis.access import Index, operand_index
from isthmus.passes.fusion.graph import ANCHORED, Kind, Node, Value, kept
from isthmus.passes.fusion.inline import HANDLERS, Key, Values, complete, gathered, spread
from isthmus.passes.fusion.instructions import Instr, Refused, identity, linear_position
from isthmus.sizes import Dim


@dataclass(frozen=True, slots=True)
class Sink:
    """A write of a value of the graph: kind `store`, `accumulate` or `scatter`."""

    kind: str
    value: Value
    instr: Instr
    index: Index
    indices: tuple[Instr, ...] = ()
    combine: str = "set"


class Draft(Values):
    """The kernel of `frames`: for each node the index, in the space's dims, of what it walks over.

    A node's frame is the index of its operand where it reduces or scatters (updates), of its result else; for windows
    the index of the result, then that within the window; for products the index of the result, then the inner dims.
    """

    def __init__(self, sizes: Sequence[Dim], frames: Mapping[Node, Index], stored: Callable[[Value], bool]) -> None:
        super().__init__(sizes)
        self.frames = frames
        self.sinks: list[Sink] = []
        self.anchors: dict[Value, Index] = {}
        for node, index in frames.items():
            for value, at in anchors(node, index):
                self.anchors[value] = at
        self._stored = stored
        self._memo: dict[Key, Instr] = {}
        if len({cast(prim.CumulativeOp, n.op).reverse.data for n in frames if n.kind is Kind.CUMULATIVE}) > 1:
            raise Refused("one walks the row forwards, the other backwards")
        for node in sorted(frames, key=_number):
            self._sink(node, frames[node])

    # ---- sinks

    def _sink(self, node: Node, frame: Index) -> None:
        if node.kind is Kind.PARTIAL:
            self._partial(node, frame)
        elif node.kind is Kind.SCATTER:
            self._scatter(node, frame)
        elif node.kind is Kind.PIECES:
            self._pieces(node, frame)
        else:
            for result, index in anchors(node, frame):
                if self._stored(result):
                    instr = self.value_at(result, index)
                    self.sinks.append(Sink("store", result, instr, index))

    def _partial(self, node: Node, frame: Index) -> None:
        """One point adds an element of its operand; or of every piece of that, each at its own place."""
        kind = cast(str, ir.literal(cast(prim.ReduceOp, node.op), "kind"))
        for piece, at in self._placed(node, frame):
            place = tuple(at[d] for d in kept(node))
            self.sinks.append(Sink("accumulate", node.value, self.value_at(piece, frame), place, (), kind))

    def _pieces(self, node: Node, frame: Index) -> None:
        """One point writes an element of every piece, each at its own place."""
        for piece, at in self._placed(node, frame):
            self.sinks.append(Sink("store", node.value, self.value_at(piece, frame), at))

    def _placed(self, node: Node, frame: Index) -> Iterator[tuple[Value, Index]]:
        """The pieces of a node side by side, and where in the whole each has the element at `frame` of its own."""
        start: Dim = 0
        for piece in node.operands:
            if node.along is None:
                yield piece, frame
            else:
                yield piece, (*frame[: node.along], frame[node.along] + start, *frame[node.along + 1 :])
                start = start + piece.shape[node.along]

    def _scatter(self, node: Node, frame: Index) -> None:
        op = cast(prim.ScatterOp, node.op)
        start, updates, *indices = node.operands
        if start in self.anchors:
            raise Refused("a scatter starts from a complete value")
        x = self.value_at(updates, frame)
        rank = len(indices[0].shape)
        at, checks = gathered(self, indices, ints(op.dims.data), node.value.shape, frame[:rank], None)
        index = spread(node.value.shape, ints(op.dims.data), at, frame[rank:])
        kind = cast(str, op.kind.data)
        self.sinks.append(Sink("scatter", node.value, x, index, checks, kind))

    # ---- values

    def value_at(self, value_: Value, index: Index, predicate: Instr | None = None) -> Instr:
        """Give the scalar that is the value's element at an index; Refused where this kernel cannot have it."""
        memo, anchored = self._memo, self.anchors
        goal = (value_, index, predicate)
        found = memo.get(goal)
        if found is not None:
            return found
        stack: list[Key] = [goal]
        while stack:
            key = stack[-1]
            if key in memo:
                stack.pop()
                continue
            value_, index, predicate = key
            node = value_.maker
            if node.form == "arith" and not value_.root and value_ not in anchored:
                made = self._computed(node, value_.dtype, index, predicate)
            else:
                made = self._step(key)
            if type(made) is Instr:
                memo[key] = made
                stack.pop()
            else:
                stack += cast("list[Key]", made)
        return memo[goal]

    def _step(self, key: Key) -> Instr | list[Key]:
        value_, index, predicate = key
        anchor = self.anchors.get(value_)
        if anchor is not None:
            if anchor == index:
                if predicate is not None:
                    return self.forward((value_, index, None))
                return self._anchored(value_, index)
            if value_.maker.kind in ANCHORED:
                raise Refused("is wanted at an index other than the one at which it is reduced", value_)
        elif value_.root or value_.maker.kind in ANCHORED:
            return self._load(value_, index, predicate)
        return self._inline(value_, index, predicate)

    def forward(self, key: Key) -> Instr | list[Key]:
        """Give what a key stands for, or the key where that is missing."""
        found = self._memo.get(key)
        return [key] if found is None else found

    def need(self, keys: Sequence[Key]) -> list[Instr] | list[Key]:
        """Give what all the keys stand for, or those that are missing."""
        memo = self._memo
        missing = [k for k in keys if k not in memo]
        return missing if missing else [memo[k] for k in keys]

    def _inline(self, value_: Value, index: Index, predicate: Instr | None) -> Instr | list[Key]:
        node = value_.maker
        if node.form == "arith":
            return self._computed(node, value_.dtype, index, predicate)
        if node.form == "view":
            at = operand_index(cast(prim.ViewOp, node.op), index, self.bound)
            return self.forward((node.operands[0], at, predicate))
        if node.form == "copy":
            return self.forward((node.operands[0], index, predicate))
        return HANDLERS[node.form](self, node, index, predicate)

    def _computed(self, node: Node, dtype: str, index: Index, predicate: Instr | None) -> Instr | list[Key]:
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
        return missing or self._arith(node, dtype, tuple(args))

    def _anchored(self, value_: Value, index: Index) -> Instr | list[Key]:
        node = value_.maker
        if node.kind in (Kind.PARTIAL, Kind.SCATTER, Kind.PIECES):
            raise Refused("is complete only when every partition is done", value_)
        if node.kind is Kind.REDUCE:
            return self._reduce(node)
        if node.kind is Kind.CUMULATIVE:
            found = self.need([(node.operands[0], index, None)])
            if not complete(found):
                return cast("list[Key]", found)
            scan = cast(prim.CumulativeOp, node.op)
            dims = frozenset[int]().union(*(index[d].dims() for d in node.reduced))
            if not dims:
                return cast("list[Instr]", found)[0]
            data = (scan.kind.data, dims, scan.reverse.data)
            return self.instr("cumulative", tuple(cast("list[Instr]", found)), value_.dtype, data, node.op)
        if node.kind is Kind.WINDOW:
            return self._window(node, value_)
        if node.kind is Kind.CONTRACT:
            return self._dot(node, index)
        return self._inline(value_, index, None)

    def _reduce(self, node: Node) -> Instr | list[Key]:
        frame = self.frames[node]
        (x,) = node.operands
        found = self.need([(x, frame, None)])
        if not complete(found):
            return cast("list[Key]", found)
        (element,) = cast("list[Instr]", found)
        dims = frozenset[int]().union(*(frame[d].dims() for d in node.reduced))
        kind = cast(str, ir.literal(cast(prim.ReduceOp, node.op), "kind"))
        if not dims:  # every reduced size is 1
            return self.constant(0, "i64") if isinstance(node.op, prim.ArgReduceOp) else element
        if isinstance(node.op, prim.ArgReduceOp):
            position = self.index(frame[node.reduced[0]])
            pair = self.instr("reduce", (element, position), x.dtype, (f"arg{kind}", dims), node.op)
            return self.instr("second", (pair,), "i64", None, node.op)
        return self.instr("reduce", (element,), x.dtype, (kind, dims), node.op)

    def _dot(self, node: Node, index: Index) -> Instr | list[Key]:
        """The product of the factors at an index of the result and all of the inner dims."""
        op = cast(prim.DotOp, node.op)
        within = self.frames[node][len(index) :]
        batch = len(ints(op.batch_a.data))
        rows = len(node.operands[0].shape) - batch - len(within)
        free = index[batch : batch + rows], index[batch + rows :]
        named = (op.batch_a, op.contract_a), (op.batch_b, op.contract_b)
        keys: list[Key] = []
        for x, own, (batches, contracted) in zip(node.operands, free, named, strict=True):
            fixed = dict(zip((*ints(batches.data), *ints(contracted.data)), (*index[:batch], *within), strict=True))
            rest = iter(own)
            keys.append((x, tuple(fixed[d] if d in fixed else next(rest) for d in range(len(x.shape))), None))
        found = self.need(keys)
        if not complete(found):
            return cast("list[Key]", found)
        dims = frozenset[int]().union(*(e.dims() for e in within))
        return self.instr("dot", tuple(cast("list[Instr]", found)), node.value.dtype, ("add", dims), op)

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
            inside = self.both(inside, self.within(at[d], x.shape[d]))
        found = self.need([(x, tuple(at), inside)])
        if not complete(found):
            return cast("list[Key]", found)
        (element,) = cast("list[Instr]", found)
        rows = frozenset[int]().union(*(e.dims() for e in frame[rank:]))
        pool = isinstance(op, prim.MaxPoolOp)
        kind = "max" if pool else cast(str, op.kind.data)
        if inside is not None:
            element = self.select(inside, element, self.constant(identity(kind, x.dtype), x.dtype))
        if not pool:
            return self.instr("reduce", (element,), x.dtype, (kind, rows), op) if rows else element
        position = self.index(linear_position([at[d] for d in dims], [x.shape[d] for d in dims]))
        if inside is not None:
            position = self.select(inside, position, self.constant((1 << 63) - 1, "i64"))
        if not rows:
            return element if value_ is node.results[0] else position
        pair = self.instr("reduce", (element, position), x.dtype, ("argmax", rows), op)
        return pair if value_ is node.results[0] else self.instr("second", (pair,), "i64", None, op)

    def _load(self, value_: Value, index: Index, predicate: Instr | None) -> Instr:
        args = self._named(index)
        if predicate is not None:
            args = (*args, predicate)
        return self.instr("load", args, value_.dtype, (value_, index, predicate is not None), None)

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


_number = attrgetter("number")


def _position(instr: Instr) -> Expr | None:
    if instr.kind == "index":
        return cast(Expr, instr.data)
    if instr.kind == "const" and instr.dtype == "i64":
        return constant(cast(int, cast(ir.Literal, instr.data).data))
    return None


def anchors(node: Node, frame: Index) -> list[tuple[Value, Index]]:
    """Give the index at which a node of this frame makes each of its values."""
    kind = node.kind
    if kind is Kind.REDUCE or kind is Kind.PARTIAL:
        at = tuple([frame[d] for d in kept(node)])
        return [(v, at) for v in node.results]
    if kind is Kind.WINDOW or kind is Kind.CONTRACT:
        return [(v, frame[: len(v.shape)]) for v in node.results]
    return [(v, frame) for v in node.results]
