"""Structured control flow with regions; everything that a region reads is passed in."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import operand_def, prop_def, region_def, traits_def, var_operand_def, var_result_def
from xdsl.traits import IsTerminator, Pure

from isthmus import ir
from isthmus.dialects.prim.base import Literals, PrimOp, Types, prim_op, require
from isthmus.ir import Literal


@prim_op
class YieldOp(PrimOp):
    """Ends a region with its results"""

    name = "prim.yield"
    EXPLICIT: ClassVar = True
    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())


class ControlOp(PrimOp):
    """An operation with regions."""

    EXPLICIT: ClassVar = True


@prim_op
class CondOp(ControlOp):
    """y = p ? then(xs) : otherwise(xs); p is a 0-d i1"""

    name = "prim.cond"
    p = operand_def()
    xs = var_operand_def()
    ys = var_result_def()
    then = region_def("single_block")
    otherwise = region_def("single_block")

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        require(types[0] == ir.tensor((), "i1"), "the condition is a tensor<i1>")


@prim_op
class WhileOp(ControlOp):
    """carry = xs[:carried]; while condition(carry, rest): carry = body(carry, rest); gives the last carry"""

    name = "prim.while"
    carried = prop_def(Literal)
    xs = var_operand_def()
    ys = var_result_def()
    condition = region_def("single_block")
    body = region_def("single_block")


@prim_op
class ScanOp(ControlOp):
    """carry, ys = body(carry, x[t], rest) for t along dimension 0 of the scanned operands (backwards when reverse).

    xs = `carried` initial carries, `scanned` operands, then the rest, which every step sees whole. Results: the
    last carries, then each step's other values stacked along a new dimension 0.
    """

    name = "prim.scan"
    carried = prop_def(Literal)
    scanned = prop_def(Literal)
    reverse = prop_def(Literal)
    xs = var_operand_def()
    ys = var_result_def()
    body = region_def("single_block")
