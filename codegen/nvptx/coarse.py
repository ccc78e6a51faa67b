"""Functions of few digits: for what is rounded to half precision afterwards."""

from __future__ import annotations

from xdsl.ir import Operation

from isthmus.codegen.llvm_text import F32, Value
from isthmus.codegen.vector_math import Math
from isthmus.codegen.vector_math.special_unit import LOG2_E
from isthmus.ir import Literal


def is_coarse(op: Operation) -> bool:
    """Whether few digits of an op's result are enough."""
    literal = op.attributes.get("accuracy")
    return isinstance(literal, Literal) and literal.data == "half"


def coarse_exp(m: Math, x: Value) -> Value:
    """Give e^x of f32 within |x| units of the last place, 0 instead of denormals."""
    return m.each_lane(lambda lane: m.f.call("llvm.nvvm.ex2.approx.ftz.f32", F32, lane), x * LOG2_E)
