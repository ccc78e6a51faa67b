"""s[i] = b[i] + a[i]·s[i+1] along a dimension, from primitives."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.rules.along import shifted_down
from isthmus.passes.autodiff.rules.scan import make_scan


def linear_recurrence(e: Emitter, a: SSAValue, b: SSAValue, dim: int) -> SSAValue:
    """Give s with s[i] = b[i] + a[i]·s[i+1] and 0 after the end.

    By doubling where the length is known: after a round of step d, s holds the sum of 2d terms and a the product of
    2d factors (Kogge and Stone 1973). Otherwise one step at a time.
    """
    length = ir.shape_of(a)[dim]
    if not isinstance(length, int):
        return _stepwise(e, a, b, dim)
    step = 1
    while step < length:
        b = e.add(b, e.mul(a, shifted_down(e, b, dim, step, 0)))
        a = e.mul(a, shifted_down(e, a, dim, step, 0))
        step *= 2
    return b


def _stepwise(e: Emitter, a: SSAValue, b: SSAValue, dim: int) -> SSAValue:
    shape = ir.shape_of(a)
    front = [dim, *(d for d in range(len(shape)) if d != dim)]
    a, b = e.transpose(a, front), e.transpose(b, front)
    start = e.const(0, ir.shape_of(a)[1:], ir.dtype_of(a))

    def step(inner: Emitter, carry: list[SSAValue], now: list[SSAValue], rest: list[SSAValue]):
        following = inner.add(now[1], inner.mul(now[0], carry[0]))
        return [following], [following]

    _, (s,) = make_scan(e, [start], [a, b], [], step, reverse=True)
    return e.transpose(s, [front.index(d) for d in range(len(shape))])
