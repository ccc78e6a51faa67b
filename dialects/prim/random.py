"""Random numbers as pure functions of a key and a counter."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import operand_def, prop_def, result_def

from isthmus import ir
from isthmus.dialects.prim.base import Literals, PrimOp, Types, dim, prim_op, require, text
from isthmus.ir import Literal

RNG_KINDS = ("uniform", "bits")


@prim_op
class RngOp(PrimOp):
    """y[i] = Philox4x32-10(key, offset + row-major position of i): uniform in [0, 1), or 32 random bits as i64

    The counter's words are (low, high of the 64-bit counter, 0, 0), the key's (low, high of the 64-bit key); w0, w1 are
    the first two words of the result. Bits are w0. Uniform numbers are the top n bits of w0 times 2⁻ⁿ, n = 24 for f32,
    11 for f16, 8 for bf16; for f64 the top 53 bits of w0·2³² + w1 times 2⁻⁵³.
    """

    name = "prim.rng"
    COST: ClassVar = 30.0
    EXPLICIT: ClassVar = True
    key = operand_def()
    kind = prop_def(Literal)
    offset = prop_def(Literal)
    y = result_def()

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        require(types[0] == ir.tensor((), "i64"), "the key is a tensor<i64>")
        require(text(literals["kind"]) in RNG_KINDS, lambda: f"kind is one of {', '.join(RNG_KINDS)}")
        dim(literals["offset"])
