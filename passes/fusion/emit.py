"""Writing a draft as a `kernel.fused` op: dims in the order of memory, neighbours joined, instructions as body ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.kernel import Expr, Map, constant, dim
from isthmus.dialects.kernel.map import linear as position
from isthmus.dialects.prim.maker import python_number
from isthmus.ir import Literal, Shape
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.draft import Draft, Sink
from isthmus.passes.fusion.graph import Kind, Value
from isthmus.passes.fusion.instructions import Instr
from isthmus.sizes import Dim, Size

Strides = Callable[[Value], Shape]
"""Strides in elements of the buffer of a value."""

Buffers = Callable[[Value], SSAValue]
"""The tensor that is the buffer of a value."""


class Layout:
    """A space put in order: how the draft's dims are written in the kernel's."""

    CLASSES = ("parallel", "row")
    """In the order of the kernel's dims."""

    def __init__(self, draft: Draft, classes: Mapping[int, str], strides: Strides) -> None:
        """`classes`: of each dim of the draft."""
        self.draft, self._class = draft, classes
        self.accesses = [linear_index(v, i, strides) for v, i in accesses(draft)]
        weights = [cost.numeric(cost.product(v.shape)) for v, _ in accesses(draft)]
        order = _order(draft, [self.CLASSES.index(classes[d]) for d in range(len(draft.sizes))], self.accesses, weights)
        self.sizes: list[Dim] = []
        self.classes: list[str] = []
        self.new: list[Expr] = [constant(0)] * len(draft.sizes)
        for group in self._groups(order):
            self._join(group, classes[group[0]] if group else "")
        sizes = self.sizes

        def bounds(atom: tuple[str, object, Dim]) -> Dim | None:
            return sizes[cast(int, atom[1])] if atom[0] == "d" else draft.bound(cast("tuple[str, int, Dim]", atom))

        self.bounds = cast(kernel.Bounds, bounds)
        self._cache: dict[Expr, Expr] = {}

    def expr(self, expr: Expr) -> Expr:
        """Give an index in the kernel's dims."""
        found = self._cache.get(expr)
        if found is None:
            found = self._cache[expr] = expr.substitute(self.new, self.bounds)
        return found

    def dims(self, old: frozenset[int]) -> tuple[int, ...]:
        """Give the kernel's dims that stand for these dims of the draft."""
        return tuple(sorted(frozenset[int]().union(*(self.new[d].dims() for d in old))))

    def _groups(self, order: list[int]) -> list[list[int]]:
        """Neighbours that every access walks without a gap, and that belong to the same class, are one dim."""
        groups: list[list[int]] = []
        for d in order:
            if groups and self._class[groups[-1][-1]] == self._class[d] and self._joins(groups[-1][-1], d):
                groups[-1].append(d)
            else:
                groups.append([d])
        return groups

    def _joins(self, outer: int, inner: int) -> bool:
        size = self.draft.sizes[inner]
        if size == 0 or self.draft.sizes[outer] == 0:
            return False  # no position to count, and none to divide by
        for linear in self.accesses:
            if not _walks_on(linear, outer, inner, size):
                return False
        for instr in self.draft.instrs:
            if instr.kind == "index" and not _walks_on(cast(Expr, instr.data), outer, inner, size):
                return False
            if instr.kind in ("reduce", "cumulative"):
                dims = cast("tuple[str, frozenset[int]]", instr.data)[1]
                if (outer in dims) != (inner in dims):
                    return False
        return True

    def _join(self, group: list[int], class_: str) -> None:
        number = len(self.sizes)
        inner: Dim = 1
        for d in reversed(group):
            self.new[d] = dim(number).floordiv(inner) if d == group[0] else _digit(number, inner, self.draft.sizes[d])
            inner = inner * self.draft.sizes[d]
        self.sizes.append(inner)
        self.classes.append(class_)


def _digit(number: int, inner: Dim, size: Dim) -> Expr:
    return dim(number).floordiv(inner).mod(size)


