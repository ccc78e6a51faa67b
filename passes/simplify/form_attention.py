"""Attention that is written out becomes attention.

Before:
    %s = prim.dot %q, %k {batch_a = [0, 1], ..., contract_a = [3], contract_b = [3]} : tensor<2x4x64x64xf32>
    %x = prim.mul %s, %eighth : tensor<2x4x64x64xf32>
    %m = prim.select %causal, %x, %infinities : tensor<2x4x64x64xf32>
    %p = prim.softmax %m {dim = 3} : tensor<2x4x64x64xf32>
    %o = prim.dot %p, %v {batch_a = [0, 1], ..., contract_a = [3], contract_b = [2]} : tensor<2x4x64x32xf32>
After:
    %o, %lse = prim.attention %q, %k, %v {scale = 0.125, causal = true} : tensor<2x4x64x32xf32>, tensor<2x4x64xf32>

Before differentiation, so that neither direction keeps a matrix of scores. Between the two products may stand, each
with one use: factors, one mask that is added, one that is selected by, a causal triangle of either kind, and reshapes
that leave the last two dims alone. Heads that are repeated for it are shared (`share_heads`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.attention import Attention
from isthmus.dialects.prim.base import integer, ints
from isthmus.dialects.signature import Signature
from isthmus.ir import Shape
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.steps import step_of
from isthmus.passes.simplify.dce import erase_dead
from isthmus.passes.simplify.share_heads import share_heads

WIDEST = 256
"""Heads that the kernel takes."""

FEWEST_SCORES = 32 * 32
"""Of a head; below, its matrix is no burden."""


@dataclass(frozen=True)
class FormAttentionPass(ModulePass):
    """Needs: functions in primitives, before differentiation. Leaves: attention for what computes just that.

    Only f32 and f64: narrower floats round scores and weights, which attention as a whole does not.
    """

    name = "form-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Try every product of every block, control flow's included."""
        wanted = (prim.SoftmaxOp, prim.AttentionOp)
        blocks = {found.parent: None for found in op.walk() if isinstance(found, wanted)}
        for block in blocks:
            if block is not None:
                form_attention(block)


def form_attention(block: Block) -> None:
    """Replace the products of a block that are the end of attention, in one walk."""
    active = _active(block)
    formed = False
    for op in list(block.ops):
        if isinstance(op, prim.DotOp):
            found = _match(op)
            if found is not None and found.mask not in active:
                _replace(block, op, found)
                formed = True
    if share_heads(block) or formed:
        erase_dead(block)


def _active(block: Block) -> set[SSAValue]:
    """Values that gradients may flow through: a mask among them needs the scores themselves for its gradient."""
    func = block.parent_op()
    found: set[SSAValue] = set(block.args)
    if isinstance(func, FuncOp):
        found.intersection_update(block.args[i] for i in Signature.of(func).arguments_where(wants_gradient=True))
    for op in block.ops:
        if not isinstance(op, prim.StopGradientOp) and not found.isdisjoint(ir.operands_of(op)):
            found.update(r for r in op.results if ir.is_float(ir.dtype_of(r)))
    return found


@dataclass(frozen=True)
class _Scores:
    """scale·a bᵀ, masked, on the way from the softmax down to the product; `lead` are its leading dims."""

    lead: Shape
    scale: float = 1.0
    causal: bool = False
    mask: SSAValue | None = None
    contrary: bool = False
    """The mask says where scores do not count."""
    fill: float | None = None
    product: prim.DotOp | None = None

    @property
    def is_masked(self) -> bool:
        """Whether a mask was met: its leading dims are then those of attention."""
        return self.causal or self.mask is not None


