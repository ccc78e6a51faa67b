"""Making attention: what its literals say, and heads of keys that several heads of queries share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim.emitter import Emitter
from isthmus.dialects.prim.structured import AttentionBwdOp, AttentionOp
from isthmus.ir import LiteralValue
from isthmus.sizes import Dim


@dataclass(frozen=True)
class Attention:
    """The literals of `prim.attention` and `prim.attention_bwd`.

    `fill`: the score that a boolean mask puts where it is false, None for -inf. `nan_where_empty`: a query without any
    allowed key gives NaN, as softmax does, in place of 0. `hidden_weighed`: keys beyond the causal triangle count with
    the weight 0, so that NaN and infinities there are not lost.
    """

    scale: float
    causal: bool = False
    nan_where_empty: bool = False
    fill: float | None = None
    hidden_weighed: bool = False

    @staticmethod
    def of(op: AttentionOp | AttentionBwdOp) -> Attention:
        """Read them off an op."""
        fill = cast("float | None", ir.literal(op, "fill"))
        empty, hidden = ir.literal(op, "empty") == "nan", ir.literal(op, "hidden") == "weighed"
        return Attention(cast(float, op.scale.data), op.causal.data is True, empty, fill, hidden)

    @property
    def literals(self) -> dict[str, LiteralValue]:
        """As the ops have them."""
        given: dict[str, LiteralValue] = {"scale": float(self.scale), "causal": self.causal, "fill": self.fill}
        given["empty"] = "nan" if self.nan_where_empty else None
        given["hidden"] = "weighed" if self.hidden_weighed else None
        return {key: value for key, value in given.items() if value is not None}

    def forward(
        self, e: Emitter, q: SSAValue, k: SSAValue, v: SSAValue, mask: SSAValue | None
    ) -> tuple[SSAValue, SSAValue]:
        """The output and its log-sums."""
        op = e.op(AttentionOp, (q, k, v) if mask is None else (q, k, v, mask), self.literals)
        return op.o, op.lse

    def backward(
        self,
        e: Emitter,
        g: SSAValue,
        operands: tuple[SSAValue, SSAValue, SSAValue],
        sums: tuple[SSAValue, SSAValue],
        mask: SSAValue | None,
    ) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Cotangents of q, k and v, the `operands`; `sums` are delta and lse."""
        given = (g, *operands, *sums)
        op = e.op(AttentionBwdOp, given if mask is None else (*given, mask), self.literals)
        return op.dq, op.dk, op.dv


def repeat_heads(e: Emitter, x: SSAValue, heads: Dim) -> SSAValue:
    """[B, H, ...] from [B, G, ...]: each head as often as neighbouring heads share it."""
    batch, own, *rest = ir.shape_of(x)
    if own == heads:
        return x
    wide = (batch, own, heads // own, *rest)
    spread = e.broadcast(x, wide, (0, 1, *range(3, len(wide))))
    return e.reshape(spread, (batch, heads, *rest))


def sum_heads(e: Emitter, x: SSAValue, own: Dim) -> SSAValue:
    """[B, G, ...] from [B, H, ...]: neighbouring heads that share one added up."""
    batch, heads, *rest = ir.shape_of(x)
    if own == heads:
        return x
    return e.sum(e.reshape(x, (batch, own, heads // own, *rest)), (2,))


def sums_of(e: Emitter, lse: SSAValue) -> tuple[SSAValue, SSAValue | None]:
    """What scores are taken from: the log-sums, or maxima and the log-sums beyond them."""
    if len(ir.shape_of(lse)) == 3:
        return lse, None
    top, rest = (e.reshape(e.slice(lse, 0, i, i + 1), ir.shape_of(lse)[1:]) for i in range(2))
    return top, rest
