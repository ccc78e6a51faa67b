"""Elementwise primitives: on tensors of equal shape, and on scalars inside kernel bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import operand_def, prop_def, result_def

from isthmus import ir
from isthmus.dialects.prim.base import Literals, PrimOp, Types, prim_op, require, text
from isthmus.ir import Literal

if TYPE_CHECKING:
    from isthmus.dialects.prim.emitter import Emitter

FLOATS = frozenset({"f64", "f32", "bf16", "f16"})
COMPLEXES = frozenset({"c64", "c128"})
INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u8"})
BOOLEANS = frozenset({"i1"})
REALS = FLOATS | INTEGERS
NUMBERS = REALS | COMPLEXES
INEXACT = FLOATS | COMPLEXES
ANY = NUMBERS | BOOLEANS


class ElementwiseOp(PrimOp):
    """One result element from the operands' elements at the same index."""

    DOMAIN: ClassVar[frozenset[str]] = ANY

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        same_types(types)
        cls.require_domain(types[0])
        return (types[0],)

    @classmethod
    def require_domain(cls, type_: Attribute) -> None:
        """Check the dtype against `DOMAIN`."""
        dtype = ir.dtype_of(type_)
        require(dtype in cls.DOMAIN, lambda: f"is not defined for {dtype}")


def same_types(types: Types) -> None:
    """Check that all types are equal."""
    first = types[0]
    for other in types[1:]:
        require(other is first or other == first, lambda: f"operand types differ: {', '.join(map(str, types))}")


class UnaryOp(ElementwiseOp):
    """y = f(x)"""

    x = operand_def()
    y = result_def()


class BinaryOp(ElementwiseOp):
    """y = f(a, b)"""

    a = operand_def()
    b = operand_def()
    y = result_def()


# ---- arithmetic of one operand


@prim_op
class NegOp(UnaryOp):
    """y = -x"""

    name = "prim.neg"
    DOMAIN: ClassVar = NUMBERS

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        inner = operands[0].owner
        return inner.x if isinstance(inner, NegOp) else None


@prim_op
class AbsOp(UnaryOp):
    """y = |x|; real part's dtype for complex x"""

    name = "prim.abs"
    DOMAIN: ClassVar = NUMBERS

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        cls.require_domain(types[0])
        return (ir.like(types[0], REAL_OF.get(ir.dtype_of(types[0]), ir.dtype_of(types[0]))),)


REAL_OF = {"c64": "f32", "c128": "f64"}


@prim_op
class SignOp(UnaryOp):
    """y = (x > 0) - (x < 0); 0 at NaN, as torch"""

    name = "prim.sign"
    DOMAIN: ClassVar = REALS
    COST: ClassVar = 2.0


@prim_op
class FloorOp(UnaryOp):
    """y = largest integer <= x"""

    name = "prim.floor"
    DOMAIN: ClassVar = FLOATS


@prim_op
class CeilOp(UnaryOp):
    """y = smallest integer >= x"""

    name = "prim.ceil"
    DOMAIN: ClassVar = FLOATS


@prim_op
class RoundOp(UnaryOp):
    """y = nearest integer, ties to even"""

    name = "prim.round"
    DOMAIN: ClassVar = FLOATS


@prim_op
class TruncOp(UnaryOp):
    """y = integer part of x"""

    name = "prim.trunc"
    DOMAIN: ClassVar = FLOATS


@prim_op
class NotOp(UnaryOp):
    """y = ~x, bit by bit; logical on booleans"""

    name = "prim.not"
    DOMAIN: ClassVar = INTEGERS | BOOLEANS


@prim_op
class SqrtOp(UnaryOp):
    """y = √x"""

    name = "prim.sqrt"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 6.0


@prim_op
class RsqrtOp(UnaryOp):
    """y = 1/√x"""

    name = "prim.rsqrt"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 8.0


@prim_op
class ReluOp(UnaryOp):
    """y = x < 0 ? 0 : x (keeps -0.0 and NaN); its derivative at 0 is 0"""

    name = "prim.relu"
    DOMAIN: ClassVar = REALS
    COST: ClassVar = 2.0


# ---- two operands


@prim_op
class AddOp(BinaryOp):
    """y = a + b"""

    name = "prim.add"
    DOMAIN: ClassVar = NUMBERS


@prim_op
class SubOp(BinaryOp):
    """y = a - b"""

    name = "prim.sub"
    DOMAIN: ClassVar = NUMBERS


@prim_op
class MulOp(BinaryOp):
    """y = a · b"""

    name = "prim.mul"
    DOMAIN: ClassVar = NUMBERS


