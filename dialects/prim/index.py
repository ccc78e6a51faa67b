"""Reads and writes at positions that are data."""

from __future__ import annotations

from typing import ClassVar

from xdsl.ir import Attribute
from xdsl.irdl import operand_def, prop_def, result_def, var_operand_def

from isthmus import ir
from isthmus.dialects.prim.base import Literals, PrimOp, Types, ints, prim_op, require, require_dims, text, without
from isthmus.ir import Literal, Shape

SCATTER_KINDS = ("set", "add", "mul", "max", "min")
"""How an update meets what is there; with `set` the last update in row-major order stays."""


def _index_shape(indices: tuple[Attribute, ...]) -> Shape:
    require(bool(indices), "needs an index operand")
    first = indices[0]
    require(all(i == first for i in indices), "index operands must have one shape and dtype")
    require(ir.dtype_of(first) in ("i64", "i32"), "indices are i64 or i32")
    return ir.shape_of(first)


@prim_op
class GatherOp(PrimOp):
    """y[s, r] = x with indices[k][s] in dimension dims[k] and r in the others; out of range is an IndexError"""

    name = "prim.gather"
    x = operand_def()
    indices = var_operand_def()
    dims = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        x, *indices = types
        dims, shape = ints(literals["dims"]), ir.shape_of(x)
        require_dims(dims, len(shape))
        require(len(dims) == len(indices), "one index operand for each of dims")
        return (ir.tensor((*_index_shape(tuple(indices)), *without(shape, dims)), ir.dtype_of(x)),)


@prim_op
class ScatterOp(PrimOp):
    """y = x, then for each s, r in order: y at (indices[k][s] in dims[k], r elsewhere) combined with updates[s, r]"""

    name = "prim.scatter"
    COST: ClassVar = 2.0
    x = operand_def()
    updates = operand_def()
    indices = var_operand_def()
    dims = prop_def(Literal)
    kind = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        x, updates, *indices = types
        dims, shape, kind = ints(literals["dims"]), ir.shape_of(x), text(literals["kind"])
        require_dims(dims, len(shape))
        require(len(dims) == len(indices), "one index operand for each of dims")
        require(kind in SCATTER_KINDS, lambda: f"kind {kind!r} is none of {', '.join(SCATTER_KINDS)}")
        wanted = ir.tensor((*_index_shape(tuple(indices)), *without(shape, dims)), ir.dtype_of(x))
        require(updates == wanted, lambda: f"updates must be {wanted}, not {updates}")
        return (x,)
