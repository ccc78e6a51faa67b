"""Values that can wait for a factor: in which operands an op is linear, f(t·x) = t·f(x) for a number t."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal

WAITS = ("f64", "f32", "bf16")
"""Types in which a gradient can wait for its factor: losses are scaled because float16 would underflow without."""


def may_wait(op: Operation) -> bool:
    """Tell whether all that an op makes can wait for a factor."""
    return all(ir.dtype_of(r) in WAITS for r in op.results)


def times(e: Emitter, value: SSAValue, factor: SSAValue) -> SSAValue:
    """Give a value the 0-d factor that it has waited for, in the wider type of both."""
    narrow = ir.dtype_of(value)
    wide = max(narrow, ir.dtype_of(factor), key=ir.itemsize)
    spread = e.broadcast(e.convert(factor, wide), ir.shape_of(value), ())
    return e.convert(e.mul(e.convert(value, wide), spread), narrow)


def is_linear_in(op: Operation, scaled: frozenset[SSAValue]) -> bool:
    """Tell whether an op's results get the factor that the values `scaled`, and no other operands, get."""
    which = tuple(v in scaled for v in ir.operands_of(op))
    for classes, rule in _RULES:
        if isinstance(op, classes):
            return rule(op, which)
    return False


def _all(op: Operation, which: tuple[bool, ...]) -> bool:
    """Every operand that is not zero has the factor."""
    return all(own or is_zero(v) for own, v in zip(which, ir.operands_of(op), strict=True))


def _one(op: Operation, which: tuple[bool, ...]) -> bool:
    """Linear in each of two factors."""
    return which in ((True, False), (False, True))


def _first(op: Operation, which: tuple[bool, ...]) -> bool:
    return which[0] and not any(which[1:])


def _branches(op: Operation, which: tuple[bool, ...]) -> bool:
    """Both values have the factor, the predicate does not."""
    values = zip(which[1:], ir.operands_of(op)[1:], strict=True)
    return not which[0] and all(own or is_zero(v) for own, v in values)


def _sum(op: Operation, which: tuple[bool, ...]) -> bool:
    return _literal(op, "kind") == "add"


def _pad(op: Operation, which: tuple[bool, ...]) -> bool:
    return _literal(op, "value") == 0


def _sum_of_scattered(op: Operation, which: tuple[bool, ...]) -> bool:
    """What is added to and what is added have the factor, places do not."""
    values = zip(which[:2], ir.operands_of(op)[:2], strict=True)
    return _literal(op, "kind") == "add" and not any(which[2:]) and all(own or is_zero(v) for own, v in values)


def _attention(op: Operation, which: tuple[bool, ...]) -> bool:
    """Linear in the cotangents of o and of lse together."""
    assert isinstance(op, prim.AttentionBwdOp)
    wanted = {op.g, op.delta}
    return all(own == (v in wanted) for own, v in zip(which, ir.operands_of(op), strict=True))


def _literal(op: Operation, name: str) -> object:
    attr = op.properties.get(name)
    return attr.data if isinstance(attr, Literal) else None


Rule = Callable[[Operation, tuple[bool, ...]], bool]

_RULES: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
    ((prim.NegOp, prim.AddOp, prim.SubOp, prim.ConcatOp, prim.ViewOp), _all),
    (prim.ConvertOp, _all),
    ((prim.MulOp, prim.DotOp, prim.ConvOp, prim.ConvDxOp, prim.ConvDwOp), _one),
    ((prim.DivOp, prim.GatherOp), _first),
    (prim.SelectOp, _branches),
    ((prim.ReduceOp, prim.CumulativeOp, prim.ReduceWindowOp), _sum),
    (prim.PadOp, _pad),
    (prim.ScatterOp, _sum_of_scattered),
    (prim.AttentionBwdOp, _attention),
)


def is_zero(value: SSAValue) -> bool:
    """Tell whether a value is a constant full of zeros."""
    while isinstance(value.owner, prim.ViewOp):
        value = value.owner.x
    return isinstance(value.owner, prim.ConstOp) and value.owner.value.data == 0
