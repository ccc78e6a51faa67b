"""Fused kernels, the scalar ops of their bodies, and library calls.

A kernel walks its space: every *parallel* dim, and at each of these points every *row* dim. Its body is one block of
scalar ops in SSA: the arithmetic of `prim` on element types, and the ops of this file. A value belongs to the dims
that it depends on; what a reduction gives is known only after its row has been walked, so ops have levels
(`facts.levels`) and a kernel walks its rows once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar, cast

from xdsl.ir import Attribute, Block, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.traits import NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.kernel.map import Map, parse_exprs
from isthmus.ir import Literal, LiteralOp, LiteralValue, Shape
from isthmus.sizes import Dim, Size

CLASSES = ("parallel", "row")
REDUCTIONS = ("add", "mul", "max", "min", "and", "or")
"""max and min give NaN where either is; `and`, `or` bit by bit."""
ARG_REDUCTIONS = ("argmax", "argmin")
STORE_KINDS = ("set", "add", "mul", "max", "min")
RESIDENCES = ("recompute", "reload", "keep")

KERNEL_OPS: list[type[KernelOp]] = []

OpT = TypeVar("OpT", bound="KernelOp")


def kernel_op(cls: type[OpT]) -> type[OpT]:
    """Define an op of this dialect."""
    defined = irdl_op_definition(cls)
    defined.HINT = defined.name.rpartition(".")[2]
    KERNEL_OPS.append(defined)
    return defined


class KernelOp(LiteralOp):
    """An op whose literals may be maps: `map = [d0, d1*4]`."""

    HINT: ClassVar[str] = "k"

    @classmethod
    def parse_entry(cls, key: str, parser: Parser) -> Attribute:
        return Map.of(parse_exprs(parser)) if key == "map" else super().parse_entry(key, parser)

    def verify_(self) -> None:
        """Run `check`, naming the op in what it raises."""
        try:
            self.check()
        except IRError as error:
            raise VerifyException(f"'{self.name}': {error.what}") from error

    def check(self) -> None:
        """Raise IRError where the op breaks a rule of its own."""


def require(condition: bool, what: str | Callable[[], str]) -> None:
    """Raise IRError(what) unless the condition holds."""
    if not condition:
        raise IRError(what if isinstance(what, str) else what())


def lit(op: LiteralOp, key: str) -> LiteralValue:
    """Give the value of a literal, None when absent."""
    return ir.literal(op, key)


def number(op: LiteralOp, key: str) -> int:
    """Give a literal that must be an int."""
    found = ir.literal(op, key)
    require(type(found) is int, lambda: f"{key} must be an integer")
    return cast(int, found)


def word(op: LiteralOp, key: str, allowed: tuple[str, ...]) -> str:
    """Give a literal that must be one of some words."""
    found = ir.literal(op, key)
    require(found in allowed, lambda: f"{key} must be one of {', '.join(allowed)}")
    return cast(str, found)


def _types(values: tuple[SSAValue, ...]) -> list[str]:
    return [ir.dtype_of(v) for v in values]


# ---- body ops


class BodyOp(KernelOp):
    """A scalar op that only a kernel body may hold."""

    @property
    def kernel(self) -> FusedOp:
        """The kernel around the op."""
        parent = self.parent_op()
        require(isinstance(parent, FusedOp), "belongs into a kernel.fused")
        return cast(FusedOp, parent)

    def check_map(self, map_: Map, rank: int, values: int, what: str) -> None:
        """Check that a map has one index per dimension and names only what there is."""
        require(len(map_.data) == rank, lambda: f"map {map_} has {len(map_.data)} indices, {what} has {rank} dims")
        dims = len(self.kernel.sizes_)
        require(max(map_.dims(), default=-1) < dims, lambda: f"map {map_} reads a dim beyond the {dims} of the space")
        require(max(map_.values(), default=-1) < values, lambda: f"map {map_} reads a value that is no operand")


@kernel_op
class LoadOp(BodyOp):
    """y = operand[map]; operands: the values v0, v1, ... of the map (i64), then with `default` a predicate (i1).

    Where the predicate is false the result is `default` and memory is not read. Indices must be in range.
    """

    name = "kernel.load"
    inputs = var_operand_def()
    operand = prop_def(Literal)
    map = prop_def(Map)
    default = opt_prop_def(Literal)
    y = result_def()
    traits = traits_def(Pure())

    @property
    def index_values(self) -> tuple[SSAValue, ...]:
        """The values v0, v1, ..."""
        return ir.operands_of(self)[: -1 if self.default is not None else None]

    @property
    def predicate(self) -> SSAValue | None:
        """Where memory is read; None: everywhere."""
        return ir.operands_of(self)[-1] if self.default is not None else None

    def check(self) -> None:
        at, kernel = number(self, "operand"), self.kernel
        require(0 <= at < len(kernel.inputs), lambda: f"the kernel has no operand {at}")
        source = kernel.inputs[at]
        dtypes = _types(ir.operands_of(self))
        wanted = ["i64"] * len(self.index_values) + ["i1"] * (self.default is not None)
        require(dtypes == wanted, lambda: f"wants operands of {wanted}, not {dtypes}")
        require(ir.dtype_of(source) == ir.dtype_of(self.y), lambda: f"loads {ir.dtype_of(source)}")
        self.check_map(self.map, len(ir.shape_of(source)), len(self.index_values), f"operand {at}")


@kernel_op
class IndexOp(BodyOp):
    """y = the one index of map, as i64: a position of the space, a size; operands: v0, v1, ... of the map (i64)"""

    name = "kernel.index"
    inputs = var_operand_def()
    map = prop_def(Map)
    y = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        require(ir.dtype_of(self.y) == "i64", "gives an i64")
        dtypes = _types(ir.operands_of(self))
        require(dtypes == ["i64"] * len(dtypes), "wants operands of i64")
        self.check_map(self.map, 1, len(dtypes), "an index")


@kernel_op
class CheckOp(BodyOp):
    """y = i where 0 ≤ i < bound, else 0 and an IndexError; with a second operand (i1) only where that is true"""

    name = "kernel.check"
    inputs = var_operand_def()
    bound = prop_def(Literal)
    dim = prop_def(Literal)
    y = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        dtypes = _types(ir.operands_of(self))
        require(dtypes in (["i64"], ["i64", "i1"]) and ir.dtype_of(self.y) == "i64", "wants i64 and maybe i1")
        require(isinstance(lit(self, "bound"), (int, Size)), "bound is a size")
        number(self, "dim")


@kernel_op
class RngOp(BodyOp):
    """y = Philox4x32-10(key, counter): uniform in [0, 1), or 32 random bits as i64; as prim.rng"""

    name = "kernel.rng"
    inputs = var_operand_def()
    kind = prop_def(Literal)
    y = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        require(_types(ir.operands_of(self)) == ["i64", "i64"], "wants a key and a counter, both i64")
        word(self, "kind", ("uniform", "bits"))


@kernel_op
class ReduceOp(BodyOp):
    """y = x over dims of the space combined by kind; y belongs to the other dims, and to the next level.

    argmax, argmin take (x, position) and give the extremum and the smallest position (i64) where it is; a NaN counts
    as the extremum.
    """

    name = "kernel.reduce"
    inputs = var_operand_def()
    kind = prop_def(Literal)
    dims = prop_def(Literal)
    results_ = var_result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        kind = word(self, "kind", REDUCTIONS + ARG_REDUCTIONS)
        dtypes = _types(ir.operands_of(self))
        require(dtypes == _types(tuple(self.results)), "results have the operands' dtypes")
        fits = len(dtypes) == 2 and dtypes[1] == "i64" if kind in ARG_REDUCTIONS else len(dtypes) == 1
        require(fits, lambda: f"{kind} does not take {dtypes}")
        dims, classes = lit(self, "dims"), self.kernel.classes_
        require(isinstance(dims, tuple) and bool(dims), "dims are missing")
        for d in cast(tuple[int, ...], dims):
            require(0 <= d < len(classes) and classes[d] == "row", lambda d=d: f"dim {d} is no row dim")


@kernel_op
class CumulativeOp(BodyOp):
    """y at position k of the row dim `dim` = x at 0..k (k.. when reverse) combined by kind; walks the row in order"""

    name = "kernel.cumulative"
    inputs = var_operand_def()
    kind = prop_def(Literal)
    dim = prop_def(Literal)
    reverse = prop_def(Literal)
    y = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        word(self, "kind", REDUCTIONS)
        dtypes = _types(ir.operands_of(self))
        require(dtypes == [ir.dtype_of(self.y)], "the result has the operand's dtype")
        rows = [d for d, c in enumerate(self.kernel.classes_) if c == "row"]
        require(rows == [number(self, "dim")], "dim must be the only row dim")


class SinkOp(BodyOp):
    """Writes a result of the kernel."""


@kernel_op
class StoreOp(SinkOp):
    """result[map] = x (operand 0), or combined with what is there by `kind`; further operands: v0, v1, ... of the map.

    With values in the map (a scatter) points write in order: row dims in row-major order inside a parallel point,
    and different parallel points write different elements. `set`: the last write stays.
    """

    name = "kernel.store"
    inputs = var_operand_def()
    result = prop_def(Literal)
    map = prop_def(Map)
    kind = opt_prop_def(Literal)
    traits = traits_def()

    @property
    def x(self) -> SSAValue:
        """What is stored."""
        return ir.operands_of(self)[0]

    @property
    def index_values(self) -> tuple[SSAValue, ...]:
        """The values v0, v1, ..."""
        return ir.operands_of(self)[1:]

    def check(self) -> None:
        at, kernel = number(self, "result"), self.kernel
        require(0 <= at < len(kernel.results), lambda: f"the kernel has no result {at}")
        if self.kind is not None:
            word(self, "kind", STORE_KINDS)
        dtypes = _types(ir.operands_of(self))
        wanted = [ir.dtype_of(kernel.results[at]), *["i64"] * (len(dtypes) - 1)]
        require(dtypes == wanted, lambda: f"wants operands of {wanted}, not {dtypes}")
        self.check_map(self.map, len(ir.shape_of(kernel.results[at])), len(dtypes) - 1, f"result {at}")


@kernel_op
class AccumulateOp(SinkOp):
    """result[p, map] = x at the points of partition p combined by kind, in order; map reads row dims only.

    The result has one leading entry per partition; an ordinary kernel combines them.
    """

    name = "kernel.accumulate"
    inputs = var_operand_def()
    result = prop_def(Literal)
    map = prop_def(Map)
    kind = prop_def(Literal)
    traits = traits_def()

    @property
    def x(self) -> SSAValue:
        """What is accumulated."""
        return ir.operands_of(self)[0]

    def check(self) -> None:
        at, kernel = number(self, "result"), self.kernel
        require(0 <= at < len(kernel.results), lambda: f"the kernel has no result {at}")
        word(self, "kind", REDUCTIONS)
        result = kernel.results[at]
        require(_types(ir.operands_of(self)) == [ir.dtype_of(result)], "wants one operand of the result's dtype")
        self.check_map(self.map, len(ir.shape_of(result)) - 1, 0, f"result {at} without its partitions")
        rows = all(kernel.classes_[d] == "row" for d in self.map.dims())
        require(rows, "the map of an accumulation reads row dims only")
        partitions = kernel.partitions_
        fits = partitions is None or ir.shape_of(result)[0] == partitions
        require(fits, lambda: f"result {at} must have {partitions} leading entries, one per partition")


# ---- ops of a function


class LaunchOp(KernelOp):
    """An op of a function at the kernel level: tensors in, tensors out; `places` say where its results live."""


@kernel_op
class FusedOp(LaunchOp):
    """One loop nest.

    sizes, classes: the space, parallel dims before row dims, the innermost last. symbols: the size symbols that it
    reads. initial: per result the operand that it starts as a copy of, or none. layouts: per result its strides in
    elements, none where row-major. Put there by schedule: partitions, vector (a dim), width (lanes), unroll.
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
    places = opt_prop_def(Literal)
    traits = traits_def(NoTerminator())

    @property
    def sizes_(self) -> Shape:
        """Sizes of the space's dims."""
        return cast(Shape, self.sizes.data)

    @property
    def classes_(self) -> tuple[str, ...]:
        """`parallel` or `row` for each dim."""
        return cast(tuple[str, ...], self.classes.data)

    @property
    def rows(self) -> tuple[int, ...]:
        """The row dims."""
        return tuple(d for d, c in enumerate(self.classes_) if c == "row")

    @property
    def parallel(self) -> tuple[int, ...]:
        """The parallel dims."""
        return tuple(d for d, c in enumerate(self.classes_) if c == "parallel")

    @property
    def symbols_(self) -> tuple[str, ...]:
        """Names of the size symbols, in the order in which the kernel gets their values."""
        return cast(tuple[str, ...], self.symbols.data) if self.symbols is not None else ()

    @property
    def partitions_(self) -> Dim | None:
        """How many partitions; None before schedule."""
        return cast(Dim, self.partitions.data) if self.partitions is not None else None

    @property
    def initial_(self) -> tuple[int | None, ...]:
        """Per result the operand whose content it starts with."""
        if self.initial is None:
            return (None,) * len(self.results)
        return cast(tuple[int | None, ...], self.initial.data)

    @property
    def block(self) -> Block:
        """The body."""
        return self.body.block

    def check(self) -> None:
        sizes, classes = self.sizes.data, self.classes.data
        fits = isinstance(sizes, tuple) and isinstance(classes, tuple) and len(sizes) == len(classes)
        require(fits, "sizes and classes have one entry per dim")
        require(all(c in CLASSES for c in self.classes_), "a class is parallel or row")
        require(list(self.classes_) == sorted(self.classes_), "parallel dims come before row dims")
        self._check_results()
        self._check_symbols()
        vector = lit(self, "vector")
        lasts = [dims[-1] for dims in (self.parallel, self.rows) if dims]
        require(vector is None or vector in lasts, "vector is the last parallel or the last row dim, or none")

    def _check_results(self) -> None:
        written: dict[int, bool] = {}
        inside: set[SSAValue] = set()
        for op in self.block.ops:
            require(isinstance(op, (BodyOp, LiteralOp)), lambda op=op: f"'{op.name}' cannot be in a kernel")
            require(all(v in inside for v in ir.operands_of(op)), lambda op=op: f"'{op.name}' reads a foreign value")
            inside.update(op.results)
            if isinstance(op, SinkOp):
                written[number(op, "result")] = True
        for k in range(len(self.results)):
            require(k in written, lambda k=k: f"nothing writes result {k}")
        require(len(self.initial_) == len(self.results), "initial has one entry per result")
        for k, source in enumerate(self.initial_):
            same = source is None or self.inputs[source].type == self.results[k].type
            require(same, lambda k=k: f"result {k} cannot start as a copy of an operand of another type")

    def _check_symbols(self) -> None:
        used = {s for size in self.sizes_ if isinstance(size, Size) for s in size.symbols()}
        for op in self.block.ops:
            map_ = op.properties.get("map")
            if isinstance(map_, Map):
                used |= {s for e in map_.data for s in e.symbols()}
        missing = sorted(used - set(self.symbols_))
        require(not missing, lambda: f"symbols {', '.join(missing)} are missing in its symbols")


@kernel_op
class ExternOp(LaunchOp):
    """A call of something that is not a kernel of ours.

    symbol: the primitive whose meaning it has (`prim.dot`), args: its literals as [key, value] pairs; or an overload
    of ATen (or of a custom library), args: its arguments with arg0, arg1, ... for operands. views: per operand, then
    per result, none or [shape, strides, offset]: what the callee sees of the buffer, strides and offset in elements.
    layouts: per result its strides, none where row-major. cost: floating-point operations.
    """

    name = "kernel.extern"
    inputs = var_operand_def()
    results_ = var_result_def()
    symbol = prop_def(Literal)
    args = prop_def(Literal)
    views = opt_prop_def(Literal)
    layouts = opt_prop_def(Literal)
    cost = opt_prop_def(Literal)
    places = opt_prop_def(Literal)
    traits = traits_def()

    @property
    def views_(self) -> tuple[LiteralValue, ...]:
        """One view per operand and per result; none: all of it, as it is."""
        count = len(self.inputs) + len(self.results)
        return cast(tuple[LiteralValue, ...], self.views.data) if self.views is not None else (None,) * count

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
