"""Elementwise primitives on registers: one rule per op class, for any number of lanes.

Rules get operands with equal lanes. Ops on bf16 and f16 compute in f32, then round, unless their
result is exact; integer division by zero is reported to the context and gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen import vector_math
from isthmus.codegen.complex_math import COMPLEX_RULES
from isthmus.codegen.dtypes import Complex, Operand, convert, from_half_bits, half_bits, round_to
from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math import Math
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import prim
from isthmus.ir import Literal


class Context(Protocol):
    """Where rules emit, and whom they tell about a division by zero."""

    math: Math

    def division_by_zero(self, zero: Value) -> None:
        """Report the lanes that divide an integer by zero."""
        ...


Rule = Callable[[Context, Operation, tuple[Value, ...], str], Value]
"""(context, op, operands, dtype of the first operand) -> result"""

RULES: dict[type[Operation], Rule] = {}
EXACT: set[type[Operation]] = set()
"""Ops whose result needs no rounding to a narrow float."""


def rule(*classes: type[Operation], exact: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of these classes."""

    def register(function: Rule) -> Rule:
        for cls in classes:
            RULES[cls] = function
            if exact:
                EXACT.add(cls)
        return function

    return register


def emit(context: Context, op: Operation, operands: tuple[Operand, ...]) -> Operand:
    """Emit one elementwise op on operands of equal lanes; UnsupportedError where it has no rule."""
    source = ir.dtype_of(ir.operands_of(op)[0])
    target = ir.dtype_of(op.results[0])
    if isinstance(op, prim.ConvertOp):
        return convert(context.math, operands[0], source, target)
    if any(isinstance(x, Complex) for x in operands) or isinstance(op, prim.ComplexOp):
        found = COMPLEX_RULES.get(type(op))
        if found is not None:
            return found(context.math, op, operands)
    else:
        function = RULES.get(type(op))
        if function is not None:
            result = function(context, op, cast(tuple[Value, ...], operands), source)
            if target in ("bf16", "f16") and type(op) not in EXACT:
                return round_to(context.math, result, target)
            return result
    raise unsupported(op, source)


def unsupported(op: Operation, dtype: str) -> UnsupportedError:
    """Give the error of an op that has no code for a dtype."""
    location = ir.source_location(op)
    return UnsupportedError(f"has no CPU code for {dtype}", op=op.name, location=location)


# ---- functions of vector_math

_UNARY: dict[type[Operation], str] = {
    prim.ExpOp: "exp",
    prim.Exp2Op: "exp2",
    prim.Expm1Op: "expm1",
    prim.LogOp: "log",
    prim.Log2Op: "log2",
    prim.Log10Op: "log10",
    prim.Log1pOp: "log1p",
    prim.SinOp: "sin",
    prim.CosOp: "cos",
    prim.TanOp: "tan",
    prim.AsinOp: "asin",
    prim.AcosOp: "acos",
    prim.AtanOp: "atan",
    prim.SinhOp: "sinh",
    prim.CoshOp: "cosh",
    prim.TanhOp: "tanh",
    prim.AsinhOp: "asinh",
    prim.AcoshOp: "acosh",
    prim.AtanhOp: "atanh",
    prim.LogisticOp: "logistic",
    prim.ErfOp: "erf",
    prim.ErfcOp: "erfc",
    prim.ErfinvOp: "erfinv",
    prim.SiluOp: "silu",
    prim.GeluOp: "gelu",
    prim.GeluTanhOp: "gelu_tanh",
    prim.TanhGateOp: "tanh_gate",
    prim.NdtrOp: "ndtr",
    prim.NormalDensityOp: "normal_density",
    prim.LgammaOp: "lgamma",
    prim.DigammaOp: "digamma",
    prim.SqrtOp: "sqrt",
    prim.RsqrtOp: "rsqrt",
    prim.FloorOp: "floor",
    prim.CeilOp: "ceil",
    prim.RoundOp: "round_even",
    prim.TruncOp: "trunc",
}
EXACT.update((prim.FloorOp, prim.CeilOp, prim.RoundOp, prim.TruncOp))


