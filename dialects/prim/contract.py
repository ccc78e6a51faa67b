"""Contractions: the general dot product and convolution with its two transposes."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import operand_def, prop_def, result_def

from isthmus import ir
from isthmus.dialects.prim.base import Literals, PrimOp, Types, integer, ints, prim_op, require, require_dims
from isthmus.dialects.prim.reduce import window_length
from isthmus.ir import Literal, Shape


class ContractionOp(PrimOp):
    """A sum of products that is compute-bound: never recomputed unless told."""


@prim_op
class DotOp(ContractionOp):
    """y[batch, free a, free b] = Σ_contract a · b; float32 accumulation for narrower floats"""

    name = "prim.dot"
    a = operand_def()
    b = operand_def()
    batch_a = prop_def(Literal)
    batch_b = prop_def(Literal)
    contract_a = prop_def(Literal)
    contract_b = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        a, b = types
        sa, sb = ir.shape_of(a), ir.shape_of(b)
        batch_a, batch_b = ints(literals["batch_a"]), ints(literals["batch_b"])
        contract_a, contract_b = ints(literals["contract_a"]), ints(literals["contract_b"])
        require(ir.dtype_of(a) == ir.dtype_of(b), lambda: f"operand dtypes differ: {a}, {b}")
        require_dims((*batch_a, *contract_a), len(sa), "dims of a")
        require_dims((*batch_b, *contract_b), len(sb), "dims of b")
        pairs = list(zip((*batch_a, *contract_a), (*batch_b, *contract_b), strict=False))
        same_count = len(batch_a) == len(batch_b) and len(contract_a) == len(contract_b)
        fits = same_count and all(sa[i] == sb[j] for i, j in pairs)
        require(fits, lambda: f"sizes of paired dims differ: {a} and {b}, pairs {pairs}")
        free_a = tuple(s for d, s in enumerate(sa) if d not in (*batch_a, *contract_a))
        free_b = tuple(s for d, s in enumerate(sb) if d not in (*batch_b, *contract_b))
        return (ir.tensor((*(sa[d] for d in batch_a), *free_a, *free_b), ir.dtype_of(a)),)


def conv_shape(x: Shape, w: Shape, literals: Literals) -> Shape:
    """Give [N, O, *spatial] of a convolution of x [N, C, *spatial] with w [O, C / groups, *window]."""
    strides, padding = ints(literals["strides"]), ints(literals["padding"])
    dilations, groups = ints(literals["dilations"]), integer(literals["groups"])
    rank = len(x) - 2
    require(rank >= 1 and len(w) == rank + 2, lambda: f"x {list(x)} and w {list(w)} do not fit")
    require(all(len(v) == rank for v in (strides, padding, dilations)), "strides, padding, dilations: one a dimension")
    require(x[1] == w[1] * groups, lambda: f"x has {x[1]} channels, w wants {w[1] * groups}")
    spatial = [
        window_length(x[2 + i], integer(w[2 + i]), strides[i], padding[i], padding[i], dilations[i])
        for i in range(rank)
    ]
    return (x[0], w[0], *spatial)


@prim_op
class ConvOp(ContractionOp):
    """y[n, o, s] = Σ_{c, k} x[n, c, s·strides - padding + k·dilations] · w[o, c, k]; x outside is 0"""

    name = "prim.conv"
    x = operand_def()
    w = operand_def()
    strides = prop_def(Literal)
    padding = prop_def(Literal)
    dilations = prop_def(Literal)
    groups = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        x, w = types
        require(ir.dtype_of(x) == ir.dtype_of(w), lambda: f"operand dtypes differ: {x}, {w}")
        return (ir.tensor(conv_shape(ir.shape_of(x), ir.shape_of(w), literals), ir.dtype_of(x)),)


@prim_op
class ConvDxOp(ContractionOp):
    """The transpose of conv in x: gradient of x from that of y (also the transposed convolution)"""

    name = "prim.conv_dx"
    EXPLICIT: ClassVar = True
    g = operand_def()
    w = operand_def()
    strides = prop_def(Literal)
    padding = prop_def(Literal)
    dilations = prop_def(Literal)
    groups = prop_def(Literal)
    dx = result_def()

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        g, w = types
        wanted = conv_shape(ir.shape_of(results[0]), ir.shape_of(w), literals)
        require(wanted == ir.shape_of(g), lambda: f"the cotangent must be of shape {list(wanted)}, not {g}")


@prim_op
class ConvDwOp(ContractionOp):
    """The transpose of conv in w: gradient of w from that of y"""

    name = "prim.conv_dw"
    EXPLICIT: ClassVar = True
    g = operand_def()
    x = operand_def()
    strides = prop_def(Literal)
    padding = prop_def(Literal)
    dilations = prop_def(Literal)
    groups = prop_def(Literal)
    dw = result_def()

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        g, x = types
        wanted = conv_shape(ir.shape_of(x), ir.shape_of(results[0]), literals)
        require(wanted == ir.shape_of(g), lambda: f"the cotangent must be of shape {list(wanted)}, not {g}")
