"""The scalar ops of a kernel's body that are not arithmetic: reads, positions, reductions, writes."""

from __future__ import annotations

from typing import cast

from xdsl.ir import Block, SSAValue
from xdsl.irdl import (
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure

from isthmus import ir
from isthmus.dialects.kernel.base import (
    ARG_REDUCTIONS,
    REDUCTIONS,
    STORE_KINDS,
    KernelOp,
    dtypes_of,
    kernel_op,
    lit,
    number,
    require,
    word,
)
from isthmus.dialects.kernel.map import Map
from isthmus.ir import Literal, Shape
from isthmus.sizes import Dim, Size


class Scheduled(KernelOp):
    """A kernel of ours, loop nest or stream: what is asked of all."""

    @property
    def symbols_(self) -> tuple[str, ...]:
        """Names of the size symbols, in the order in which the kernel gets their values."""
        return cast("tuple[str, ...] | None", lit(self, "symbols")) or ()

    @property
    def partitions_(self) -> Dim | None:
        """How many partitions; None before schedule."""
        return cast("Dim | None", lit(self, "partitions"))


class Space(Scheduled):
    """An op with a body that is run at every point of a space: what body ops may ask of the kernel around them."""

    @property
    def operands_(self) -> tuple[SSAValue, ...]:
        """The tensors that it reads."""
        return ir.operands_of(self)

    @property
    def block(self) -> Block:
        """The body."""
        return self.regions[0].block

    @property
    def sizes_(self) -> Shape:
        """Sizes of the space's dims."""
        return cast(Shape, lit(self, "sizes"))

    @property
    def classes_(self) -> tuple[str, ...]:
        """What each dim is: `parallel` or `row`; of a contraction `batch`, `m`, `n` or `k`."""
        return cast(tuple[str, ...], lit(self, "classes"))

    def fits_partial_results(self, leading: Dim) -> bool:
        """Whether sums over points may have so many leading entries."""
        return self.partitions_ is None or leading == self.partitions_


class BodyOp(KernelOp):
    """A scalar op that only a kernel body may hold."""

    @property
    def kernel(self) -> Space:
        """The kernel around the op."""
        parent = self.parent_op()
        require(isinstance(parent, Space), "belongs into a kernel.fused")
        return cast(Space, parent)

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
        require(0 <= at < len(kernel.operands_), lambda: f"the kernel has no operand {at}")
        source = kernel.operands_[at]
        dtypes = dtypes_of(ir.operands_of(self))
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
        dtypes = dtypes_of(ir.operands_of(self))
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
        dtypes = dtypes_of(ir.operands_of(self))
        require(dtypes in (["i64"], ["i64", "i1"]) and ir.dtype_of(self.y) == "i64", "wants i64 and maybe i1")
        require(isinstance(lit(self, "bound"), (int, Size)), "bound is a size")
        number(self, "dim")


@kernel_op
class RngOp(BodyOp):
    """y = number q of Philox4x32-10(key, ·): uniform in [0, 1), or 32 random bits as i64; as prim.rng, q = %q"""

    name = "kernel.rng"
    inputs = var_operand_def()
    kind = prop_def(Literal)
    y = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        require(dtypes_of(ir.operands_of(self)) == ["i64", "i64"], "wants a key and a position, both i64")
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
        dtypes = dtypes_of(ir.operands_of(self))
        require(dtypes == dtypes_of(tuple(self.results)), "results have the operands' dtypes")
        fits = len(dtypes) == 2 and dtypes[1] == "i64" if kind in ARG_REDUCTIONS else len(dtypes) == 1
        require(fits, lambda: f"{kind} does not take {dtypes}")
        dims, classes = lit(self, "dims"), self.kernel.classes_
        require(isinstance(dims, tuple) and bool(dims), "dims are missing")
        for d in cast(tuple[int, ...], dims):
            require(0 <= d < len(classes) and classes[d] == "row", lambda d=d: f"dim {d} is no row dim")


@kernel_op
class DotOp(BodyOp):
    """y = Σ a·b over the dims of class `k`; a may not depend on the dim `n`, nor b on `m`; y is at the next level.

    The sum has the dtype of a and b. Only a kernel.contract has one, and exactly one. precision "tf32": 10 bits of the
    mantissa of factors in f32 may be enough, as torch's setting for products on a GPU says; else there is none.
    """

    name = "kernel.dot"
    inputs = var_operand_def()
    dims = prop_def(Literal)
    precision = opt_prop_def(Literal)
    y = result_def()
    traits = traits_def(Pure())

    @property
    def a(self) -> SSAValue:
        """The factor that varies along m."""
        return ir.operands_of(self)[0]

    @property
    def b(self) -> SSAValue:
        """The factor that varies along n."""
        return ir.operands_of(self)[1]

    def check(self) -> None:
        dtypes = dtypes_of(ir.operands_of(self))
        require(dtypes == [ir.dtype_of(self.y)] * 2, "wants two operands of the result's dtype")
        dims = tuple(d for d, c in enumerate(self.kernel.classes_) if c == "k")
        require(bool(dims) and lit(self, "dims") == dims, "dims are the k dims of a kernel.contract")
        if self.precision is not None:
            require(self.precision.data == "tf32" and dtypes[0] == "f32", "precision is tf32, of factors in f32")


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
        dtypes = dtypes_of(ir.operands_of(self))
        require(dtypes == [ir.dtype_of(self.y)], "the result has the operand's dtype")
        rows = [d for d, c in enumerate(self.kernel.classes_) if c == "row"]
        require(rows == [number(self, "dim")], "dim must be the only row dim")

    @property
    def in_any_order(self) -> bool:
        """Whether neighbours may be combined before what came earlier; products of f64 would overflow in between."""
        dtype = ir.dtype_of(self.y)
        return not ir.is_complex(dtype) and (lit(self, "kind") != "mul" or dtype != "f64")


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
        dtypes = dtypes_of(ir.operands_of(self))
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
        require(dtypes_of(ir.operands_of(self)) == [ir.dtype_of(result)], "wants one operand of the result's dtype")
        self.check_map(self.map, len(ir.shape_of(result)) - 1, 0, f"result {at} without its partitions")
        rows = all(kernel.classes_[d] in ("row", "n") for d in self.map.dims())
        require(rows, "the map of an accumulation reads row dims only")
        leading = ir.shape_of(result)[0]
        wrong = lambda: f"result {at} must have {kernel.partitions_} leading entries, one per partition"  # noqa: E731
        require(kernel.fits_partial_results(leading), wrong)
