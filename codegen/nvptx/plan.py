"""How a kernel is walked by threads: which dim they share out, what each keeps in registers, where sums live.

Threads are *spread* along the vector dim. Where that is the last parallel dim (or there is none), each thread has
points of its own and walks their rows; where it is a row dim, the group walks each row together.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.plan import Access, Plan
from isthmus.codegen.cpu.sizes import product
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel.base import lit, require
from isthmus.dialects.target import Target, side_by_side
from isthmus.ir import Literal
from isthmus.sizes import Dim, Size

WARP = 32
ALIGNMENT = 16
"""Bytes that one access of a thread moves at most, and that buffers are aligned to."""


class GridPlan(Plan):
    """The walk of one kernel by groups of threads."""

    def __init__(self, kernel: k.FusedOp, target: Target, *, aligned: bool) -> None:
        super().__init__(kernel, target)
        self.base_alignment = ALIGNMENT if aligned else 1
        self.threads = _number(kernel, "threads", 256)
        self.group = _number(kernel, "group", self.threads)
        chosen = lit(kernel, "vector")
        self.spread = chosen if isinstance(chosen, int) and not self._walks_one_by_one() else None
        """The dim that threads share out; None: all parallel dims as one."""
        self.copies = max(1, _number(kernel, "unroll", 1))
        """Steps of a walk along the spread dim that are written side by side."""
        self.is_flat = self.shares_rows and lit(kernel, "flat") is True
        """Whether threads share out the positions of all row dims as one."""

        self.is_dealt = lit(kernel, "dealt") is True
        """Whether partitions take points in turn: at any time all of them are at neighbouring ones."""
        chosen = lit(kernel, "unless_one")
        self.unless_one = chosen if isinstance(chosen, int) else None
        """The operand, a number, that decides whether anything is done at all."""
        self.sharers = _number(kernel, "sharers", 1)
        """Threads, of different warps, that share the rows of a point: neighbouring points are walked by one warp."""
        self.owners = _number(kernel, "owners", 1)
        """Threads that share a point of a scatter: each walks the whole row and writes the places that are its own."""

    @cached_property
    def owner_index(self) -> SSAValue:
        """The index value by which places belong to owners: that of every store."""
        found = {op.index_values[0] for op in self.kernel.block.ops if isinstance(op, k.StoreOp) and op.index_values}
        (index,) = found
        return index

    @property
    def owners_vote(self) -> bool:
        """Whether all lanes of a warp walk a scatter's row at the same time, whose indices no point changes."""
        n, chunk = k.points(self.kernel), self.chunk
        together = isinstance(n, int) and chunk is not None and chunk == self.span and n % chunk == 0
        return together and not self.varying[self.owner_index] & frozenset(self.kernel.parallel)

    @cached_property
    def before_ownership(self) -> frozenset[Operation]:
        """The ops that it takes to know whose place a position goes to."""
        found: set[Operation] = set()
        stack = [cast(Operation, self.owner_index.owner)]
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                stack += [cast(Operation, v.owner) for v in ir.operands_of(op)]
        return frozenset(found)

    def _walks_one_by_one(self) -> bool:
        return any(isinstance(op, k.CumulativeOp) for op in self.kernel.block.ops)

    def _lanes(self, target: Target) -> int:
        return _number(self.kernel, "width", 1)

    @property
    def chunk(self) -> int | None:
        """Points of a partition; None: points are shared out evenly among the partitions."""
        found = lit(self.kernel, "chunk")
        return found if isinstance(found, int) else None

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return self.threads // self.group

    @property
    def shares_rows(self) -> bool:
        """Whether the threads of a group walk a row together."""
        return self.spread is not None and self.spread in self.kernel.rows

    @property
    def span(self) -> int:
        """Positions of the spread dim that a group covers at once."""
        return self.group // self.sharers * self.lanes

    def check_fits(self) -> None:
        """Require what vectors and groups need; IRError where the schedule does not keep to it."""
        kernel = self.kernel
        n, count = k.points(kernel), kernel.partitions_
        known = isinstance(n, int) and isinstance(count, int) and count > 0 and n % count == 0
        per_partition = self.chunk if self.chunk is not None else n // count if known else 1  # pyright: ignore
        walked = self.sizes[self.spread] if self.spread is not None else 1
        fits = self.lanes == 1 or factor(walked) % self.lanes == 0 or kernel.parallel == (self.spread,)
        require(fits, "width does not divide the vector dim")
        require(self.lanes == 1 or self.shares_rows or per_partition % self.lanes == 0, "width does not divide points")
        whole = self.group == self.threads or (self.group <= WARP and self.group & (self.group - 1) == 0)
        require(whole and self.threads % WARP == 0, "a group is a power of two up to 32 threads, or the block")
        if lit(kernel, "ahead") is True:
            size = self.row_length if self.is_flat else walked
            whole = isinstance(size, int) and size % self.span == 0
            filled = isinstance(n, int) and isinstance(count, int) and n >= count and self.chunk is None
            require(self.is_unrolled and whole and filled, "rows that are not written out whole cannot be read ahead")
        require(not self.is_dealt or (self.shares_rows and self.chunk is None), "only groups with several points deal")
        if self.owners > 1:
            sinks = [op for op in kernel.block.ops if isinstance(op, (k.SinkOp, k.ReduceOp, k.CumulativeOp))]
            fits = all(isinstance(op, k.StoreOp) and op.index_values for op in sinks) and not self.shares_rows
            require(fits and self.chunk is not None, "only a scatter has owners")
            alike = self.lanes == 1 or self.vector not in self.varying[self.owner_index]
            require(alike, "neighbouring points have places of different owners")
        if self.sharers > 1:
            apart = not self.shares_rows and self.lanes == 1 and len(kernel.rows) == 1 and self.chunk == WARP
            whole = isinstance(n, int) and n % WARP == 0 and self.group == self.threads == WARP * self.sharers
            once = all(not self.is_row(op) for op in kernel.block.ops if isinstance(op, k.SinkOp))
            require(apart and whole and once and self.last_level <= 1, "only sums down columns have sharers")
        for op in kernel.block.ops:
            if isinstance(op, k.AccumulateOp):
                require(self.chunk is None, "where something is accumulated, partitions share out the points evenly")
                alone = self.group == 1 and self.lanes == 1
                require(alone or self._can_share(op), "this sum needs one thread for each partition")

    def _can_share(self, op: k.AccumulateOp) -> bool:
        place = self.sum_place(op)
        if place == "own":
            return self.injective(op)
        return place == "total" or (self.shares_rows and not (self.is_flat and place == "group"))

    @property
    def shared_dims(self) -> frozenset[int]:
        """The dims along which the threads of a group are at different positions."""
        if not self.shares_rows:
            return frozenset(self.kernel.parallel)
        return frozenset(self.kernel.rows if self.is_flat else (cast(int, self.spread),))

    @property
    def row_length(self) -> Dim:
        """Positions of all row dims together."""
        return product(tuple(self.sizes[d] for d in self.kernel.rows))

    # ---- rows in registers

    @cached_property
    def steps(self) -> int | None:
        """Steps in which a thread walks a row, all row dims together; None where that is not known."""
        length, total = self.row_length, 1
        if not isinstance(length, int):
            return None
        if self.is_flat:
            return -(-length // self.span)
        for d in self.kernel.rows:
            size = cast(int, self.sizes[d])
            total *= -(-size // self.span) if d == self.spread else size
        return total

    @cached_property
    def is_unrolled(self) -> bool:
        """Whether the code of a row walk is written out step by step, so that what is kept stays in registers."""
        if not self.shares_rows or self.steps is None:
            return False
        kept = any(_residence(op) == "register" for op in self.kernel.block.ops)
        return kept or (self.unroll is None and self.steps <= 4)

    @cached_property
    def read_ahead(self) -> tuple[k.LoadOp, ...]:
        """The reads of a point that are issued before those of the point before it are used.

        Each thread reads so what it alone writes, if anybody does: at places of its own, of a row that is all its own.
        """
        if lit(self.kernel, "ahead") is not True:
            return ()
        rows, points = frozenset(self.kernel.rows), frozenset(self.kernel.parallel)
        found: list[k.LoadOp] = []
        for op in self.kernel.block.ops:
            if isinstance(op, k.LoadOp) and op.default is None and not op.index_values:
                access, dims = self.accesses[op], op.map.dims()
                near = access.stride == 1 or self.lanes == 1 or not rows & dims
                whole = rows <= dims or not rows & dims
                if near and whole and points & dims and not access.late.terms and not ir.is_complex(access.dtype):
                    found.append(op)
        return tuple(found)

    @cached_property
    def copied(self) -> tuple[k.LoadOp, ...]:
        """The reads whose rows are copied to shared memory as they lie, before anything is computed of them.

        Rows that all points have in common are copied once, by who walks many points.
        """
        if not self.shares_rows:
            return ()
        loads = [op for op in self.kernel.block.ops if isinstance(op, k.LoadOp) and _residence(op) == "copied"]
        return tuple(op for op in loads if self.place_of_row(op.y) == "shared" and self._lies_as_a_row(op))

    @property
    def side_by_side(self) -> int:
        """Blocks of a multiprocessor that registers must do for; 0: as many as there are."""
        if self.read_ahead:
            return side_by_side(self.kernel.partitions_)
        return 2 if self.copied else 0

    def _lies_as_a_row(self, op: k.LoadOp) -> bool:
        access, dims = self.accesses[op], op.map.dims()
        near = access.stride == 1 or self.lanes == 1
        return near and not access.late.terms and frozenset(self.kernel.rows) <= dims and op.default is None

    def residence(self, value: SSAValue) -> str:
        """Say how a later walk gets a row value: recompute, reload or keep (in registers or shared memory)."""
        maker = cast(Operation, value.owner)
        if self.scope_of(maker) != len(self.scopes) - 1:
            return "recompute"
        chosen = _residence(maker)
        if chosen in ("register", "shared", "copied", "keep"):
            return "keep" if self.place_of_row(value) is not None else "recompute"
        if chosen == "reload" and self.reload_from(value) is not None:
            return "reload"
        return "recompute"

    def place_of_row(self, value: SSAValue) -> str | None:
        """Say where a kept row value lives: register, shared or (one thread's own) local memory; None: nowhere."""
        dtype, chosen = ir.dtype_of(value), _residence(cast(Operation, value.owner))
        if self.is_unrolled and chosen != "copied":
            return "register"
        if self.shares_rows:
            known = all(isinstance(self.sizes[d], int) for d in self.kernel.rows) and not ir.is_complex(dtype)
            return "shared" if chosen in ("shared", "copied") and known and self.groups == 1 else None
        return "local" if chosen == "register" and self.strip_length(value) is not None else None

    def dims_of(self, op: Operation) -> frozenset[int]:
        """Give the dims that an op depends on, with those of its map where it writes."""
        return self._dims_of(op)

    # ---- sums over points

    def sum_place(self, op: k.AccumulateOp) -> str:
        """Say where a sum over the points of a partition is collected.

        total: one number, in registers of all threads. own: each thread has positions of its own. group: the group's
        threads are combined at each position. single: one thread does it.
        """
        map_ = cast(k.Map, op.properties["map"])
        if not map_.dims():
            return "total"
        if not self.shares_rows:
            return "single"
        varies = bool(self.shared_dims & self.dims_of(op))
        if not self.shared_dims & map_.dims():
            return "group" if varies else "single"
        return "own"

    def injective(self, op: k.AccumulateOp) -> bool:
        """Whether different positions along the shared dims go to different places."""
        map_ = cast(k.Map, op.properties["map"])
        return map_.separates(self.shared_dims, self.sizes)

    # ---- alignment

    def alignment(self, access: Access) -> int:
        """Give the bytes that the address of a contiguous vector is known to be a multiple of."""
        return bytes_aligned(access, self.vector, self.lanes, self.base_alignment)


def bytes_aligned(access: Access, vector: int | None, lanes: int, base: int) -> int:
    """Give the bytes that the address of `lanes` neighbours is known to be a multiple of; at most `base`."""
    size = ir.itemsize(access.dtype)
    step = gcd(factor(access.partition_stride), factor(access.prefixes[-1].constant))
    for (kind, index, _), coefficient in access.prefixes[-1].terms:
        times = lanes if kind == "d" and index == vector else 1
        step = gcd(step, factor(coefficient) * times)
    for _, coefficient in access.late.terms:
        step = gcd(step, factor(coefficient))
    return gcd(base, step * size) if step else base


def factor(dim: Dim) -> int:
    """Give the largest number that is known to divide a size; 0 for 0."""
    if isinstance(dim, int):
        return abs(dim)
    assert isinstance(dim, Size)
    return gcd(*(coefficient for _, coefficient in dim.terms))


def _residence(op: Operation) -> str | None:
    literal = op.attributes.get("residence")
    return str(literal.data) if isinstance(literal, Literal) else None


def _number(kernel: k.LoopNest, name: str, default: int) -> int:
    found = lit(kernel, name)
    return found if isinstance(found, int) else default