def _match(op: prim.DotOp) -> _Scores | None:
    """What a product of weights and values is made of; None where it is not the end of attention."""
    weights = _unshaped(op.a)
    softmax = weights.owner
    if not isinstance(softmax, prim.SoftmaxOp) or ir.dtype_of(op.y) not in ("f32", "f64"):
        return None
    rank, scores_rank = len(ir.shape_of(op.a)), len(ir.shape_of(softmax.x))
    lead = tuple(range(rank - 2))
    straight = ints(op.batch_a.data) == lead and ints(op.contract_a.data) == (rank - 1,)
    if not straight or integer(softmax.dim.data) != scores_rank - 1 or not weights.has_one_use():
        return None
    scores = _descend(softmax.x, _Scores(ir.shape_of(softmax.x)[:-2]))
    if scores is None or scores.product is None:
        return None
    plain = _ordered(op.b, ints(op.batch_b.data), ints(op.contract_b.data)) is not None
    return scores if plain and _is_worth_it(scores.product, op) else None


def _is_worth_it(product: prim.DotOp, op: prim.DotOp) -> bool:
    rows, columns = ir.shape_of(op.a)[-2:]
    width = ir.shape_of(product.a)[ints(product.contract_a.data)[0]]
    tall = ir.shape_of(op.y)[-1]
    widths = all(isinstance(w, int) and 0 < w <= WIDEST for w in (width, tall))
    return widths and cost.numeric(rows) * cost.numeric(columns) >= FEWEST_SCORES


def _unshaped(x: SSAValue) -> SSAValue:
    """What a reshape of the leading dims shows."""
    while isinstance(x.owner, prim.ReshapeOp) and x.has_one_use() and _keeps_rows(x.owner):
        x = x.owner.x
    return x


def _keeps_rows(op: prim.ReshapeOp) -> bool:
    before, after = ir.shape_of(op.x), ir.shape_of(op.y)
    return len(before) >= 2 and len(after) >= 2 and before[-2:] == after[-2:]


def _ordered(x: SSAValue, batch: Sequence[int], contract: Sequence[int]) -> tuple[int, ...] | None:
    """The dims of a factor: batch, then the other one, then the contracted one; None where these are not single."""
    free = [d for d in range(len(ir.shape_of(x))) if d not in (*batch, *contract)]
    return (*batch, *free, *contract) if len(free) == len(contract) == 1 else None


def _descend(x: SSAValue, above: _Scores) -> _Scores | None:
    """Follow scores down to their product; every value on the way has no other use."""
    op = x.owner
    if not x.has_one_use():
        return None
    if isinstance(op, prim.DotOp):
        return _product(op, above)
    if isinstance(op, prim.ReshapeOp):
        here = above if above.is_masked else replace(above, lead=ir.shape_of(op.x)[:-2])
        return _descend(op.x, here) if _keeps_rows(op) else None
    if isinstance(op, prim.SelectOp):
        return _selected(op, above)
    if isinstance(op, prim.AddOp):
        return _added(op.a, op.b, above) or _added(op.b, op.a, above)
    if isinstance(op, (prim.MulOp, prim.DivOp)):
        return _factor(op, above)
    return None


def _product(op: prim.DotOp, above: _Scores) -> _Scores | None:
    parts = ((op.a, op.batch_a, op.contract_a), (op.b, op.batch_b, op.contract_b))
    if any(_ordered(x, ints(batch.data), ints(contract.data)) is None for x, batch, contract in parts):
        return None
    return replace(above, product=op)


def _constant(x: SSAValue) -> float | None:
    """The one number that a tensor consists of."""
    step = step_of(x)
    single = step is not None and (step.row is None or step.inside == step.outside)
    return float(step.inside) if step is not None and single else None


def _factor(op: prim.MulOp | prim.DivOp, above: _Scores) -> _Scores | None:
    """s·c or s/c"""
    for scores, other in ((op.a, op.b), (op.b, op.a)):
        number = _constant(other)
        if number is None or (isinstance(op, prim.DivOp) and other is op.a):
            continue
        factor = number if isinstance(op, prim.MulOp) else 1 / number if number else math.inf
        if not math.isfinite(factor):
            return None
        return _descend(scores, replace(above, scale=above.scale * factor))
    return None


