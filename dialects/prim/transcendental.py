"""Elementwise functions with a series inside: exponentials, logarithms, trigonometry, error and gamma functions."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import prop_def

from isthmus.dialects.prim.base import Literals, Types, integer, prim_op, require
from isthmus.dialects.prim.elementwise import FLOATS, INEXACT, UnaryOp
from isthmus.ir import Literal


@prim_op
class ExpOp(UnaryOp):
    """y = eˣ"""

    name = "prim.exp"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 10.0


@prim_op
class Exp2Op(UnaryOp):
    """y = 2ˣ"""

    name = "prim.exp2"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 10.0


@prim_op
class Expm1Op(UnaryOp):
    """y = eˣ - 1, accurate near 0"""

    name = "prim.expm1"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 14.0


@prim_op
class LogOp(UnaryOp):
    """y = ln x"""

    name = "prim.log"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 12.0


@prim_op
class Log2Op(UnaryOp):
    """y = log₂ x"""

    name = "prim.log2"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 12.0


@prim_op
class Log10Op(UnaryOp):
    """y = log₁₀ x"""

    name = "prim.log10"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 12.0


@prim_op
class Log1pOp(UnaryOp):
    """y = ln(1 + x), accurate near 0"""

    name = "prim.log1p"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 14.0


@prim_op
class SinOp(UnaryOp):
    """y = sin x"""

    name = "prim.sin"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 12.0


@prim_op
class CosOp(UnaryOp):
    """y = cos x"""

    name = "prim.cos"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 12.0


@prim_op
class TanOp(UnaryOp):
    """y = tan x"""

    name = "prim.tan"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 20.0


@prim_op
class AsinOp(UnaryOp):
    """y = arcsin x"""

    name = "prim.asin"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 16.0


@prim_op
class AcosOp(UnaryOp):
    """y = arccos x"""

    name = "prim.acos"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 16.0


@prim_op
class AtanOp(UnaryOp):
    """y = arctan x"""

    name = "prim.atan"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 14.0


@prim_op
class SinhOp(UnaryOp):
    """y = sinh x"""

    name = "prim.sinh"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 16.0


@prim_op
class CoshOp(UnaryOp):
    """y = cosh x"""

    name = "prim.cosh"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 16.0


@prim_op
class TanhOp(UnaryOp):
    """y = tanh x"""

    name = "prim.tanh"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 14.0


@prim_op
class AsinhOp(UnaryOp):
    """y = arsinh x"""

    name = "prim.asinh"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 20.0


@prim_op
class AcoshOp(UnaryOp):
    """y = arcosh x"""

    name = "prim.acosh"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 20.0


@prim_op
class AtanhOp(UnaryOp):
    """y = artanh x"""

    name = "prim.atanh"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 20.0


@prim_op
class LogisticOp(UnaryOp):
    """y = 1 / (1 + e⁻ˣ)"""

    name = "prim.logistic"
    DOMAIN: ClassVar = INEXACT
    COST: ClassVar = 13.0


@prim_op
class ErfOp(UnaryOp):
    """y = 2/√π ∫₀ˣ e⁻ᵗ² dt"""

    name = "prim.erf"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 18.0


@prim_op
class ErfcOp(UnaryOp):
    """y = 1 - erf x, accurate for large x"""

    name = "prim.erfc"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 24.0


@prim_op
class ErfinvOp(UnaryOp):
    """y with erf y = x"""

    name = "prim.erfinv"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 30.0


@prim_op
class LgammaOp(UnaryOp):
    """y = ln |Γ(x)|"""

    name = "prim.lgamma"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 60.0


@prim_op
class DigammaOp(UnaryOp):
    """y = Γ'(x) / Γ(x)"""

    name = "prim.digamma"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 60.0


@prim_op
class PolygammaOp(UnaryOp):
    """y = the derivative of digamma of this order, 1 <= order <= 20"""

    name = "prim.polygamma"
    order = prop_def(Literal)
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 80.0
    LARGEST: ClassVar = 20

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        order = integer(literals["order"])
        require(1 <= order <= cls.LARGEST, lambda: f"order {order} is not in [1, {cls.LARGEST}]")
        return super().infer(types, literals)
