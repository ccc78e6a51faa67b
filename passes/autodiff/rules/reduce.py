"""Pullbacks of reductions, running combinations and sorting; ties are shared as torch's amax does."""

from __future__ import annotations

from typing import cast

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.rules.along import add_along, count, restore, shifted_down, shifted_up
from isthmus.passes.autodiff.rules.recurrence import linear_recurrence
from isthmus.passes.autodiff.table import Cotangents, Needs, constant, one, pullback

constant(prim.ArgReduceOp)


@pullback(prim.ReduceOp)
def reduce(e: Emitter, op: prim.ReduceOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """Sum: x̄ = ȳ repeated; product: ȳ times the other factors; max, min: ȳ shared by the elements equal to y."""
    g, kind, dims = one(cts), op.kind.data, cast(tuple[int, ...], op.dims.data)
    if kind == "add":
        return (restore(e, g, op.x, dims),)
    if kind == "mul":
        return (_product(e, op.x, g, dims),)
    ties = e.convert(e.cmp("eq", op.x, restore(e, op.y, op.x, dims)), ir.dtype_of(op.x))
    return (e.mul(ties, restore(e, e.div(g, e.sum(ties, dims)), op.x, dims)),)


def _product(e: Emitter, x: SSAValue, g: SSAValue, dims: tuple[int, ...]) -> SSAValue | None:
    """x̄[i] = ȳ·(Π_{j≠i} x[j])*: what is before times what is after, so that zeros are right in every order."""
    shape = ir.shape_of(x)
    kept = [d for d in range(len(shape)) if d not in dims]
    order = [*kept, *dims]
    flat_shape = (*(shape[d] for d in kept), count(x, dims))
    last = len(kept)
    if flat_shape[last] == 0:
        return None
    flat = e.reshape(e.transpose(x, order), flat_shape)
    others = e.mul(_before(e, flat, last), e.reverse(_before(e, e.reverse(flat, [last]), last), [last]))
    x_bar = e.mul(restore(e, g, flat, [last]), e.conj(others))
    return e.transpose(e.reshape(x_bar, [shape[d] for d in order]), [order.index(d) for d in range(len(shape))])


def _before(e: Emitter, x: SSAValue, dim: int) -> SSAValue:
    """y[k] = Π_{j<k} x[j] along dim."""
    return shifted_up(e, e.cumulative("mul", x, dim), dim, 1, 1)


@pullback(prim.CumulativeOp)
def cumulative(e: Emitter, op: prim.CumulativeOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """Sum: the sum from the other end; product: a linear recurrence; max, min: ȳ goes to the latest extremum."""
    g, kind, dim = one(cts), op.kind.data, cast(int, op.dim.data)
    backwards = op.reverse.data is True
    if kind == "add":
        return (e.cumulative("add", g, dim, not backwards),)
    x, y = op.x, op.y
    if ir.shape_of(x)[dim] == 0:
        return (None,)
    if backwards:
        x, y, g = (e.reverse(v, [dim]) for v in (x, y, g))
    x_bar = _running_product(e, x, g, dim) if kind == "mul" else _running_extremum(e, x, y, g, dim)
    return (e.reverse(x_bar, [dim]) if backwards else x_bar,)


def _running_product(e: Emitter, x: SSAValue, g: SSAValue, dim: int) -> SSAValue:
    """x̄[i] = (Π_{j<i} x[j])*·s[i] with s[i] = ȳ[i] + x[i+1]*·s[i+1]: no division, so zeros are right in every order."""
    following = shifted_down(e, e.conj(x), dim, 1, 0)
    return e.mul(e.conj(_before(e, x, dim)), linear_recurrence(e, following, g, dim))


def _running_extremum(e: Emitter, x: SSAValue, y: SSAValue, g: SSAValue, dim: int) -> SSAValue:
    """An element equal to the running extremum leads from there on, the later of equal ones, and a NaN for ever."""
    leads = e.or_(e.cmp("eq", x, y), e.is_nan(x))
    index = e.iota(ir.shape_of(x), dim)
    leader = e.cumulative("max", e.select(leads, index, e.zeros_like(index)), dim)
    return add_along(e, g, leader, x, dim)


@pullback(prim.SortOp)
def sort(e: Emitter, op: prim.SortOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """x̄[index[k]] = ȳ[k]."""
    g = cts[0]
    assert g is not None
    return (add_along(e, g, op.index, op.x, cast(int, op.dim.data)),)
