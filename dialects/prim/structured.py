"""Operations kept whole until late, because a better kernel or a better derivative exists for the whole."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import operand_def, opt_operand_def, opt_prop_def, prop_def, result_def, var_operand_def, var_result_def

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
from isthmus.dialects.prim.elementwise import FLOATS
from isthmus.ir import Literal
from isthmus.sizes import Dim


class StructuredOp(PrimOp):
    """An operation with an elementary form."""


def _require_float(type_: ir.Attribute) -> None:
    require(ir.dtype_of(type_) in FLOATS, lambda: f"is not defined for {ir.dtype_of(type_)}")


@prim_op
class MomentsOp(StructuredOp):
    """mean = Σx/n, var = Σ(x - mean)²/n over dims: what every normalisation is made of"""

    name = "prim.moments"
    COST: ClassVar = 3.0
    x = operand_def()
    dims = prop_def(Literal)
    mean = result_def()
    var = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        dims, shape = ints(literals["dims"]), ir.shape_of(types[0])
        require_dims(dims, len(shape))
        _require_float(types[0])
        reduced = ir.tensor(without(shape, dims), ir.dtype_of(types[0]))
        return (reduced, reduced)


class _AlongOneDim(StructuredOp):
    COST: ClassVar = 12.0
    x = operand_def()
    dim = prop_def(Literal)
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        require_dims((integer(literals["dim"]),), len(ir.shape_of(types[0])), "dim")
        _require_float(types[0])
        return types


@prim_op
class SoftmaxOp(_AlongOneDim):
    """y = exp(x - max x) / Σ exp(x - max x) along dim"""

    name = "prim.softmax"


@prim_op
class LogSoftmaxOp(_AlongOneDim):
    """y = x - max x - ln Σ exp(x - max x) along dim"""

    name = "prim.log_softmax"


@prim_op
class CrossEntropyOp(StructuredOp):
    """loss[r] = lse[r] - logits[r, target[r]], 0 where target[r] = ignore; lse[r] = ln Σ exp(logits[r])"""

    name = "prim.cross_entropy"
    COST: ClassVar = 12.0
    logits = operand_def()
    target = operand_def()
    ignore = prop_def(Literal)
    loss = result_def()
    lse = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        logits, target = types
        shape = ir.shape_of(logits)
        _require_float(logits)
        require(len(shape) == 2 and target == ir.tensor(shape[:1], "i64"), "wants logits [R, V] and i64 targets [R]")
        integer(literals["ignore"])
        row = ir.tensor(shape[:1], ir.dtype_of(logits))
        return (row, row)


def _row(q: ir.Attribute) -> ir.Attribute:
    """The type of a number per query: float32 for narrower floats, whose digits an exponential would magnify."""
    dtype = ir.dtype_of(q)
    return ir.tensor(ir.shape_of(q)[:3], "f32" if dtype in ("f16", "bf16") else dtype)


def _log_sums(q: ir.Attribute, masks: Types, literals: Literals) -> ir.Attribute:
    """The type of log-sums: in two parts where finite numbers of a mask may make them large."""
    row = _row(q)
    apart = any(ir.dtype_of(m) != "i1" for m in masks) or literals.get("fill") is not None
    return ir.tensor((2, *ir.shape_of(row)), ir.dtype_of(row)) if apart else row


def _require_attention(q: ir.Attribute, k: ir.Attribute, v: ir.Attribute) -> None:
    sq, sk, sv = ir.shape_of(q), ir.shape_of(k), ir.shape_of(v)
    _require_float(q)
    same_dtype = ir.dtype_of(q) == ir.dtype_of(k) == ir.dtype_of(v)
    ranks = len(sq) == len(sk) == len(sv) == 4
    fits = ranks and sq[0] == sk[0] and sk[:3] == sv[:3] and sq[3] == sk[3] and _divides(sk[1], sq[1])
    require(same_dtype and fits, lambda: f"wants q [B, H, L, E], k [B, G, S, E], v [B, G, S, D], not {q}, {k}, {v}")


def _divides(few: Dim, many: Dim) -> bool:
    known = isinstance(few, int) and isinstance(many, int) and few > 0
    return few == many or (known and many % few == 0)


def _require_mask(types: Types, shape: ir.Shape, dtype: str) -> None:
    allowed = (ir.tensor(shape, dtype), ir.tensor(shape, "i1"))
    require(all(t in allowed for t in types), lambda: f"the mask must be {allowed[0]} or booleans, not {types[0]}")


def _require_masked(literals: Literals) -> None:
    require(literals.get("empty") in (None, "nan"), 'empty is absent or "nan"')
    require(literals.get("hidden") in (None, "weighed"), 'hidden is absent or "weighed"')
    require(isinstance(literals.get("fill"), (float, type(None))), "fill is a float or absent")


@prim_op
class AttentionOp(StructuredOp):
    """o = softmax(scale·q kᵀ + mask) v, lse = ln Σ exp(scale·q kᵀ + mask); causal: key position ≤ query position.

    q [B, H, L, E], k [B, G, S, E], v [B, G, S, D], each head of k for H/G neighbouring heads of q; mask [B, H, L, S] or
    absent: numbers to add, or booleans (false: the score is fill, -inf where that is absent); o [B, H, L, D], lse
    [B, H, L], which is float32 for narrower floats. A row without any allowed key gives 0, or NaN where empty is "nan".
    Keys beyond the causal triangle are not looked at; where hidden is "weighed" they count with the weight 0, as in a
    softmax that is written out, so that their NaN and infinities make NaN, in the derivative too.
    Where a mask has finite numbers (to add, or a fill) lse is [2, B, H, L]: the maximum score of each row (0 where that
    is -inf; constant to differentiation) and what the log-sum is beyond it, since their sum may have lost its digits.
    """

    name = "prim.attention"
    COST: ClassVar = 100.0
    q = operand_def()
    k = operand_def()
    v = operand_def()
    mask = opt_operand_def()
    scale = prop_def(Literal)
    causal = prop_def(Literal)
    empty = opt_prop_def(Literal)
    fill = opt_prop_def(Literal)
    hidden = opt_prop_def(Literal)
    o = result_def()
    lse = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        q, k, v = types[:3]
        _require_attention(q, k, v)
        sq, sk, sv = ir.shape_of(q), ir.shape_of(k), ir.shape_of(v)
        _require_mask(types[3:], (*sq[:3], sk[2]), ir.dtype_of(q))
        _require_masked(literals)
        return (ir.tensor((*sq[:3], sv[3]), ir.dtype_of(q)), _log_sums(q, types[3:], literals))


@prim_op
class AttentionBwdOp(StructuredOp):
    """dq, dk, dv of attention from the cotangent g of o, delta = Σ g·o - cotangent of lse (per row), and lse"""

    name = "prim.attention_bwd"
    COST: ClassVar = 250.0
    g = operand_def()
    q = operand_def()
    k = operand_def()
    v = operand_def()
    delta = operand_def()
    lse = operand_def()
    mask = opt_operand_def()
    scale = prop_def(Literal)
    causal = prop_def(Literal)
    empty = opt_prop_def(Literal)
    fill = opt_prop_def(Literal)
    hidden = opt_prop_def(Literal)
    dq = result_def()
    dk = result_def()
    dv = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        g, q, k, v, delta, lse = types[:6]
        _require_attention(q, k, v)
        row, sums = _row(q), _log_sums(q, types[6:], literals)
        require(delta == row and lse == sums, lambda: f"delta and lse must be {row} and {sums}")
        require(ir.shape_of(g) == (*ir.shape_of(q)[:3], ir.shape_of(v)[3]), "g must have the shape of o")
        _require_mask(types[6:], (*ir.shape_of(q)[:3], ir.shape_of(k)[2]), ir.dtype_of(q))
        _require_masked(literals)
        return (q, k, v)


@prim_op
class OpaqueOp(PrimOp):
    """A library call: the ATen (or custom) overload `callee` on `args`, whose operands stand at arg0, arg1, ..."""

    name = "prim.opaque"
    EXPLICIT: ClassVar = True
    COST: ClassVar = 50.0
    operands_ = var_operand_def()
    callee = prop_def(Literal)
    args = prop_def(Literal)
    results_ = var_result_def()

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        text(literals["callee"])
        require(isinstance(literals["args"], tuple), "args is a list")
