"""x·s(x) with s from 0 to 1, rounded once, so that tiny products keep their places; and such s."""

from __future__ import annotations

from typing import ClassVar

from isthmus.dialects.prim.base import prim_op
from isthmus.dialects.prim.elementwise import FLOATS, UnaryOp


@prim_op
class SiluOp(UnaryOp):
    """y = x / (1 + e⁻ˣ)"""

    name = "prim.silu"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 14.0


@prim_op
class NdtrOp(UnaryOp):
    """y = Φ(x) = ½ erfc(-x/√2), the integral of the normal distribution"""

    name = "prim.ndtr"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 19.0


@prim_op
class NormalDensityOp(UnaryOp):
    """y = e^(-x²/2) / √(2π)"""

    name = "prim.normal_density"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 12.0


@prim_op
class GeluOp(UnaryOp):
    """y = x·Φ(x)"""

    name = "prim.gelu"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 20.0


@prim_op
class TanhGateOp(UnaryOp):
    """y = ½(1 + tanh u) = 1 / (1 + e⁻²ᵘ), u = √(2/π)·(x + 0.044715·x³): nearly Φ(x)"""

    name = "prim.tanh_gate"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 17.0


@prim_op
class GeluTanhOp(UnaryOp):
    """y = x / (1 + e⁻²ᵘ), u = √(2/π)·(x + 0.044715·x³)"""

    name = "prim.gelu_tanh"
    DOMAIN: ClassVar = FLOATS
    COST: ClassVar = 18.0
