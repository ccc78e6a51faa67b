"""Primitives that make or move elements without arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, var_operand_def

from isthmus import ir
from isthmus.dialects.prim.base import (
    Literals,
    PrimOp,
    Types,
    dim,
    integer,
    ints,
    prim_op,
    require,
    require_dims,
)
from isthmus.ir import Literal, Shape
from isthmus.sizes import Dim, Size

if TYPE_CHECKING:
    from isthmus.dialects.prim.emitter import Emitter


class SourceOp(PrimOp):
    """A value made from literals alone."""

    COST: ClassVar = 0.0
    EXPLICIT: ClassVar = True


@prim_op
class ConstOp(SourceOp):
    """y[i] = value"""

    name = "prim.const"
    value = prop_def(Literal)
    y = result_def()


@prim_op
class SizeOp(SourceOp):
    """y = the value of a size expression, 0-d i64"""

    name = "prim.size"
    expr = prop_def(Literal)
    y = result_def()

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        dim(literals["expr"])
        require(results[0] == ir.tensor((), "i64"), "gives a tensor<i64>")


@prim_op
class IotaOp(SourceOp):
    """y[i] = i[dim]"""

    name = "prim.iota"
    dim = prop_def(Literal)
    y = result_def()

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        require_dims((integer(literals["dim"]),), len(ir.shape_of(results[0])), "dim")


class MovementOp(PrimOp):
    """The same elements at other indices; linear in x, and a map of indices when it is fused."""

    COST: ClassVar = 0.0
    x = operand_def()
    y = result_def()


class ViewOp(MovementOp):
    """A movement that reads every operand element at most once per pass: free inside a kernel."""


@prim_op
class BroadcastOp(ViewOp):
    """y[i] = x[i[dims[0]], i[dims[1]], ...]: dimension k of x is dimension dims[k] of y, of the same size"""

    name = "prim.broadcast"
    EXPLICIT: ClassVar = True
    dims = prop_def(Literal)

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        dims = ints(literals["dims"])
        source, target = ir.shape_of(types[0]), ir.shape_of(results[0])
        require_dims(dims, len(target))
        fits = len(dims) == len(source) and all(target[d] == s for d, s in zip(dims, source, strict=True))
        require(fits, lambda: f"cannot put {types[0]} into dims {list(dims)} of {results[0]}")

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        inner = operands[0].owner
        result = literals["result"]
        assert isinstance(result, tuple)
        shape: Shape = result  # pyright: ignore[reportAssignmentType]
        dims = ints(literals["dims"])
        if dims == tuple(range(len(shape))):
            return operands[0]
        if isinstance(inner, ConstOp):
            return e.const(inner.value.data, shape, ir.dtype_of(operands[0]))
        if isinstance(inner, BroadcastOp):
            first = ints(inner.dims.data)
            return e.broadcast(inner.x, shape, tuple(dims[d] for d in first))
        return None


@prim_op
class ReshapeOp(ViewOp):
    """y = the elements of x in row-major order in another shape"""

    name = "prim.reshape"
    EXPLICIT: ClassVar = True

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        # Symbolic counts can be equal for a reason that the normal form does not know: s0*s1 and s0*4*(s1//4).
        difference = ir.numel(types[0]) - ir.numel(results[0])
        fits = isinstance(difference, Size) or difference == 0
        require(fits, lambda: f"{types[0]} and {results[0]} differ in elements")

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        inner = operands[0].owner
        shape: Shape = literals["result"]  # pyright: ignore[reportAssignmentType]
        if ir.shape_of(operands[0]) == shape:
            return operands[0]
        if isinstance(inner, ReshapeOp):
            return e.reshape(inner.x, shape)
        if isinstance(inner, ConstOp):
            return e.const(inner.value.data, shape, ir.dtype_of(operands[0]))
        return None


@prim_op
class TransposeOp(ViewOp):
    """y[i] = x at the index j with j[perm[k]] = i[k]: dimension k of y is dimension perm[k] of x"""

    name = "prim.transpose"
    perm = prop_def(Literal)

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        perm, shape = ints(literals["perm"]), ir.shape_of(types[0])
        require(sorted(perm) == list(range(len(shape))), lambda: f"{list(perm)} is no permutation of {len(shape)} dims")
        return (ir.tensor(tuple(shape[p] for p in perm), ir.dtype_of(types[0])),)

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        perm = ints(literals["perm"])
        inner = operands[0].owner
        if perm == tuple(range(len(perm))):
            return operands[0]
        if isinstance(inner, TransposeOp):
            first = ints(inner.perm.data)
            return e.transpose(inner.x, tuple(first[p] for p in perm))
        if isinstance(inner, ConstOp):
            shape = ir.shape_of(operands[0])
            return e.const(inner.value.data, tuple(shape[p] for p in perm), ir.dtype_of(operands[0]))
        return None


def slice_length(start: Dim, limit: Dim, stride: int) -> Dim:
    """Give ⌈(limit - start) / stride⌉."""
    return (limit - start + (stride - 1)) // stride


@prim_op
class SliceOp(ViewOp):
    """y[..., k, ...] = x[..., start + k·stride, ...] along dim, while below limit"""

    name = "prim.slice"
    dim = prop_def(Literal)
    start = prop_def(Literal)
    limit = prop_def(Literal)
    stride = prop_def(Literal)

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        shape = list(ir.shape_of(types[0]))
        at, start, limit = integer(literals["dim"]), dim(literals["start"]), dim(literals["limit"])
        stride = integer(literals["stride"])
        require_dims((at,), len(shape), "dim")
        require(stride >= 1, "stride must be at least 1")
        for low, high, what in ((0, start, "start"), (start, limit, "limit"), (limit, shape[at], "limit")):
            room = high - low
            fits = isinstance(room, Size) or room >= 0
            require(fits, lambda what=what: f"{what} is out of range in dim {at} of {types[0]}")
        shape[at] = slice_length(start, limit, stride)
        return (ir.tensor(shape, ir.dtype_of(types[0])),)

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        x = operands[0]
        size = ir.shape_of(x)[integer(literals["dim"])]
        whole = literals["start"] == 0 and literals["limit"] == size and literals["stride"] == 1
        if whole:
            return x
        if isinstance(x.owner, ConstOp):
            (type_,) = cls.infer((x.type,), literals)
            return e.const(x.owner.value.data, ir.shape_of(type_), ir.dtype_of(x))
        return None


@prim_op
class PadOp(MovementOp):
    """y = x along dim with `interior` values between neighbours and `low`, `high` values outside"""

    name = "prim.pad"
    dim = prop_def(Literal)
    low = prop_def(Literal)
    high = prop_def(Literal)
    interior = prop_def(Literal)
    value = prop_def(Literal)

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        shape = list(ir.shape_of(types[0]))
        at, interior = integer(literals["dim"]), integer(literals["interior"])
        require_dims((at,), len(shape), "dim")
        low, high = dim(literals["low"]), dim(literals["high"])
        for amount in (low, high, interior):
            require(isinstance(amount, Size) or amount >= 0, "padding must not be negative; use slice")
        size = shape[at]
        spread = size if interior == 0 else size + (size - 1) * interior
        shape[at] = low + spread + high
        return (ir.tensor(shape, ir.dtype_of(types[0])),)

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        none = literals["low"] == 0 and literals["high"] == 0 and literals["interior"] == 0
        return operands[0] if none else None


@prim_op
class ReverseOp(ViewOp):
    """y = x with the order of elements reversed along dims"""

    name = "prim.reverse"
    dims = prop_def(Literal)

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        require_dims(ints(literals["dims"]), len(ir.shape_of(types[0])))
        return types

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        return operands[0] if not ints(literals["dims"]) else None


@prim_op
class ConcatOp(PrimOp):
    """y = the operands one after the other along dim"""

    name = "prim.concat"
    COST: ClassVar = 0.0
    xs = var_operand_def()
    dim = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        require(bool(types), "needs an operand")
        at = integer(literals["dim"])
        first, dtype = ir.shape_of(types[0]), ir.dtype_of(types[0])
        require_dims((at,), len(first), "dim")
        total: Dim = 0
        for type_ in types:
            shape = ir.shape_of(type_)
            same = (*shape[:at], *shape[at + 1 :]) == (*first[:at], *first[at + 1 :]) and ir.dtype_of(type_) == dtype
            require(same, lambda: f"cannot join {', '.join(map(str, types))} along dim {at}")
            total = total + shape[at]
        return (ir.tensor((*first[:at], total, *first[at + 1 :]), dtype),)

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        return operands[0] if len(operands) == 1 else None