@rule(*_UNARY)
def _unary(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return vector_math.UNARY[_UNARY[type(op)]](c.math, x[0])


@rule(prim.PolygammaOp)
def _polygamma(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return vector_math.polygamma(c.math, x[0], cast(int, cast(Literal, op.properties["order"]).data))


@rule(prim.Atan2Op)
def _atan2(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return vector_math.BINARY["atan2"](c.math, *x)


@rule(prim.CopysignOp, exact=True)
def _copysign(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return vector_math.BINARY["copysign"](c.math, *x)


@rule(prim.NextafterOp, exact=True)
def _nextafter(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    """One step of the bits of the format: of a narrow one, 16 bits of the f32 register."""
    if dtype == "f16":
        return _nextafter_half(c.math, *x)
    return vector_math.nextafter(c.math, x[0], x[1], unit=1 << 16 if dtype == "bf16" else 1)


def _nextafter_half(m: Math, a: Value, b: Value) -> Value:
    """The same on the 16 bits of half precision, whose denormals are spaced unlike those of f32."""
    f, bits = m.f, half_bits(m, a)
    away = f.compare("olt", a, b) ^ f.compare("slt", bits, 0)
    stepped = bits + f.select(away, f.const(1, bits.type), f.const(-1, bits.type))
    smallest = (half_bits(m, b) & -0x8000) | 1
    stepped = f.select(f.compare("oeq", a, 0.0), smallest, stepped)
    result = f.select(f.compare("oeq", a, b), b, from_half_bits(m, stepped))
    return f.select(f.compare("uno", a, b), a + b, result)


# ---- arithmetic


@rule(prim.NegOp, exact=True)
def _neg(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return -x[0]


@rule(prim.AbsOp, exact=True)
def _abs(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    (v,) = x
    if v.type.is_float:
        return c.math.fabs(v)
    return v if dtype == "u8" else c.math.f.select(c.math.f.compare("slt", v, 0), -v, v)


@rule(prim.SignOp, exact=True)
def _sign(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    (v,) = x
    f = c.math.f
    above, below = _compare(c, "gt", v, f.const(0, v.type), dtype), None
    if dtype != "u8":
        below = _compare(c, "lt", v, f.const(0, v.type), dtype)
    one, zero = f.const(1, v.type), f.const(0, v.type)
    result = f.select(above, one, zero)
    return result if below is None else f.select(below, f.const(-1, v.type), result)


@rule(prim.ReluOp, exact=True)
def _relu(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    (v,) = x
    if dtype == "u8":
        return v
    negative = _compare(c, "lt", v, c.math.f.const(0, v.type), dtype)
    return c.math.f.select(negative, 0, v)


@rule(prim.StopGradientOp, exact=True)
def _identity(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0]


@rule(prim.AddOp)
def _add(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0] + x[1]


@rule(prim.SubOp)
def _sub(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0] - x[1]


@rule(prim.MulOp)
def _mul(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0] * x[1]


@rule(prim.FmaOp)
def _fma(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return c.math.f.fma(*x)


@rule(prim.DivOp)
def _div(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    if x[0].type.is_float:
        return x[0] / x[1]
    return divide_integers(c, *x, unsigned=dtype == "u8")[0]


@rule(prim.RemOp, exact=True)
def _rem(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    if x[0].type.is_float:
        return vector_math.BINARY["remainder"](c.math, *x)
    return divide_integers(c, *x, unsigned=dtype == "u8")[1]


def divide_integers(c: Context, a: Value, b: Value, *, unsigned: bool) -> tuple[Value, Value]:
    """Give quotient (toward zero) and remainder; both 0 where b is 0, and nothing traps.

    Up to 32 bits the quotient is that of doubles, which is exact once truncated; vectors of i64
    are divided lane by lane.
    """
    f = c.math.f
    zero = f.compare("eq", b, 0)
    if b.constant is None:
        c.division_by_zero(zero)
    elif b.constant == 0:
        c.division_by_zero(f.const(1, a.type.with_scalar("i1")))
    safe = f.select(zero, 1, b)
    if a.type.bits <= 32:
        wide = a.type.with_scalar("double")
        to = "uitofp" if unsigned else "sitofp"
        quotient = f.cast(to, a, wide) / f.cast(to, safe, wide)
        # -2^31 / -1 does not fit: through i64 it wraps.
        between = a.type.with_scalar("i64" if a.type.bits == 32 else "i32")
        q = f.cast("trunc", f.cast("fptosi", quotient, between), a.type)
    else:
        # The smallest number divided by -1 traps: negate instead.
        minus = f.compare("eq", safe, -1)
        q = f.binary("sdiv", a, f.select(minus, 1, safe))
        q = f.select(minus, -a, q)
    q = f.select(zero, 0, q)
    return q, f.select(zero, 0, a - q * b)


@rule(prim.PowOp)
def _pow(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    if x[0].type.is_float:
        return vector_math.BINARY["pow"](c.math, *x)
    return _integer_power(c, *x, unsigned=dtype == "u8")


def _integer_power(c: Context, a: Value, b: Value, *, unsigned: bool) -> Value:
    """Square and multiply, modulo the width; a negative exponent gives 0 unless a is 1 or -1."""
    f, type_ = c.math.f, a.type
    result, base, rest = f.slot(type_), f.slot(type_), f.slot(type_)
    for slot, value in ((result, f.const(1, type_)), (base, a), (rest, b)):
        f.store(value, slot)
    with f.loop(0, type_.bits):
        left, power = f.load(rest, type_), f.load(base, type_)
        odd = f.compare("ne", left & 1, 0)
        so_far = f.load(result, type_)
        f.store(f.select(odd, so_far * power, so_far), result)
        f.store(power * power, base)
        f.store(f.binary("lshr", left, f.const(1, type_)), rest)
    value = f.load(result, type_)
    if unsigned:
        return value
    sign = f.select(f.compare("ne", b & 1, 0), f.const(-1, type_), f.const(1, type_))
    inverse = f.select(f.compare("eq", a, -1), sign, 0)
    inverse = f.select(f.compare("eq", a, 1), 1, inverse)
    return f.select(f.compare("slt", b, 0), inverse, value)


# ---- order and choice


@rule(prim.MaxOp, exact=True)
def _max(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return larger(c, x[0], x[1], dtype)


@rule(prim.MinOp, exact=True)
def _min(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return smaller(c, x[0], x[1], dtype)


def larger(c: Context, a: Value, b: Value, dtype: str) -> Value:
    """Give the larger of two, NaN where either is."""
    if dtype == "i1":
        return a | b
    return _extremum(c, "gt", a, b, dtype)


def smaller(c: Context, a: Value, b: Value, dtype: str) -> Value:
    """Give the smaller of two, NaN where either is."""
    if dtype == "i1":
        return a & b
    return _extremum(c, "lt", a, b, dtype)


def _extremum(c: Context, predicate: str, a: Value, b: Value, dtype: str) -> Value:
    f = c.math.f
    if c.math.has_nan_extrema and a.type.scalar == "float":
        return f.intrinsic("maximum" if predicate == "gt" else "minimum", a, b)
    # Where b is NaN the comparison fails and b is taken; only a NaN in a must be put back.
    result = f.select(_compare(c, predicate, a, b, dtype), a, b)
    return f.select(c.math.is_nan(a), a, result) if a.type.is_float else result


_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une"}
_EQUALITIES = ("eq", "ne")


def _compare(c: Context, predicate: str, a: Value, b: Value, dtype: str) -> Value:
    if a.type.is_float:
        name = _FLOAT_PREDICATES.get(predicate, f"o{predicate}")
    elif predicate in _EQUALITIES:
        name = predicate
    else:
        name = f"{'u' if dtype in ('u8', 'i1') else 's'}{predicate}"
    return c.math.f.compare(name, a, b)


@rule(prim.CmpOp, exact=True)
def _cmp(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    predicate = cast(str, cast(Literal, op.properties["predicate"]).data)
    return _compare(c, predicate, x[0], x[1], dtype)


@rule(prim.SelectOp, exact=True)
def _select(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return c.math.f.select(*x)


# ---- bits


@rule(prim.NotOp)
def _not(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return ~x[0]


@rule(prim.AndOp)
def _and(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0] & x[1]


@rule(prim.OrOp)
def _or(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0] | x[1]


@rule(prim.XorOp)
def _xor(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    return x[0] ^ x[1]


@rule(prim.ShlOp)
def _shl(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    f, (a, b) = c.math.f, x
    inside = f.compare("ult", b, a.type.bits)
    return f.select(inside, a << f.select(inside, b, 0), 0)


@rule(prim.ShrOp)
def _shr(c: Context, op: Operation, x: tuple[Value, ...], dtype: str) -> Value:
    f, (a, b) = c.math.f, x
    inside = f.compare("ult", b, a.type.bits)
    if dtype == "u8":
        return f.select(inside, f.binary("lshr", a, f.select(inside, b, 0)), 0)
    return a >> f.select(inside, b, a.type.bits - 1)
