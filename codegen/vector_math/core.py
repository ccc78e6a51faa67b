"""What every in-line function needs: arithmetic by target, polynomials, bits, error-free steps.

All functions take values of f32 or f64 with any number of lanes, the scalar included, and give
the same bits for every number of lanes. A target without fused multiply-add gets products and
sums, so its bits differ, its accuracy hardly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from isthmus.codegen.llvm_text import PTR, Function, Number, Type, Value
from isthmus.codegen.llvm_text.types import float_text
from isthmus.dialects.target import Target

MANTISSA = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}
INTEGER = {"float": "i32", "double": "i64"}
ROUNDING = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
"""Adding this rounds to an integer, ties to even, and leaves it in the low bits."""
SMALLEST_NORMAL = {"float": 2.0**-126, "double": 2.0**-1022}

Coefficients = Mapping[str, tuple[float, ...]]
"""Polynomial coefficients by scalar type, lowest power first."""


class Math:
    """Emits mathematical functions into one function under construction."""

    def __init__(self, function: Function, target: Target) -> None:
        self.f = function
        self.has_libm = not target.triple.startswith("nvptx")
        self.has_bfloat = target.triple.startswith("nvptx")
        self.has_exp2 = target.triple.startswith("nvptx")
        self.has_nan_extrema = target.triple.startswith("nvptx")
        self.has_fma = target.has("fma") or not target.triple.startswith(("x86_64", "i"))
        self.has_scale = target.has("avx512f")
        self.has_half = target.has("f16c") or not target.triple.startswith(("x86_64", "i"))
        self.has_rounding = target.has("sse4.1") or not target.triple.startswith(("x86_64", "i"))

    # ---- arithmetic

    def mla(self, a: Value, b: Value | Number, c: Value | Number) -> Value:
        """Give a·b + c, fused where the target has it."""
        if self.has_fma:
            return self.f.fma(a, b, c)
        return a * b + c

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Give Σ cₖ xᵏ, from the highest power down."""
        value = self.f.const(coefficients[-1], x.type)
        for c in reversed(coefficients[:-1]):
            value = self.mla(value, x, c)
        return value

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Give Σ cₖ xᵏ as two interleaved chains in x²: half the latency of Horner."""
        if len(coefficients) < 6:
            return self.horner(x, coefficients)
        square = x * x
        even = self.horner(square, coefficients[0::2])
        odd = self.horner(square, coefficients[1::2])
        return self.mla(odd, x, even)

    def fabs(self, x: Value) -> Value:
        """Give |x|."""
        return self.f.intrinsic("fabs", x)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        """Give |magnitude| with the sign bit of `sign`."""
        return self.f.intrinsic("copysign", magnitude, sign)

    def sqrt(self, x: Value) -> Value:
        """Give √x, correctly rounded."""
        return self.f.intrinsic("sqrt", x)

    def at_most(self, x: Value, bound: float) -> Value:
        """Give min(x, bound); NaN stays."""
        if self.has_nan_extrema and x.type.scalar == "float":
            return self.f.intrinsic("minimum", x, self.const(bound, x))
        return self.f.select(self.f.compare("ogt", x, bound), bound, x)

    def at_least(self, x: Value, bound: float) -> Value:
        """Give max(x, bound); NaN stays."""
        if self.has_nan_extrema and x.type.scalar == "float":
            return self.f.intrinsic("maximum", x, self.const(bound, x))
        return self.f.select(self.f.compare("olt", x, bound), bound, x)

    def scales(self, x: Value) -> bool:
        """Whether one instruction multiplies vectors like x by powers of two, with one rounding."""
        return self.has_scale and x.type.lanes * x.type.bits == 512

    def is_nan(self, x: Value) -> Value:
        """Tell which lanes are NaN."""
        return self.f.compare("uno", x, x)

    def const(self, value: Number, like: Value) -> Value:
        """Give a constant of the type of `like`."""
        return self.f.const(value, like.type)

    # ---- error-free steps

    def two_sum(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Give s = a + b rounded and e with s + e = a + b exactly (Knuth)."""
        s = a + b
        bb = s - a
        return s, (a - (s - bb)) + (b - bb)

    def fast_two_sum(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Give `two_sum` where |a| >= |b| (Dekker)."""
        s = a + b
        return s, b - (s - a)

    def two_product(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Give p = a·b rounded and e with p + e = a·b exactly."""
        p = a * b
        if self.has_fma:
            return p, self.f.fma(a, b, -p)
        a_high, a_low = self._halves(a)
        b_high, b_low = self._halves(b)
        e = ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low
        return p, e

    def _halves(self, a: Value) -> tuple[Value, Value]:
        """Split into two numbers of half the mantissa (Veltkamp)."""
        factor = 2.0 ** ((MANTISSA[a.type.scalar] + 2) // 2) + 1
        c = a * factor
        high = c - (c - a)
        return high, a - high

    # ---- bits

    def bits(self, x: Value) -> Value:
        """Read a float as the integer of its width."""
        return self.f.bitcast(x, x.type.with_scalar(INTEGER[x.type.scalar]))

    def from_bits(self, bits: Value, like: Value) -> Value:
        """Read an integer as the float type of `like`."""
        return self.f.bitcast(bits, like.type)

    def lshr(self, x: Value, count: int) -> Value:
        """Shift right, zeros coming in."""
        return self.f.binary("lshr", x, self.f.const(count, x.type))

    def negative_sign(self, x: Value) -> Value:
        """Tell which lanes have the sign bit set, -0.0 included."""
        return self.f.compare("slt", self.bits(x), 0)

    def any(self, condition: Value) -> Value:
        """Tell whether some lane holds."""
        if condition.type.lanes == 1:
            return condition
        packed = self.f.bitcast(condition, Type.of(f"i{condition.type.lanes}"))
        return self.f.compare("ne", packed, 0)

    def replaced(self, value: Value, condition: Value, make: Callable[[], Value]) -> Value:
        """Give what `make` emits in the lanes of the condition, else `value`; it runs only where some lane holds."""
        slot = self.f.slot(value.type)
        self.f.store(value, slot, 64)
        with self.f.when(self.any(condition)):
            self.f.store(self.f.select(condition, make(), value), slot, 64)
        return self.f.load(slot, value.type, 64)

    def table(self, name: str, entries: Sequence[float], index: Value) -> Value:
        """Give the doubles with these numbers (i64) of a table, lane by lane."""
        f, there = self.f, "" if self.has_libm else "addrspace(4) "
        words = ", ".join(f"double {float_text(e, 'double')}" for e in entries)
        f.module.constant(f"@{name}", f"internal {there}constant [{len(entries)} x double] [{words}], align 64")
        base = Value(f, f"addrspacecast (ptr addrspace(4) @{name} to ptr)" if there else f"@{name}", PTR)
        result = Type.of("double", index.type.lanes)
        if index.type.lanes == 1:
            return f.load(f.address(base, index, "double"), result)
        value = f.poison(result)
        for lane in range(index.type.lanes):
            at = f.address(base, f.extract(index, lane), "double")
            value = f.insert(value, f.load(at, result.with_lanes(1)), lane)
        return value

    # ---- double precision, other functions lane by lane

    def widen(self, x: Value) -> Value:
        """Give f32 as f64, exactly."""
        return self.f.cast("fpext", x, x.type.with_scalar("double"))

    def narrow(self, x: Value) -> Value:
        """Give f64 rounded to f32."""
        return self.f.cast("fptrunc", x, x.type.with_scalar("float"))

    def each_lane(self, call: Callable[..., Value], *arguments: Value) -> Value:
        """Apply a scalar function to each lane."""
        lanes = arguments[0].type.lanes
        if lanes == 1:
            return call(*arguments)
        result = self.f.poison(arguments[0].type)
        for lane in range(lanes):
            value = call(*(self.f.extract(a, lane) for a in arguments))
            result = self.f.insert(result, value, lane)
        return result

    def libm(self, name: str, *arguments: Value) -> Value:
        """Call the C library's function lane by lane; `name` is its double form."""
        suffix = "f" if arguments[0].type.scalar == "float" else ""

        def call(*scalars: Value) -> Value:
            return self.f.call(name + suffix, scalars[0].type, *scalars)

        return self.each_lane(call, *arguments)


Unary = Callable[[Math, Value], Value]
Binary = Callable[[Math, Value, Value], Value]


def in_double(rule: Unary) -> Unary:
    """Evaluate f32 in f64: for functions too rare to deserve polynomials of their own.

    The result is then correctly rounded but for one case in some 2^25.
    """

    @functools.wraps(rule)
    def widened(m: Math, x: Value) -> Value:
        if x.type.scalar == "double":
            return rule(m, x)
        return m.narrow(rule(m, m.widen(x)))

    return widened


def in_double2(rule: Binary) -> Binary:
    """Evaluate a function of two f32 in f64."""

    @functools.wraps(rule)
    def widened(m: Math, x: Value, y: Value) -> Value:
        if x.type.scalar == "double":
            return rule(m, x, y)
        return m.narrow(rule(m, m.widen(x), m.widen(y)))

    return widened


INFINITY = math.inf
NAN = math.nan
