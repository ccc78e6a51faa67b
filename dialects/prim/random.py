"""Random numbers as pure functions of a key and a counter."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import operand_def, prop_def, result_def

from isthmus import ir
from isthmus.dialects.prim.base import Literals, PrimOp, Types, dim, prim_op, require, text
from isthmus.ir import Literal

RNG_KINDS = ("uniform", "bits")


def elements_of_a_counter(dtype: str) -> int:
    """Give how many numbers of a dtype one counter of Philox serves: its four 32-bit words, or two pairs of them."""
    return 2 if dtype == "f64" else 4


@prim_op
class RngOp(PrimOp):
    """y[i] = number q of Philox4x32-10(key, ·), q = offset + row-major position of i: in [0, 1), or 32 bits as i64

    Bits and numbers in f32, f16, bf16 are made of word q mod 4 of counter ⌊q / 4⌋; numbers in f64 of words
    w = 2(q mod 2) and w + 1 of counter ⌊q / 2⌋. A counter's words are (low, high of the 64-bit counter, 0, 0), the
    key's (low, high of the 64-bit key). Bits are the word itself. Uniform numbers are its top n bits times 2⁻ⁿ, n = 24
    for f32, 11 for f16, 8 for bf16; in f64 they are the top 53 bits of (word w)·2³² + (word w + 1) times 2⁻⁵³.
    Draws of one key that must not repeat each other take disjoint ranges of counters.
    """

    name = "prim.rng"
    COST: ClassVar = 9.0
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
