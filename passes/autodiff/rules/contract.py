"""Pullbacks of contractions: sums of products are linear in each operand, and closed under differentiation."""

from __future__ import annotations

from typing import NamedTuple, cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import ContractionOp, Emitter
from isthmus.passes.autodiff.table import Cotangents, Needs, one, pullback

Ints = tuple[int, ...]


class _Side(NamedTuple):
    """One operand of a dot and the roles of its dims."""

    value: SSAValue
    batch: Ints
    contract: Ints

    @property
    def free(self) -> Ints:
        bound = (*self.batch, *self.contract)
        return tuple(d for d in range(len(ir.shape_of(self.value))) if d not in bound)


@pullback(prim.DotOp)
def dot(e: Emitter, op: prim.DotOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """ā = ȳ · b* over b's free dims; b̄ = a* · ȳ over a's free dims."""
    g = one(cts)
    a = _Side(op.a, cast(Ints, op.batch_a.data), cast(Ints, op.contract_a.data))
    b = _Side(op.b, cast(Ints, op.batch_b.data), cast(Ints, op.contract_b.data))
    batch, free_a = len(a.batch), len(a.free)
    of_a = tuple(range(batch, batch + free_a))
    of_b = tuple(range(batch + free_a, batch + free_a + len(b.free)))
    return (
        _one_side(e, a, b, g, of_b) if needs[0] else None,
        _one_side(e, b, a, g, of_a) if needs[1] else None,
    )


def _one_side(e: Emitter, wanted: _Side, other: _Side, g: SSAValue, others_free: Ints) -> SSAValue:
    """Contract ȳ with the other operand over its free dims, in the order that leaves least to transpose."""
    batch = tuple(range(len(wanted.batch)))
    # dot leaves the other's contracted dims in ascending order
    left = tuple(mine for _, mine in sorted(zip(other.contract, wanted.contract, strict=True)))
    layout = (*wanted.batch, *left, *wanted.free)
    if layout == tuple(range(len(layout))):
        return e.dot(e.conj(other.value), g, (other.free, others_free), (other.batch, batch))
    layout = (*wanted.batch, *wanted.free, *left)
    product = e.dot(g, e.conj(other.value), (others_free, other.free), (batch, other.batch))
    return e.transpose(product, [layout.index(d) for d in range(len(layout))])


class _Window(NamedTuple):
    """The literals of a convolution."""

    strides: Ints
    padding: Ints
    dilations: Ints
    groups: int

    @staticmethod
    def of(op: ContractionOp) -> _Window:
        strides, padding, dilations = (cast(Ints, ir.literal(op, k)) for k in ("strides", "padding", "dilations"))
        return _Window(strides, padding, dilations, cast(int, ir.literal(op, "groups")))


def _conv(e: Emitter, x: SSAValue, w: SSAValue, window: _Window) -> SSAValue:
    return e.conv(x, w, *window)


def _conv_dx(e: Emitter, g: SSAValue, w: SSAValue, like: SSAValue, window: _Window) -> SSAValue:
    return e.conv_dx(g, w, ir.shape_of(like), *window)


def _conv_dw(e: Emitter, g: SSAValue, x: SSAValue, like: SSAValue, window: _Window) -> SSAValue:
    return e.conv_dw(g, x, ir.shape_of(like), *window)


@pullback(prim.ConvOp)
def conv(e: Emitter, op: prim.ConvOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = x ∗ w: x̄ = the transpose in x of ȳ, w̄ = the transpose in w."""
    g, window = one(cts), _Window.of(op)
    return (
        _conv_dx(e, g, e.conj(op.w), op.x, window) if needs[0] else None,
        _conv_dw(e, g, e.conj(op.x), op.w, window) if needs[1] else None,
    )


@pullback(prim.ConvDxOp)
def conv_dx(e: Emitter, op: prim.ConvDxOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """⟨c, dx(g, w)⟩ = ⟨c ∗ w, g⟩: ḡ = c ∗ w, w̄ = dw(g, c)."""
    c, window = one(cts), _Window.of(op)
    return (
        _conv(e, c, e.conj(op.w), window) if needs[0] else None,
        _conv_dw(e, e.conj(op.g), c, op.w, window) if needs[1] else None,
    )


@pullback(prim.ConvDwOp)
def conv_dw(e: Emitter, op: prim.ConvDwOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """⟨c, dw(g, x)⟩ = ⟨x ∗ c, g⟩: ḡ = x ∗ c, x̄ = dx(g, c)."""
    c, window = one(cts), _Window.of(op)
    return (
        _conv(e, e.conj(op.x), c, window) if needs[0] else None,
        _conv_dx(e, e.conj(op.g), c, op.x, window) if needs[1] else None,
    )
