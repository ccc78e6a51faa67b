"""Reductions, cumulative sums and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def

from isthmus import ir
from isthmus.dialects.prim.base import (
    Literals,
    PrimOp,
    Types,
    integer,
    ints,
    prim_op,
    require,
    require_dims,
    text,
    without,
)
from isthmus.ir import Literal
from isthmus.sizes import Dim

if TYPE_CHECKING:
    from isthmus.dialects.prim.emitter import Emitter

COMBINERS = ("add", "mul", "max", "min", "and", "or")
"""How two elements become one; max and min give NaN where either is."""


def _require_combiner(kind: str, dtype: str) -> None:
    require(kind in COMBINERS, lambda: f"kind {kind!r} is none of {', '.join(COMBINERS)}")
    if kind in ("and", "or"):
        require(dtype == "i1" or ir.is_integer(dtype), lambda: f"{kind} is not defined for {dtype}")
    else:
        require(dtype != "i1" or kind in ("max", "min"), lambda: f"{kind} is not defined for i1")


@prim_op
class ReduceOp(PrimOp):
    """y = the elements of x along dims combined by kind; the identity where there are none"""

    name = "prim.reduce"
    x = operand_def()
    kind = prop_def(Literal)
    dims = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        shape, dtype, dims = ir.shape_of(types[0]), ir.dtype_of(types[0]), ints(literals["dims"])
        require_dims(dims, len(shape))
        require(dims == tuple(sorted(dims)), "dims must be ascending")
        _require_combiner(text(literals["kind"]), dtype)
        return (ir.tensor(without(shape, dims), dtype),)

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        return operands[0] if not ints(literals["dims"]) else None


@prim_op
class ArgReduceOp(PrimOp):
    """y = index (i64) of the first largest or smallest element along dim; a NaN counts as the extremum"""

    name = "prim.arg_reduce"
    COST: ClassVar = 2.0
    x = operand_def()
    kind = prop_def(Literal)
    dim = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        shape, at = ir.shape_of(types[0]), integer(literals["dim"])
        require_dims((at,), len(shape), "dim")
        require(literals["kind"] in ("max", "min"), "kind is max or min")
        return (ir.tensor(without(shape, (at,)), "i64"),)


@prim_op
class CumulativeOp(PrimOp):
    """y[..., k, ...] = x[..., 0..k, ...] along dim combined by kind (x[..., k.., ...] when reverse)"""

    name = "prim.cumulative"
    x = operand_def()
    kind = prop_def(Literal)
    dim = prop_def(Literal)
    reverse = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        require_dims((integer(literals["dim"]),), len(ir.shape_of(types[0])), "dim")
        _require_combiner(text(literals["kind"]), ir.dtype_of(types[0]))
        return types


def window_length(size: Dim, window: int, stride: int, low: int, high: int, dilation: int) -> Dim:
    """Give the number of windows along one dimension."""
    return (size + low + high - dilation * (window - 1) - 1) // stride + 1


def window_shape(types: Types, literals: Literals) -> tuple[Dim, ...]:
    """Give the shape of a window reduction over `dims` of x."""
    shape, dims = list(ir.shape_of(types[0])), ints(literals["dims"])
    require_dims(dims, len(shape))
    columns = [ints(literals[key]) for key in ("window", "strides", "low", "high", "dilations")]
    require(all(len(c) == len(dims) for c in columns), "window, strides, low, high, dilations need one entry per dim")
    for d, window, stride, low, high, dilation in zip(dims, *columns, strict=True):
        shape[d] = window_length(shape[d], window, stride, low, high, dilation)
    return tuple(shape)


@prim_op
class ReduceWindowOp(PrimOp):
    """y = the elements of each window along dims combined by kind; positions outside x give the identity"""

    name = "prim.reduce_window"
    COST: ClassVar = 4.0
    x = operand_def()
    kind = prop_def(Literal)
    dims = prop_def(Literal)
    window = prop_def(Literal)
    strides = prop_def(Literal)
    low = prop_def(Literal)
    high = prop_def(Literal)
    dilations = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        _require_combiner(text(literals["kind"]), ir.dtype_of(types[0]))
        return (ir.tensor(window_shape(types, literals), ir.dtype_of(types[0])),)


@prim_op
class MaxPoolOp(PrimOp):
    """y, index = largest element of each window along dims, and its row-major position within dims of x (i64)

    The first of equal elements, the last NaN where there is one; positions outside x never win.
    """

    name = "prim.max_pool"
    COST: ClassVar = 4.0
    x = operand_def()
    dims = prop_def(Literal)
    window = prop_def(Literal)
    strides = prop_def(Literal)
    low = prop_def(Literal)
    high = prop_def(Literal)
    dilations = prop_def(Literal)
    y = result_def()
    index = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        shape = window_shape(types, literals)
        return (ir.tensor(shape, ir.dtype_of(types[0])), ir.tensor(shape, "i64"))


@prim_op
class SortOp(PrimOp):
    """y, index = x in ascending (descending) order along dim, and where each was (i64); stable, NaN the largest"""

    name = "prim.sort"
    COST: ClassVar = 40.0
    x = operand_def()
    dim = prop_def(Literal)
    descending = prop_def(Literal)
    y = result_def()
    index = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        require_dims((integer(literals["dim"]),), len(ir.shape_of(types[0])), "dim")
        return (types[0], ir.like(types[0], "i64"))
