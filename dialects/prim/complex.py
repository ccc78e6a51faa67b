"""Elementwise primitives between complex numbers and their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim.base import Literals, Types, prim_op
from isthmus.dialects.prim.elementwise import COMPLEXES, REAL_OF, BinaryOp, UnaryOp, same_types

if TYPE_CHECKING:
    from isthmus.dialects.prim.emitter import Emitter

COMPLEX_OF = {"f32": "c64", "f64": "c128"}


@prim_op
class ComplexOp(BinaryOp):
    """y = a + b·i"""

    name = "prim.complex"
    DOMAIN: ClassVar = frozenset({"f32", "f64"})

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        same_types(types)
        cls.require_domain(types[0])
        return (ir.like(types[0], COMPLEX_OF[ir.dtype_of(types[0])]),)


class PartOp(UnaryOp):
    """A real number of a complex one."""

    DOMAIN: ClassVar = COMPLEXES

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        cls.require_domain(types[0])
        return (ir.like(types[0], REAL_OF[ir.dtype_of(types[0])]),)


@prim_op
class RealOp(PartOp):
    """y = real part of x"""

    name = "prim.real"


@prim_op
class ImagOp(PartOp):
    """y = imaginary part of x"""

    name = "prim.imag"


@prim_op
class ConjOp(UnaryOp):
    """y = complex conjugate of x"""

    name = "prim.conj"
    DOMAIN: ClassVar = COMPLEXES

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        inner = operands[0].owner
        return inner.x if isinstance(inner, ConjOp) else None
