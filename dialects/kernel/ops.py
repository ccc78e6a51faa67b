"""Fused kernels, the scalar ops of their bodies, and library calls.

A kernel walks its space: every *parallel* dim, and at each of these points every *row* dim. Its body is one block of
scalar ops in SSA: the arithmetic of `prim` on element types, and the ops of this file. A value belongs to the dims
that it depends on; what a reduction gives is known only after its row has been walked, so ops have levels
(`facts.levels`) and a kernel walks its rows once for each.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TypeAlias, cast

from xdsl.ir import SSAValue
from xdsl.irdl import (
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import NoTerminator, Pure

from isthmus import ir
from isthmus.dialects.kernel.base import (
    CLASSES,
    KernelOp,
    kernel_op,
    lit,
    number,
    require,
)
from isthmus.dialects.kernel.body import AccumulateOp, BodyOp, DotOp, SinkOp, Space, StoreOp
from isthmus.dialects.kernel.map import Map
from isthmus.ir import Literal, LiteralOp, LiteralValue
from isthmus.sizes import Dim, Size


class LaunchOp(KernelOp):
    """An op of a function at the kernel level: tensors in, tensors out; `places` say where its results live."""


@kernel_op
class FusedOp(LaunchOp, Space):
    """One loop nest.

    sizes, classes: the space, parallel dims before row dims, the innermost last. symbols: the size symbols that it
    reads. initial: per result the operand that it starts as a copy of, or none. layouts: per result its strides in
    elements, none where row-major. Put there by schedule: partitions, vector (a dim), width (lanes), unroll; for a GPU
    also threads (of a block), group (threads that share a partition), chunk (points of a partition), flat (threads
    share out all row dims as one), owners (threads of a point, each of which writes its own places), ahead (the next
    point's row is read before this one's is used; on a CPU the level whose walk asks for it), dealt (partition p has
    the points p, p + partitions, ... in place of neighbouring ones), sharers (warps of a block, each walks a part of
    the rows of the same 32 points), unless_one (an operand, a number: where it is 1 the results are what lies in their
    places already, and nothing runs). Put there by store-past-caches: past_caches (results whose vectors go to memory
    past the caches).
    """

    name = "kernel.fused"
    inputs = var_operand_def()
    results_ = var_result_def()
    body = region_def("single_block")
    sizes = prop_def(Literal)
    classes = prop_def(Literal)
    symbols = opt_prop_def(Literal)
    initial = opt_prop_def(Literal)
    layouts = opt_prop_def(Literal)
    partitions = opt_prop_def(Literal)
    vector = opt_prop_def(Literal)
    width = opt_prop_def(Literal)
    unroll = opt_prop_def(Literal)
    threads = opt_prop_def(Literal)
    group = opt_prop_def(Literal)
    chunk = opt_prop_def(Literal)
    flat = opt_prop_def(Literal)
    owners = opt_prop_def(Literal)
    ahead = opt_prop_def(Literal)
    dealt = opt_prop_def(Literal)
    sharers = opt_prop_def(Literal)
    unless_one = opt_prop_def(Literal)
    past_caches = opt_prop_def(Literal)
    places = opt_prop_def(Literal)
    traits = traits_def(NoTerminator())

    @property
    def rows(self) -> tuple[int, ...]:
        """The row dims."""
        return tuple(d for d, c in enumerate(self.classes_) if c == "row")

    @property
    def parallel(self) -> tuple[int, ...]:
        """The parallel dims."""
        return tuple(d for d, c in enumerate(self.classes_) if c == "parallel")

    @property
    def initial_(self) -> tuple[int | None, ...]:
        """Per result the operand whose content it starts with."""
        if self.initial is None:
            return (None,) * len(self.results)
        return cast(tuple[int | None, ...], self.initial.data)

    @property
    def past_caches_(self) -> tuple[int, ...]:
        """The results whose vectors are stored past the caches."""
        return cast(tuple[int, ...], lit(self, "past_caches") or ())

    def check(self) -> None:
        sizes, classes = self.sizes.data, self.classes.data
        fits = isinstance(sizes, tuple) and isinstance(classes, tuple) and len(sizes) == len(classes)
        require(fits, "sizes and classes have one entry per dim")
        require(all(c in CLASSES for c in self.classes_), "a class is parallel or row")
        require(list(self.classes_) == sorted(self.classes_), "parallel dims come before row dims")
        self._check_results()
        _check_symbols(self)
        vector = lit(self, "vector")
        lasts = [dims[-1] for dims in (self.parallel, self.rows) if dims]
        require(vector is None or vector in lasts, "vector is the last parallel or the last row dim, or none")
        there = all(type(n) is int and 0 <= n < len(self.results) for n in self.past_caches_)
        require(there, "past_caches are numbers of results")

    def _check_results(self) -> None:
        _check_body(self)
        require(len(self.initial_) == len(self.results), "initial has one entry per result")
        for k, source in enumerate(self.initial_):
            same = source is None or self.inputs[source].type == self.results[k].type
            require(same, lambda k=k: f"result {k} cannot start as a copy of an operand of another type")


def _check_body(op: FusedOp | ContractOp) -> None:
    """Only scalar ops, on values of this body, and every result is written."""
    written: set[int] = set()
    inside: set[SSAValue] = set()
    for inner in op.block.ops:
        require(isinstance(inner, (BodyOp, LiteralOp)), lambda inner=inner: f"'{inner.name}' cannot be in a kernel")
        own = all(v in inside for v in ir.operands_of(inner))
        require(own, lambda inner=inner: f"'{inner.name}' reads a foreign value")
        inside.update(inner.results)
        if isinstance(inner, SinkOp):
            written.add(number(inner, "result"))
    for k in range(len(op.results)):
        require(k in written, lambda k=k: f"nothing writes result {k}")


def _check_symbols(op: FusedOp | ContractOp) -> None:
    """The symbols of sizes and maps are those that the kernel gets."""
    used = {s for size in op.sizes_ if isinstance(size, Size) for s in size.symbols()}
    for inner in op.block.ops:
        map_ = inner.properties.get("map")
        if isinstance(map_, Map):
            used |= {s for e in map_.data for s in e.symbols()}
    missing = sorted(used - set(op.symbols_))
    require(not missing, lambda: f"symbols {', '.join(missing)} are missing in its symbols")


@kernel_op
class ContractOp(LaunchOp, Space):
    """One contraction with what is computed on its way in and out.

    sizes, classes: the space, batch dims, then one dim each of class m, n, k. The body has one kernel.dot; what its
    operands are computed from is the prologue (a: at batch, m, k; b: at batch, n, k), what is computed from its result
    the epilogue, at batch, m, n. Results are written by stores, once per point of batch, m, n, and by accumulations
    over batch and m: one entry for each part of these that the grid makes, rows cut in whole tiles, further entries 0.
    symbols, layouts: as of kernel.fused. Put there by schedule: grid (into how many parts batch, m and n are cut: as
    many partitions as their product), tile (rows, vectors per row, lanes), block (rows, k steps and columns that are
    packed at once), direct ("a", "b": factors that are not packed; where both run along k in memory, vectors do too,
    and tile is rows, columns, lanes); for a GPU tile is rows, columns and terms of k, and there is no block.
    """

    name = "kernel.contract"
    inputs = var_operand_def()
    results_ = var_result_def()
    body = region_def("single_block")
    sizes = prop_def(Literal)
    classes = prop_def(Literal)
    symbols = opt_prop_def(Literal)
    layouts = opt_prop_def(Literal)
    partitions = opt_prop_def(Literal)
    grid = opt_prop_def(Literal)
    tile = opt_prop_def(Literal)
    block_sizes = opt_prop_def(Literal, prop_name="block")
    direct = opt_prop_def(Literal)
    cost = opt_prop_def(Literal)
    places = opt_prop_def(Literal)
    traits = traits_def(NoTerminator())

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dims."""
        return tuple(range(len(self.sizes_) - 3))

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The dims m, n and k."""
        rank = len(self.sizes_)
        return rank - 3, rank - 2, rank - 1

    @property
    def rows(self) -> tuple[int, ...]:
        """The dims that are summed over."""
        return (len(self.sizes_) - 1,)

    @property
    def parallel(self) -> tuple[int, ...]:
        """All other dims."""
        return tuple(range(len(self.sizes_) - 1))

    @property
    def initial_(self) -> tuple[None, ...]:
        """No result starts as a copy of an operand."""
        return (None,) * len(self.results)

    def fits_partial_results(self, leading: Dim) -> bool:
        """One entry for each part of batch and m that the grid makes, and any number more, which are 0."""
        parts = cast("tuple[Dim, ...]", self.grid.data)[:2] if self.grid is not None else ()
        known = all(isinstance(n, int) for n in (*parts, leading))
        return not known or math.prod(cast("tuple[int, ...]", parts)) <= cast(int, leading)

    @property
    def direct_(self) -> tuple[str, ...]:
        """Factors that are read as they lie: of `a` and `b`."""
        return cast("tuple[str, ...]", self.direct.data) if self.direct is not None else ()

    @property
    def dot(self) -> DotOp:
        """The product."""
        return next(op for op in self.block.ops if isinstance(op, DotOp))

    @property
    def sums(self) -> str:
        """The dtype that the products are added in: f32 for half precision, whose sums are rounded once."""
        dtype = ir.dtype_of(self.dot.y)
        return "f32" if ir.is_half(dtype) else dtype

    def check(self) -> None:
        sizes, classes = self.sizes.data, self.classes.data
        fits = isinstance(sizes, tuple) and isinstance(classes, tuple) and len(sizes) == len(classes)
        require(fits, "sizes and classes have one entry per dim")
        wanted = (*("batch" for _ in self.classes_[:-3]), "m", "n", "k")
        require(self.classes_ == wanted, "the classes are batch dims, then m, n, k")
        require(set(self.direct_) <= {"a", "b"}, "direct names factors, a or b")
        _check_body(self)
        _check_symbols(self)
        require(sum(isinstance(op, DotOp) for op in self.block.ops) == 1, "the body has one kernel.dot")
        self._check_sides()

    def _check_sides(self) -> None:
        """What each op may depend on: a prologue knows one side only, an epilogue no k."""
        m, n, k = self.mnk
        dims: dict[SSAValue, frozenset[int]] = {}
        after: set[SSAValue] = set()
        for op in self.block.ops:
            own = frozenset[int]().union(*(dims[v] for v in ir.operands_of(op)))
            map_ = op.properties.get("map")
            own |= map_.dims() if isinstance(map_, Map) else frozenset()
            if isinstance(op, DotOp):
                require(n not in dims[op.a], "a depends on n")
                require(m not in dims[op.b], "b depends on m")
                own -= {k}
                after.add(op.y)
            elif not after.isdisjoint(ir.operands_of(op)):
                require(k not in own, lambda op=op: f"'{op.name}' depends on the product and on k")
                after.update(op.results)
            if isinstance(op, (StoreOp, AccumulateOp)):
                require(k not in own, lambda op=op: f"'{op.name}' depends on k")
                wide = isinstance(op, AccumulateOp) or frozenset(self.parallel) <= own | self._single
                require(wide, "a store writes once per point of batch, m and n")
            dims.update((r, own) for r in op.results)

    @property
    def _single(self) -> frozenset[int]:
        """Dims of one position."""
        return frozenset(d for d, size in enumerate(self.sizes_) if size == 1)


LoopNest: TypeAlias = FusedOp | ContractOp
"""A kernel of ours."""


class ViewingOp(LaunchOp):
    """An op that sees parts of its buffers. Not to be used itself."""

    inputs = var_operand_def()
    results_ = var_result_def()
    views = opt_prop_def(Literal)

    @property
    def views_(self) -> tuple[LiteralValue, ...]:
        """One view per operand and per result; none: all of it, as it is."""
        count = len(self.inputs) + len(self.results)
        return cast(tuple[LiteralValue, ...], self.views.data) if self.views is not None else (None,) * count


@kernel_op
class ExternOp(ViewingOp):
    """A call of something that is not a kernel of ours.

    symbol: the primitive whose meaning it has (`prim.dot`), args: its literals as [key, value] pairs; or an overload
    of ATen (or of a custom library), args: its arguments with arg0, arg1, ... for operands. views: per operand, then
    per result, none or [shape, strides, offset]: what the callee sees of the buffer, strides and offset in elements.
    layouts: per result its strides, none where row-major. cost: floating-point operations.
    """

    name = "kernel.extern"
    symbol = prop_def(Literal)
    args = prop_def(Literal)
    layouts = opt_prop_def(Literal)
    cost = opt_prop_def(Literal)
    places = opt_prop_def(Literal)
    traits = traits_def()

    def check(self) -> None:
        require(isinstance(lit(self, "symbol"), str), "symbol is a string")
        require(isinstance(lit(self, "args"), tuple), "args is a list")
        require(len(self.views_) == len(self.inputs) + len(self.results), "views: one per operand and per result")
        for view in self.views_:
            if view is not None:
                fits = isinstance(view, tuple) and len(view) == 3 and isinstance(view[0], tuple)
                fits = fits and isinstance(view[1], tuple) and len(view[0]) == len(view[1])  # pyright: ignore
                require(fits, "a view is [shape, strides, offset]")


@kernel_op
class ReshapeOp(LaunchOp):
    """y = the bytes of x, both row-major, in another shape: it has the place of its operand and nothing runs."""

    name = "kernel.reshape"
    inputs = var_operand_def()
    results_ = var_result_def()
    places = opt_prop_def(Literal)
    traits = traits_def(Pure())

    def check(self) -> None:
        (x,), (y,) = ir.operands_of(self), self.results
        fits = ir.numel(x) == ir.numel(y) and ir.dtype_of(x) == ir.dtype_of(y)
        require(fits, lambda: f"{x.type} and {y.type} are not the same bytes")


@kernel_op
class JoinOp(LaunchOp):
    """y = the xs, all row-major, one after the other along dim 0: each is made in its part of y's place where the plan
    allows that, else copied there."""

    name = "kernel.join"
    inputs = var_operand_def()
    results_ = var_result_def()
    places = opt_prop_def(Literal)
    traits = traits_def(Pure())

    @property
    def starts(self) -> tuple[int, ...]:
        """Per operand the element of y that is its first."""
        counts = [cast(int, ir.numel(x)) for x in ir.operands_of(self)]
        return tuple(accumulate(counts, initial=0))[:-1]

    def check(self) -> None:
        xs, (y,) = ir.operands_of(self), self.results
        shapes = [ir.shape_of(x) for x in xs]
        known = all(isinstance(n, int) for shape in shapes for n in shape) and all(shapes)
        require(known, "its operands have dims of known sizes")
        lengths = sum(cast(int, shape[0]) for shape in shapes)
        fits = ir.shape_of(y)[:1] == (lengths,) and all(shape[1:] == ir.shape_of(y)[1:] for shape in shapes)
        require(fits and all(ir.dtype_of(x) == ir.dtype_of(y) for x in xs), "its operands make up its result")