def _walks_on(linear: Expr, outer: int, inner: int, size: Dim) -> bool:
    """Whether an expression depends on both dims only as on the one position outer·size + inner."""
    if linear.coefficient(outer) != linear.coefficient(inner) * size:
        return False
    within = [cast(Expr, e) for (k, e, _), _c in linear.terms if k not in ("d", "v")]
    return not any({outer, inner} & e.dims() for e in within)


def results(draft: Draft) -> list[Value]:
    """Give the buffers that a draft writes, in order, each once."""
    return list(dict.fromkeys(s.value for s in draft.sinks))


def accesses(draft: Draft) -> list[tuple[Value, Index]]:
    """Give what a draft reads and writes: buffers with the index of each access."""
    reads = [cast("tuple[Value, Index, bool]", i.data)[:2] for i in draft.loads()]
    return reads + [(s.value, s.index) for s in draft.sinks]


def linear_index(value: Value, index: Index, strides: Strides) -> Expr:
    """Give the position in elements that an index of a buffer is."""
    own = strides(value)
    return position(index, own[len(own) - len(index) :])  # partial results have one index less


def _order(draft: Draft, ranks: Sequence[int], linears: Sequence[Expr], weights: Sequence[int]) -> list[int]:
    """By the ranks of their classes, each class as the largest buffers are laid out: the smallest stride innermost."""
    ranked = sorted(zip(weights, linears, strict=True), key=lambda p: -p[0])
    strides: dict[int, int] = {}
    for _, linear in ranked:
        for (kind, d, _), coefficient in linear.terms:
            if kind == "d":
                strides.setdefault(cast(int, d), abs(cost.numeric(coefficient)))
    far = max(strides.values(), default=0) + 1
    return sorted(range(len(draft.sizes)), key=lambda d: (ranks[d], -strides.get(d, far), d))


