"""What the instructions of LLVM compute, on numpy arrays: one entry for each of their names."""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
from simulate_text import Kind


class SimulationError(AssertionError):
    """What a GPU would not forgive."""


def high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper 64 bits of products of 64 bits, from those of halves."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & low)) >> half)


def signed(x: np.ndarray, of: Kind) -> np.ndarray:
    """Read integers as signed."""
    if of.scalar == "i1":
        return -x.astype(np.int64)
    if of.bits in (8, 16, 32, 64):
        return x.view(np.dtype(f"i{x.dtype.itemsize}")) if x.flags.c_contiguous else x.astype(f"i{x.dtype.itemsize}")
    half = 1 << (of.bits - 1)
    return (x.astype(np.int64) ^ half) - half


def _shift(apply):
    return lambda a, b: np.where(b < 8 * a.dtype.itemsize, apply(a, b), 0)


COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
FLOAT = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide, "frem": np.fmod}
INTEGER = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "udiv": np.floor_divide,
    "urem": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift),
    "lshr": _shift(np.right_shift),
}


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not b.all():
        raise SimulationError("division by zero")
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))


SIGNED = {
    "sdiv": _truncated,
    "srem": lambda a, b: a - _truncated(a, b) * b,
    "ashr": lambda a, b: np.right_shift(a, np.minimum(b, 8 * a.dtype.itemsize - 1)),
}


_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBM.fma.argtypes, _LIBM.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
_EXACT_FMA = np.frompyfunc(_LIBM.fma, 3, 1)


def _fma(a, b, c):
    if a.dtype != np.float32:
        return _EXACT_FMA(a, b, c).astype(np.float64)
    # The product is exact. The sum is rounded to odd, so that rounding it again is as rounding once.
    p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    t = p + c
    other = t - p
    error = (p - (t - other)) + (c - other)
    bits = t.view(np.int64)
    inexact = np.isfinite(t) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((error > 0) == (t > 0), 1, -1), bits).view(np.float64).astype(np.float32)


CALLS = {
    "fma": _fma,
    "fabs": np.abs,
    "copysign": np.copysign,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "roundeven": np.rint,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "maxnum": np.fmax,
    "minnum": np.fmin,
    "umin": np.minimum,
    "umax": np.maximum,
    "fshl": lambda a, b, s: (
        (a << (s % (8 * a.dtype.itemsize)))
        | np.where(s % (8 * a.dtype.itemsize) == 0, 0, b >> (8 * a.dtype.itemsize - s % (8 * a.dtype.itemsize)))
    ),
}
SIGNED_CALLS = {"smin": np.minimum, "smax": np.maximum, "abs": lambda x, _: np.abs(x)}


def reduced(which: str, x: np.ndarray, of: Kind) -> np.ndarray:
    if which == "smax":
        return signed(x, Kind(of.scalar)).max(1).astype(of.dtype)
    return {"or": np.bitwise_or, "and": np.bitwise_and}[which].reduce(x, 1)


def counted(which: str, x: np.ndarray, of: Kind) -> np.ndarray:
    def count(value: int) -> int:
        text = format(value, f"0{of.bits}b")
        if which == "ctpop":
            return text.count("1")
        return len(text) - len((text.lstrip if which == "ctlz" else text.rstrip)("0"))

    return np.vectorize(count, otypes=[of.dtype])(x)