def _selected(op: prim.SelectOp, above: _Scores) -> _Scores | None:
    """m ? s : fill or m ? fill : s. The causal triangle is outermost; a mask below it is looked up first."""
    if above.scale != 1.0:
        return None
    for scores, other, contrary in ((op.a, op.b, False), (op.b, op.a, True)):
        fill = _constant(other)
        if fill is None or math.isnan(fill):
            continue
        if fill == -math.inf and _is_causal(op.p, false=contrary, true=not contrary):
            if above.causal or (above.mask is not None and not _hides(above)):
                return None
            return _descend(scores, replace(above, causal=True))
        if above.mask is not None:
            return None
        filled = None if fill == -math.inf else fill
        return _descend(scores, replace(above, mask=op.p, contrary=contrary, fill=filled))
    return None


def _hides(above: _Scores) -> bool:
    """Whether the mask puts -inf, so that it does not matter which of two comes first."""
    return above.mask is not None and ir.dtype_of(above.mask) == "i1" and above.fill is None


def _added(scores: SSAValue, other: SSAValue, above: _Scores) -> _Scores | None:
    """s + m"""
    if above.scale != 1.0 or above.mask is not None:
        return None
    return _descend(scores, replace(above, mask=other))


def _is_causal(mask: SSAValue, *, false: float, true: float) -> bool:
    """Whether a mask is one number for keys up to the query's position, and another one beyond."""
    step, rank = step_of(mask), len(ir.shape_of(mask))
    rows, columns = ir.shape_of(mask)[-2:]
    if step is None or rows != columns or step.place != (rank - 2, rank - 1, 0):
        return False
    return (step.inside, step.outside) == (true, false)


# ---- what comes of it


def _replace(block: Block, op: prim.DotOp, scores: _Scores) -> None:
    """Attention in place of the last product."""
    product = scores.product
    assert product is not None
    new = Block()
    e = Emitter(new)
    e.location = op.location
    lead = _four(scores.lead)
    q, k = (
        _turned(e, x, ints(batch.data), ints(contract.data), lead)
        for x, batch, contract in (
            (product.a, product.batch_a, product.contract_a),
            (product.b, product.batch_b, product.contract_b),
        )
    )
    v = _turned(e, op.b, ints(op.batch_b.data), ints(op.contract_b.data), lead)
    v = e.transpose(v, (0, 1, 3, 2))
    mask = scores.mask
    if mask is not None:
        mask = e.reshape(e.not_(mask) if scores.contrary else mask, (*lead, *ir.shape_of(mask)[-2:]))
    attention = Attention(scores.scale, scores.causal, mask is not None, scores.fill, hidden_weighed=scores.causal)
    o, _ = attention.forward(e, q, k, v, mask)
    o = e.reshape(o, ir.shape_of(op.y))
    _insert(block, new.ops, op)
    op.y.replace_all_uses_with(o)


def _four(lead: Shape) -> Shape:
    """Leading dims as batch and heads."""
    if len(lead) == 0:
        return (1, 1)
    batch: ir.Dim = 1
    for size in lead[:-1]:
        batch = batch * size
    return batch, lead[-1]


def _turned(e: Emitter, x: SSAValue, batch: Sequence[int], contract: Sequence[int], lead: Shape) -> SSAValue:
    """[B, H, free, contracted]"""
    order = _ordered(x, batch, contract)
    assert order is not None
    y = e.transpose(x, order)
    return e.reshape(y, (*lead, *ir.shape_of(y)[-2:]))


def _insert(block: Block, ops: Iterable[Operation], before: Operation) -> None:
    """Put ops before another one, with its tags: what is to be computed again stays so."""
    for op in list(ops):
        op.detach()
        op.attributes.update(before.attributes)
        block.insert_op_before(op, before)