@prim_op
class DivOp(BinaryOp):
    """y = a / b; integers round toward zero, and a zero divisor is an error"""

    name = "prim.div"
    DOMAIN: ClassVar = NUMBERS
    COST: ClassVar = 4.0


@prim_op
class RemOp(BinaryOp):
    """y = a - b·trunc(a / b): the sign of a; an integer zero divisor is an error"""

    name = "prim.rem"
    DOMAIN: ClassVar = REALS
    COST: ClassVar = 12.0


@prim_op
class PowOp(BinaryOp):
    """y = aᵇ"""

    name = "prim.pow"
    DOMAIN: ClassVar = NUMBERS
    COST: ClassVar = 30.0


@prim_op
class MaxOp(BinaryOp):
    """y = the larger of a and b; NaN where either is"""

    name = "prim.max"
    DOMAIN: ClassVar = REALS | BOOLEANS
    COST: ClassVar = 2.0


@prim_op
class MinOp(BinaryOp):
    """y = the smaller of a and b; NaN where either is"""

    name = "prim.min"
    DOMAIN: ClassVar = REALS | BOOLEANS
    COST: ClassVar = 2.0


@prim_op
class Atan2Op(BinaryOp):
    """y = angle of the point (b, a)"""

    name = "prim.atan2"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 22.0


@prim_op
class CopysignOp(BinaryOp):
    """y = |a| with the sign bit of b"""

    name = "prim.copysign"
    DOMAIN: ClassVar = FLOATS


@prim_op
class NextafterOp(BinaryOp):
    """y = the number after a in the direction of b"""

    name = "prim.nextafter"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 8.0


@prim_op
class AndOp(BinaryOp):
    """y = a & b, bit by bit"""

    name = "prim.and"
    DOMAIN: ClassVar = INTEGERS | BOOLEANS


@prim_op
class OrOp(BinaryOp):
    """y = a | b, bit by bit"""

    name = "prim.or"
    DOMAIN: ClassVar = INTEGERS | BOOLEANS


@prim_op
class XorOp(BinaryOp):
    """y = a ^ b, bit by bit"""

    name = "prim.xor"
    DOMAIN: ClassVar = INTEGERS | BOOLEANS


@prim_op
class ShlOp(BinaryOp):
    """y = a·2ᵇ modulo the width; 0 when b is not less than the width"""

    name = "prim.shl"
    DOMAIN: ClassVar = INTEGERS


@prim_op
class ShrOp(BinaryOp):
    """y = ⌊a / 2ᵇ⌋ (arithmetic for signed a)"""

    name = "prim.shr"
    DOMAIN: ClassVar = INTEGERS


PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


@prim_op
class CmpOp(BinaryOp):
    """y = a ⋄ b with ⋄ one of eq ne lt le gt ge; with a NaN only ne holds"""

    name = "prim.cmp"
    predicate = prop_def(Literal)

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        same_types(types)
        predicate = text(literals["predicate"])
        require(predicate in PREDICATES, lambda: f"predicate {predicate!r} is none of {', '.join(PREDICATES)}")
        ordered = ir.dtype_of(types[0]) not in COMPLEXES or predicate in ("eq", "ne")
        require(ordered, "complex numbers have no order")
        return (ir.like(types[0], "i1"),)


# ---- three operands, casts


@prim_op
class FmaOp(ElementwiseOp):
    """y = a·b + c, rounded once"""

    name = "prim.fma"
    DOMAIN: ClassVar = FLOATS
    a = operand_def()
    b = operand_def()
    c = operand_def()
    y = result_def()


@prim_op
class SelectOp(ElementwiseOp):
    """y = p ? a : b"""

    name = "prim.select"
    p = operand_def()
    a = operand_def()
    b = operand_def()
    y = result_def()

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        p, a, b = types
        same_types((a, b))
        require(p == ir.like(a, "i1"), lambda: f"the condition must be {ir.like(a, 'i1')}, not {p}")
        return (a,)

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        p, a, b = operands
        if a is b:
            return a
        value = e.constant_of(p)
        return None if value is None else (a if value else b)


@prim_op
class ConvertOp(UnaryOp):
    """y = x in another dtype: floats to integers truncate, to booleans x ≠ 0, to narrower floats round to even"""

    name = "prim.convert"
    EXPLICIT: ClassVar = True

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        require(ir.shape_of(types[0]) == ir.shape_of(results[0]), "a conversion keeps the shape")


@prim_op
class StopGradientOp(UnaryOp):
    """y = x, with derivative 0"""

    name = "prim.stop_gradient"
    COST: ClassVar = 0.0

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        x = operands[0]
        stopped = isinstance(x.owner, StopGradientOp) or not ir.is_differentiable(ir.dtype_of(x))
        return x if stopped else None