class Emitter:
    """Emits the body of one kernel."""

    def __init__(self, draft: Draft, layout: Layout, buffer_of: Buffers) -> None:
        self.draft, self.layout = draft, layout
        self.block = Block()
        self.made: dict[Instr, SSAValue] = {}
        self.pairs: dict[Instr, Operation] = {}
        self.buffer_of = buffer_of
        self.operands: list[SSAValue] = []
        self._positions: dict[SSAValue, int] = {}

    def operand(self, value: Value) -> int:
        """Give the number of the operand that is the buffer of a value."""
        ssa = self.buffer_of(value)
        found = self._positions.setdefault(ssa, len(self.operands))
        if found == len(self.operands):
            self.operands.append(ssa)
        return found

    def add(
        self,
        cls: type[Operation],
        operands: Sequence[SSAValue],
        dtypes: Sequence[str],
        properties: Mapping[str, Attribute],
        location: Operation | None = None,
    ) -> Operation:
        """Append a body op."""
        where = ir.UNKNOWN if location is None else location.location
        types = [ir.scalar(d) for d in dtypes]
        return ir.create_op(cls, operands, types, properties, location=where, into=self.block)

    def map(self, index: Sequence[Expr]) -> tuple[Map, list[SSAValue]]:
        """Give the map of an index and the values that it names, numbered from v0."""
        numbers = sorted(frozenset[int]().union(*(e.values() for e in index)))
        renamed: list[Expr | None] = [None] * (max(numbers, default=-1) + 1)
        for k, number in enumerate(numbers):
            renamed[number] = kernel.value(k)
        exprs = [self.layout.expr(e) for e in index]
        if numbers:
            exprs = [e.substitute((), values=renamed) for e in exprs]
        return Map.of(exprs), [self.made[self.draft.checked(n)] for n in numbers]

    def body(self) -> None:
        """Emit every instruction that a sink needs, then the sinks where their value is known."""
        needed = _needed(self.draft.sinks, self.draft)
        for instr in self.draft.instrs:
            if instr in needed:
                self.made[instr] = _EMIT[instr.kind](self, instr)
        numbers = {value: k for k, value in enumerate(results(self.draft))}
        for sink in self.draft.sinks:
            self._sink(numbers[sink.value], sink)

    def _sink(self, number: int, sink: Sink) -> None:
        map_, values = self.map(sink.index)
        properties: dict[str, Attribute] = {"result": Literal.of(number), "map": map_}
        if sink.kind == "accumulate":
            properties["kind"] = Literal.of(sink.combine)
            self.add(kernel.AccumulateOp, [self.made[sink.instr]], [], properties, sink.value.maker.op)
            return
        if sink.kind == "scatter":
            properties["kind"] = Literal.of(sink.combine)
        self.add(kernel.StoreOp, [self.made[sink.instr], *values], [], properties, sink.value.maker.op)

    # ---- one method per kind of instruction

    def load(self, instr: Instr) -> SSAValue:
        value, index, guarded = cast("tuple[Value, Index, bool]", instr.data)
        map_, values = self.map(index)
        properties: dict[str, Attribute] = {"operand": Literal.of(self.operand(value)), "map": map_}
        if guarded:
            values.append(self.made[instr.args[-1]])
            properties["default"] = Literal.of(python_number(0, instr.dtype))
        return self.add(kernel.LoadOp, values, [instr.dtype], properties, value.maker.op).results[0]

    def const(self, instr: Instr) -> SSAValue:
        return self.add(prim.ConstOp, (), [instr.dtype], {"value": cast(Literal, instr.data)}).results[0]

    def index(self, instr: Instr) -> SSAValue:
        expr = self.layout.expr(cast(Expr, instr.data))
        if not expr.terms and isinstance(expr.constant, int):
            return self.add(prim.ConstOp, (), ["i64"], {"value": Literal.of(expr.constant)}).results[0]
        map_, values = self.map((cast(Expr, instr.data),))
        return self.add(kernel.IndexOp, values, ["i64"], {"map": map_}).results[0]

    def arith(self, instr: Instr) -> SSAValue:
        op = cast(Operation, instr.op)
        return self.add(type(op), self._args(instr), [instr.dtype], op.properties, op).results[0]

    def convert(self, instr: Instr) -> SSAValue:
        return self.add(prim.ConvertOp, self._args(instr), [instr.dtype], {}, instr.op).results[0]

    def select(self, instr: Instr) -> SSAValue:
        return self.add(prim.SelectOp, self._args(instr), [instr.dtype], {}).results[0]

    def cmp(self, instr: Instr) -> SSAValue:
        predicate = {"predicate": Literal.of(cast(str, instr.data))}
        return self.add(prim.CmpOp, self._args(instr), ["i1"], predicate).results[0]

    def both(self, instr: Instr) -> SSAValue:
        return self.add(prim.AndOp, self._args(instr), ["i1"], {}).results[0]

    def check(self, instr: Instr) -> SSAValue:
        bound, d = cast("tuple[Dim, int]", instr.data)
        properties = {"bound": Literal.of(bound), "dim": Literal.of(d)}
        return self.add(kernel.CheckOp, self._args(instr), ["i64"], properties).results[0]

    def rng(self, instr: Instr) -> SSAValue:
        kind = {"kind": Literal.of(cast(str, instr.data))}
        return self.add(kernel.RngOp, self._args(instr), [instr.dtype], kind, instr.op).results[0]

    def reduce(self, instr: Instr) -> SSAValue:
        kind, dims = cast("tuple[str, frozenset[int]]", instr.data)
        properties = {"kind": Literal.of(kind), "dims": Literal.of(self.layout.dims(dims))}
        dtypes = [a.dtype for a in instr.args]
        op = self.pairs[instr] = self.add(kernel.ReduceOp, self._args(instr), dtypes, properties, instr.op)
        return op.results[0]

    def dot(self, instr: Instr) -> SSAValue:
        _, dims = cast("tuple[str, frozenset[int]]", instr.data)
        inner = self.layout.dims(dims) or (len(self.layout.sizes) - 1,)
        return self.add(kernel.DotOp, self._args(instr), [instr.dtype], {"dims": Literal.of(inner)}, instr.op).results[
            0
        ]

    def second(self, instr: Instr) -> SSAValue:
        return self.pairs[instr.args[0]].results[1]

    def cumulative(self, instr: Instr) -> SSAValue:
        kind, dims, reverse = cast("tuple[str, frozenset[int], bool]", instr.data)
        (d,) = self.layout.dims(dims)
        properties = {"kind": Literal.of(kind), "dim": Literal.of(d), "reverse": Literal.of(reverse)}
        return self.add(kernel.CumulativeOp, self._args(instr), [instr.dtype], properties, instr.op).results[0]

    def _args(self, instr: Instr) -> list[SSAValue]:
        return [self.made[a] for a in instr.args]


