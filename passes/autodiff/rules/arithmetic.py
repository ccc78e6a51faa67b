"""Pullbacks of arithmetic, choices and casts: x̄ is the cotangent of x, y the result; torch's conventions at kinks."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.table import Cotangents, Needs, constant, one, pullback, zero_derivative

zero_derivative(prim.FloorOp, prim.CeilOp, prim.RoundOp, prim.TruncOp, prim.SignOp)
constant(
    prim.CmpOp,
    prim.NotOp,
    prim.AndOp,
    prim.OrOp,
    prim.XorOp,
    prim.ShlOp,
    prim.ShrOp,
    prim.StopGradientOp,
)


@pullback(prim.NegOp)
def neg(e: Emitter, op: prim.NegOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = -x: x̄ = -ȳ."""
    return (e.neg(one(cts)),)


@pullback(prim.AddOp)
def add(e: Emitter, op: prim.AddOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a + b: ā = b̄ = ȳ."""
    g = one(cts)
    return g, g


@pullback(prim.SubOp)
def sub(e: Emitter, op: prim.SubOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a - b: ā = ȳ, b̄ = -ȳ."""
    g = one(cts)
    return g, e.neg(g) if needs[1] else None


@pullback(prim.MulOp)
def mul(e: Emitter, op: prim.MulOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a·b: ā = ȳ·b*, b̄ = ȳ·a*."""
    g = one(cts)
    return (
        e.mul(g, e.conj(op.b)) if needs[0] else None,
        e.mul(g, e.conj(op.a)) if needs[1] else None,
    )


@pullback(prim.DivOp)
def div(e: Emitter, op: prim.DivOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a/b: ā = ȳ/b*, b̄ = -ā·y*."""
    a_bar = e.div(one(cts), e.conj(op.b))
    return a_bar, e.neg(e.mul(a_bar, e.conj(op.y))) if needs[1] else None


@pullback(prim.RemOp)
def rem(e: Emitter, op: prim.RemOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a - b·trunc(a/b): ā = ȳ, b̄ = -ȳ·trunc(a/b)."""
    g = one(cts)
    return g, e.neg(e.mul(g, e.trunc(e.div(op.a, op.b)))) if needs[1] else None


@pullback(prim.FmaOp)
def fma(e: Emitter, op: prim.FmaOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = a·b + c: ā = ȳ·b, b̄ = ȳ·a, c̄ = ȳ."""
    g = one(cts)
    return e.mul(g, op.b) if needs[0] else None, e.mul(g, op.a) if needs[1] else None, g


@pullback(prim.PowOp)
def pow(e: Emitter, op: prim.PowOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = aᵇ: ā = ȳ·(b·aᵇ⁻¹)*, 0 where b = 0; b̄ = ȳ·(y·ln a)*, 0 where a = 0 and b ≥ 0."""
    g = one(cts)
    return (
        _pow_base(e, op, g) if needs[0] else None,
        e.mul(g, _pow_exponent(e, op)) if needs[1] else None,
    )


def _pow_base(e: Emitter, op: prim.PowOp, g: SSAValue) -> SSAValue | None:
    a, b = op.a, op.b
    exponent = e.constant_of(b)
    if exponent == 0:
        return None
    if exponent == 1:
        return g
    lower = a if exponent == 2 else e.pow(a, e.shifted(b, -1) if exponent is None else e.const_like(exponent - 1, b))  # pyright: ignore[reportOperatorIssue]
    slope = e.mul(g, e.conj(e.mul(b, lower)))
    if exponent is not None:
        return slope
    return e.select(e.cmp("eq", b, e.zeros_like(b)), e.zeros_like(a), slope)


def _pow_exponent(e: Emitter, op: prim.PowOp) -> SSAValue:
    a, b = op.a, op.b
    vanishes = e.cmp("eq", a, e.zeros_like(a))
    if ir.is_complex(ir.dtype_of(b)):
        imaginary = e.unary(prim.ImagOp, b)
        vanishes = e.and_(vanishes, e.cmp("eq", imaginary, e.zeros_like(imaginary)))
    real = e.real(b)
    vanishes = e.and_(vanishes, e.cmp("ge", real, e.zeros_like(real)))
    return e.select(vanishes, e.zeros_like(a), e.conj(e.mul(op.y, e.log(a))))


@pullback(prim.MaxOp)
def max(e: Emitter, op: prim.MaxOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = max(a, b): ȳ goes to the larger, half to each where they are equal (torch.maximum)."""
    return _larger(e, "lt", op.a, op.b, one(cts), needs)


@pullback(prim.MinOp)
def min(e: Emitter, op: prim.MinOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = min(a, b): ȳ goes to the smaller, half to each where they are equal (torch.minimum)."""
    return _larger(e, "gt", op.a, op.b, one(cts), needs)


def _larger(e: Emitter, loses: str, a: SSAValue, b: SSAValue, g: SSAValue, needs: Needs) -> Cotangents:
    """With a NaN every comparison fails and both get ȳ."""
    shared = e.select(e.cmp("eq", a, b), e.scaled(g, 0.5), g)
    zero = e.zeros_like(g)
    return (
        e.select(e.cmp(loses, a, b), zero, shared) if needs[0] else None,
        e.select(e.cmp(loses, b, a), zero, shared) if needs[1] else None,
    )


@pullback(prim.ReluOp)
def relu(e: Emitter, op: prim.ReluOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = relu x: x̄ = y ≤ 0 ? 0 : ȳ; y and not x, since y follows from either and so does the mask."""
    g = one(cts)
    return (e.select(e.cmp("le", op.y, e.zeros_like(op.y)), e.zeros_like(g), g),)


@pullback(prim.SelectOp)
def select(e: Emitter, op: prim.SelectOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = p ? a : b: ā = p ? ȳ : 0, b̄ = p ? 0 : ȳ."""
    g = one(cts)
    zero = e.zeros_like(g)
    return (
        None,
        e.select(op.p, g, zero) if needs[1] else None,
        e.select(op.p, zero, g) if needs[2] else None,
    )


@pullback(prim.CopysignOp)
def copysign(e: Emitter, op: prim.CopysignOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = |a| with b's sign: ā = ȳ·y/a, 0 where a = 0; b̄ = 0. The ratio is ±1, so its own derivative is 0."""
    a = op.a
    ratio = e.select(e.cmp("eq", a, e.zeros_like(a)), e.zeros_like(a), e.div(op.y, a))
    return e.mul(one(cts), e.stop_gradient(ratio)) if needs[0] else None, None


@pullback(prim.NextafterOp)
def nextafter(e: Emitter, op: prim.NextafterOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = the neighbour of a toward b: ā = a ≠ b ? ȳ : 0, b̄ = 0."""
    g = one(cts)
    return e.select(e.cmp("ne", op.a, op.b), g, e.zeros_like(g)) if needs[0] else None, None


@pullback(prim.Atan2Op)
def atan2(e: Emitter, op: prim.Atan2Op, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = angle of (b, a): ā = ȳ·b/(a² + b²), b̄ = -ȳ·a/(a² + b²), 0 at the origin."""
    a, b, g = op.a, op.b, one(cts)
    square = e.add(e.square(a), e.square(b))
    origin = e.cmp("eq", square, e.zeros_like(square))
    inverse = e.reciprocal(e.select(origin, e.const_like(1, square), square))
    per_square = e.mul(g, e.select(origin, e.zeros_like(square), inverse))
    return (
        e.mul(per_square, b) if needs[0] else None,
        e.neg(e.mul(per_square, a)) if needs[1] else None,
    )


@pullback(prim.ConvertOp)
def convert(e: Emitter, op: prim.ConvertOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = x in another dtype: x̄ = ȳ in x's dtype, its real part where x is real.

    Where ȳ itself was narrowed from that dtype, x̄ is what it was before: steps in float32 on narrower values have
    cotangents in float32, which cancel as in exact arithmetic.
    """
    g, dtype = one(cts), ir.dtype_of(op.x)
    narrowed = g.owner
    inside = dtype == "f32" and ir.itemsize(ir.dtype_of(op.y)) == 2
    if inside and isinstance(narrowed, prim.ConvertOp) and ir.dtype_of(narrowed.x) == dtype:
        return (narrowed.x,)
    return (e.convert(g if ir.is_complex(dtype) else e.real(g), dtype),)
