"""Pullbacks between real and complex numbers; the cotangent of z is ∂L/∂Re z + i ∂L/∂Im z, as torch has it."""

from __future__ import annotations

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.table import Cotangents, Needs, one, pullback


@pullback(prim.AbsOp)
def abs(e: Emitter, op: prim.AbsOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = |x|: x̄ = ȳ·sign x; for complex x ȳ·x/y, 0 where y = 0."""
    g, x, y = one(cts), op.x, op.y
    dtype = ir.dtype_of(x)
    if not ir.is_complex(dtype):
        return (e.mul(g, e.sign(x)),)
    vanishes = e.cmp("eq", y, e.zeros_like(y))
    scale = e.div(e.select(vanishes, e.zeros_like(g), g), e.select(vanishes, e.const_like(1, y), y))
    return (e.mul(e.convert(scale, dtype), x),)


@pullback(prim.RealOp)
def real(e: Emitter, op: prim.RealOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = Re x: x̄ = ȳ + 0i."""
    g = one(cts)
    return (e.binary(prim.ComplexOp, g, e.zeros_like(g)),)


@pullback(prim.ImagOp)
def imag(e: Emitter, op: prim.ImagOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = Im x: x̄ = 0 + ȳi."""
    g = one(cts)
    return (e.binary(prim.ComplexOp, e.zeros_like(g), g),)


@pullback(prim.ConjOp)
def conj(e: Emitter, op: prim.ConjOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = x*: x̄ = ȳ*."""
    return (e.conj(one(cts)),)


@pullback(prim.ComplexOp)
def complex(e: Emitter, op: prim.ComplexOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a + bi: ā = Re ȳ, b̄ = Im ȳ."""
    g = one(cts)
    return e.real(g) if needs[0] else None, e.unary(prim.ImagOp, g) if needs[1] else None