_EMIT: dict[str, Callable[[Emitter, Instr], SSAValue]] = {
    "load": Emitter.load,
    "const": Emitter.const,
    "index": Emitter.index,
    "arith": Emitter.arith,
    "convert": Emitter.convert,
    "select": Emitter.select,
    "cmp": Emitter.cmp,
    "and": Emitter.both,
    "check": Emitter.check,
    "rng": Emitter.rng,
    "reduce": Emitter.reduce,
    "dot": Emitter.dot,
    "second": Emitter.second,
    "cumulative": Emitter.cumulative,
}


def _needed(sinks: Sequence[Sink], draft: Draft) -> set[Instr]:
    stack = [s.instr for s in sinks]
    for sink in sinks:
        stack += sink.indices
    found = set(stack)
    while stack:
        for a in stack.pop().args:
            if a not in found:
                found.add(a)
                stack.append(a)
    return found


def emit(draft: Draft, parallel: int, strides: Strides, buffer_of: Buffers) -> kernel.FusedOp:
    """Give the kernel of a draft; its results are what the draft's sinks write, in order."""
    classes = {d: "parallel" if parallel >> d & 1 else "row" for d in range(len(draft.sizes))}
    emitter, properties = emit_body(draft, Layout(draft, classes, strides), strides, buffer_of)
    written = results(draft)
    initial = [emitter.operand(v.maker.operands[0]) if v.maker.kind is Kind.SCATTER else None for v in written]
    if any(i is not None for i in initial):
        properties["initial"] = Literal.of(tuple(initial))
    partial = next((s.value.shape[0] for s in draft.sinks if s.kind == "accumulate"), None)
    if partial is not None:
        properties["partitions"] = Literal.of(partial)
    return create(kernel.FusedOp, emitter, properties)


def emit_body(
    draft: Draft, layout: Layout, strides: Strides, buffer_of: Buffers
) -> tuple[Emitter, dict[str, Attribute]]:
    """Emit the body of a draft; gives it with the properties that every kernel has."""
    emitter = Emitter(draft, layout, buffer_of)
    emitter.body()
    layouts = [strides(v) for v in results(draft)]
    properties: dict[str, Attribute] = {
        "sizes": Literal.of(tuple(layout.sizes)),
        "classes": Literal.of(tuple(layout.classes)),
    }
    symbols = _symbols(layout.sizes, emitter, layouts)
    if symbols:
        properties["symbols"] = Literal.of(symbols)
    if any(own != ir.contiguous_strides(v.shape) for own, v in zip(layouts, results(draft), strict=True)):
        properties["layouts"] = Literal.of(tuple(layouts))
    return emitter, properties


KernelT = TypeVar("KernelT", bound=Operation)


def create(cls: type[KernelT], emitter: Emitter, properties: Mapping[str, Attribute]) -> KernelT:
    """Give the kernel around a body; its results are what the draft's sinks write, in order."""
    draft = emitter.draft
    types = [ir.tensor(v.shape, v.dtype) for v in results(draft)]
    return ir.create_op(cls, emitter.operands, types, properties, regions=[Region(emitter.block)])


def _symbols(sizes: Sequence[Dim], emitter: Emitter, results: Sequence[Shape]) -> tuple[str, ...]:
    """The symbols that sizes, maps, bounds and strides depend on."""
    found: set[str] = set()
    known: list[Dim] = [*sizes, *(d for own in results for d in own)]
    for operand in emitter.operands:
        known += kernel.strides_of(operand)
    for op in emitter.block.ops:
        if isinstance(op, kernel.CheckOp):
            known.append(cast(Dim, op.bound.data))
        map_ = op.properties.get("map")
        if isinstance(map_, Map):
            for expr in map_.data:
                found |= expr.symbols()
    for size in known:
        if isinstance(size, Size):
            found |= size.symbols()
    return tuple(sorted(found))
