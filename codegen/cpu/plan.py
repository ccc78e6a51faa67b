"""How a kernel is walked: which loops there are, where each op of the body belongs, what each walk needs.

Loops nest as *scopes*: 0 outside all, then the parallel points, then one per row dim. Where the
vector dim is the last parallel one, it has a scope of its own inside the other parallel dims.
An op is emitted in the innermost scope of the dims that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel import Expr
from isthmus.dialects.kernel.index import Atom
from isthmus.dialects.kernel.ops import lit
from isthmus.dialects.target import Target
from isthmus.ir import Literal
from isthmus.sizes import Dim

FUSED_ACCUMULATORS = 4
"""Independent accumulators of a reduction: enough to hide the latency of an addition."""
STRIP_BYTES = 1 << 16
"""The longest row that is kept on the stack."""


@dataclass(frozen=True)
class Access:
    """Where an op reads or writes: buffer number and position in elements, split by scopes."""

    buffer: int
    dtype: str
    prefixes: tuple[Expr, ...]
    """Per scope the part of the position that is known there."""
    late: Expr
    """The part that depends on values, or on the vector dim by a quotient or remainder."""
    stride: Dim
    """Elements between neighbours along the vector dim, outside `late`."""
    values: tuple[SSAValue, ...]
    """What v0, v1, ... of `late` stand for."""
    partition_stride: Dim = 0
    """Elements between the results of neighbouring partitions."""


@dataclass(frozen=True)
class Walk:
    """One walk over the row dims: what it computes, in order, and what comes of it."""

    ops: tuple[Operation, ...]
    reductions: tuple[k.ReduceOp, ...]
    cumulative: tuple[k.CumulativeOp, ...]
    kept: tuple[SSAValue, ...]
    """Values that later walks read from a strip."""
    restored: tuple[SSAValue, ...]
    """Values of earlier walks that are read from a strip or from a result."""


MANY_STREAMS = 24
"""Loads and stores beyond which the addresses of a loop cannot all be in registers, whatever LLVM tries."""


class Plan:
    """The loops of one kernel for one target."""

    crowded: int | None = None
    """The scope whose loop LLVM had better not search for the best induction variables: that takes quadratic time."""

    def __init__(self, kernel: k.FusedOp, target: Target) -> None:
        self.kernel: k.LoopNest = kernel
        self.sizes = kernel.sizes_
        self.starts = k.starts(kernel)
        self.levels = k.levels(kernel)
        self.varying = k.varying(kernel)
        vector = lit(kernel, "vector")
        self.vector = vector if isinstance(vector, int) else None
        if self.vector is not None and self.vector in kernel.rows and self._walks_one_by_one():
            self.vector = None
        self.lanes = self._lanes(target) if self.vector is not None else 1
        if self.lanes == 1:
            self.vector = None
        unroll = lit(kernel, "unroll")
        self.unroll = unroll if isinstance(unroll, int) else None
        self.scopes = self._scopes()
        self.point = len(self.scopes) - 1 - len(kernel.rows)
        self._scope_of_dim = {d: s for s, dims in enumerate(self.scopes) for d in dims}
        self.accesses = {op: self._access(op) for op in kernel.block.ops if isinstance(op, k.LoadOp | k.SinkOp)}
        self.crowded = self._crowded()

    @property
    def vector_is_parallel(self) -> bool:
        """Whether lanes are neighbouring points, not neighbours in a row."""
        return self.vector is not None and self.vector in self.kernel.parallel

    @property
    def last_level(self) -> int:
        """The level of the last walk or point."""
        return max(self.levels.values(), default=0)

    def _crowded(self) -> int | None:
        """Give the innermost scope that moves addresses, where it moves many."""
        if len(self.accesses) <= MANY_STREAMS:
            return None
        moving = [a.prefixes for a in self.accesses.values()]
        inside = range(len(self.scopes) - 1, 0, -1)
        return next((s for s in inside if any(p[s] is not p[s - 1] for p in moving)), None)

    def _walks_one_by_one(self) -> bool:
        """Whether lanes cannot be neighbours in a row."""
        return any(isinstance(op, k.CumulativeOp) and not op.in_any_order for op in self.kernel.block.ops)

    def _lanes(self, target: Target) -> int:
        width = lit(self.kernel, "width")
        if isinstance(width, int):
            return width
        floats = {ir.dtype_of(r) for op in self.kernel.block.ops for r in op.results}
        single = floats & {"f32", "bf16", "f16", "i32", "i16", "i8", "u8", "c64"}
        return target.vector_bits // (32 if single or floats <= {"i1"} else 64)

    def _scopes(self) -> tuple[tuple[int, ...], ...]:
        parallel, rows = self.kernel.parallel, self.kernel.rows
        points = [parallel[:-1], parallel[-1:]] if self.vector_is_parallel else [parallel]
        return ((), *points, *((d,) for d in rows))

    # ---- ops

    def scope_of_value(self, value: SSAValue) -> int:
        """Give the scope in which a value is computed."""
        return self.scope_of(cast(Operation, value.owner))

    def scope_of(self, op: Operation) -> int:
        """Give the scope in which an op is emitted."""
        return self._op_scopes[op]

    @cached_property
    def _op_scopes(self) -> dict[Operation, int]:
        found: dict[Operation, int] = {}
        for op in self.kernel.block.ops:
            dims = self._dims_of(op)
            scope = max((self._scope_of_dim[d] for d in dims), default=0)
            if self.levels[op] > 0 or isinstance(op, k.SinkOp):
                # What needs a reduction, or writes, cannot come before the points.
                scope = max(scope, self.point)
            if isinstance(op, k.ReduceOp):
                scope = len(self.scopes) - 1
            found[op] = scope
        return found

    def _dims_of(self, op: Operation) -> frozenset[int]:
        if not isinstance(op, k.SinkOp):
            return frozenset[int]().union(*(self.varying[r] for r in op.results))
        dims = frozenset[int]().union(*(self.varying[v] for v in ir.operands_of(op)))
        return dims | cast(k.Map, op.properties["map"]).dims()

    def is_row(self, op: Operation) -> bool:
        """Whether an op is emitted inside a row walk."""
        return self._op_scopes[op] > self.point

    @cached_property
    def walks(self) -> tuple[Walk | None, ...]:
        """Per level the walk over the rows, None where there is nothing to do there."""
        found: list[Walk | None] = []
        kept: set[SSAValue] = set()
        for level in range(self.last_level, -1, -1):  # what a walk keeps may itself need what an earlier one keeps
            walk = self._keeping(self._walk(level), level, kept)
            if walk is not None:
                kept.update(v for v in walk.restored if self.residence(v) == "keep")
            found.append(walk)
        return tuple(reversed(found))

    def _walk(self, level: int) -> Walk | None:
        sinks = [
            op
            for op in self.kernel.block.ops
            if isinstance(op, k.SinkOp | k.ReduceOp) and self.levels[op] == level and self.is_row(op)
        ]
        return self._slice(sinks, level) if sinks else None

    def _slice(self, roots: Sequence[Operation], level: int) -> Walk:
        """Collect what the roots need that is computed inside the rows of this level's walk."""
        wanted: set[Operation] = set()
        restored: dict[SSAValue, None] = {}
        stack = list(roots)
        while stack:
            op = stack.pop()
            if op in wanted:
                continue
            wanted.add(op)
            for value in ir.operands_of(op):
                maker = cast(Operation, value.owner)
                if isinstance(maker, k.ReduceOp) or not self.is_row(maker):
                    continue
                if self.levels[maker] < level and self.residence(value) != "recompute":
                    restored[value] = None
                else:
                    stack.append(maker)
        ops = tuple(op for op in self.kernel.block.ops if op in wanted)
        reductions = tuple(op for op in ops if isinstance(op, k.ReduceOp))
        cumulative = tuple(op for op in ops if isinstance(op, k.CumulativeOp))
        return Walk(ops, reductions, cumulative, (), tuple(restored))

    def _keeping(self, walk: Walk | None, level: int, kept: set[SSAValue]) -> Walk | None:
        mine = [v for v in kept if self.levels[cast(Operation, v.owner)] == level]
        ordered = [r for op in self.kernel.block.ops for r in op.results if r in mine]
        if not ordered:
            return walk
        roots: list[Operation] = [*(walk.ops if walk is not None else ()), *(r.owner for r in ordered)]
        whole = self._slice(roots, level)
        return Walk(whole.ops, whole.reductions, whole.cumulative, tuple(ordered), whole.restored)

    # ---- residence of row values

    def residence(self, value: SSAValue) -> str:
        """Say how a later walk gets a row value: recompute, reload or keep."""
        maker = cast(Operation, value.owner)
        if self.scope_of(maker) != len(self.scopes) - 1:
            return "recompute"
        literal = maker.attributes.get("residence")
        chosen = literal.data if isinstance(literal, Literal) else "recompute"
        if chosen == "reload" and self.reload_from(value) is None:
            return "recompute"
        if chosen == "keep" and self.strip_length(value) is None:
            return "recompute"
        return str(chosen)

    def reload_from(self, value: SSAValue) -> k.StoreOp | None:
        """Give the store that put a value where the same point can read it back."""
        level = self.levels[cast(Operation, value.owner)]
        for use in value.uses:
            op = use.operation
            if not isinstance(op, k.StoreOp) or op.kind is not None or op.index_values:
                continue
            here = self.levels[op] == level and self.scope_of(op) == len(self.scopes) - 1
            if op.x is value and here:
                return op
        return None

    def strip_length(self, value: SSAValue) -> int | None:
        """Give the elements of a row, None where it is too long for the stack or unknown."""
        total = 1
        for d in self.kernel.rows:
            size = self.sizes[d]
            if not isinstance(size, int):
                return None
            total *= size
        lanes = self.lanes if self.vector_is_parallel else 1
        dtype = ir.dtype_of(value)
        if dtype in ("c64", "c128") or total * lanes * 8 > STRIP_BYTES:
            return None
        return total

    # ---- memory

    def _access(self, op: k.LoadOp | k.SinkOp) -> Access:
        kernel = self.kernel
        buffer = k.buffer_of(kernel, op)
        value = kernel.inputs[buffer] if isinstance(op, k.LoadOp) else k.result_of(kernel, op)
        values = op.index_values if isinstance(op, (k.LoadOp, k.StoreOp)) else ()
        (linear,) = k.linear_map(kernel, op).data
        offset = linear - self.starts[buffer]
        partition = k.strides_of(value)[0] if isinstance(op, k.AccumulateOp) else 0
        stride = 0 if self.vector is None else offset.coefficient(self.vector)
        late = offset.part(self._is_late)
        early = offset - late
        prefixes = tuple(self._restricted(early, scope) for scope in range(len(self.scopes)))
        return Access(buffer, ir.dtype_of(value), prefixes, late, stride, values, partition)

    def _is_late(self, atom: Atom) -> bool:
        kind, index, _ = atom
        if kind == "d":
            return False
        if kind == "v":
            return True
        inner = cast(Expr, index)
        return bool(inner.values()) or (self.vector is not None and self.vector in inner.dims())

    def _restricted(self, expr: Expr, scope: int) -> Expr:
        """Keep the terms whose dims are all open in a scope, and the constant."""

        def known(atom: Atom) -> bool:
            kind, index, _ = atom
            dims: Iterable[int] = (cast(int, index),) if kind == "d" else cast(Expr, index).dims()
            return all(self._scope_of_dim[d] <= scope for d in dims)

        return expr.part(known) + expr.constant

    def check_supported(self) -> None:
        """Refuse what the loops cannot express; UnsupportedError names the op."""
        rows = set(self.kernel.rows)
        for op in self.kernel.block.ops:
            if isinstance(op, k.ReduceOp) and set(cast(tuple[int, ...], op.dims.data)) != rows:
                raise UnsupportedError(
                    "reduces over a part of the row dims",
                    op=op.name,
                    location=ir.source_location(op),
                )
        for walk in self.walks:
            if walk and len({cast(bool, c.reverse.data) for c in walk.cumulative}) > 1:
                raise UnsupportedError(
                    "walks a row in both directions at once",
                    op="kernel.cumulative",
                    location=ir.source_location(walk.cumulative[0]),
                )
