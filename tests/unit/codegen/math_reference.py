"""Runs in-line functions on arrays, and measures errors in units of the last place."""

from __future__ import annotations

import ctypes
import functools

import mpmath
import numpy as np

from isthmus.codegen import vector_math
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type
from isthmus.dialects.target import Target
from isthmus.runtime import cpu

SCALARS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


@functools.cache
def compiled(name: str, scalar: str, lanes: int, target: Target):
    """A function over arrays whose length is a multiple of `lanes`."""
    module = Module()
    arity = 1 if name in vector_math.UNARY else 2
    arguments = [(f"x{i}", PTR) for i in range(arity)]
    f = Function(module, "apply", [*arguments, ("y", PTR), ("n", I64)])
    *inputs, out, n = f.arguments
    math = vector_math.Math(f, target)
    type_ = Type.of(scalar, lanes)
    with f.loop(0, n, lanes) as i:
        values = [f.load(f.address(x, i, scalar), type_) for x in inputs]
        rule = vector_math.UNARY.get(name) or vector_math.BINARY[name]
        f.store(rule(math, *values), f.address(out, i, scalar))
    f.finish()
    loaded = cpu.load([cpu.compile_text(str(module), target)])
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + 1), ctypes.c_int64)
    function = prototype(loaded["apply"])
    function.keep = loaded
    return function


def apply(name: str, *inputs: np.ndarray, lanes: int = 8, target: Target | None = None):
    """Give f(inputs) by compiled code; the last vector is filled with ones."""
    dtype = inputs[0].dtype
    length = len(inputs[0])
    padded = -(-length // lanes) * lanes
    arrays = [np.ones(padded, dtype) for _ in range(len(inputs) + 1)]
    for array, given in zip(arrays, inputs, strict=False):
        array[:length] = given
    function = compiled(name, SCALARS[dtype], lanes, target or cpu.host_target())
    function(*[a.ctypes.data for a in arrays], padded)
    return arrays[-1][:length]


def ulp_error(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error in units of the last place of the exact value, which is given in higher precision."""
    dtype = result.dtype
    tiny = np.finfo(dtype).tiny
    magnitude = np.maximum(np.abs(exact).astype(dtype), tiny)
    unit = np.spacing(magnitude).astype(exact.dtype)
    return np.abs(result.astype(exact.dtype) - exact) / unit


mpmath.mp.prec = 140


def cubic(x):
    return 2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)


TABLE = {
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "lgamma": lambda x: mpmath.loggamma(x).real if x > 0 else mpmath.log(abs(mpmath.gamma(x))),
    "pow": lambda x, y: x**y,
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "ndtr": lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "tanh_gate": lambda x: 1 / (1 + mpmath.exp(-cubic(x))),
    "gelu_tanh": lambda x: x / (1 + mpmath.exp(-cubic(x))),
    "normal_density": lambda x: mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi),
}


def exact(name: str, *inputs: np.ndarray) -> np.ndarray:
    """The function's values to 64 bits of mantissa (x87 long double), by mpmath."""
    f = TABLE.get(name) or getattr(mpmath, name)
    values = [f(*(mpmath.mpf(float(v)) for v in row)) for row in zip(*inputs, strict=True)]
    return np.array([long_double(v) for v in values], dtype=np.longdouble)


def long_double(value) -> np.longdouble:
    """Round an mpmath number to a long double without passing through a double."""
    if not mpmath.isfinite(value) or value == 0:
        return np.longdouble(float(value))
    mantissa, exponent = mpmath.frexp(value)
    integer = int(mpmath.nint(mpmath.ldexp(mantissa, 64)))
    return np.ldexp(
        np.longdouble(integer >> 32) * np.longdouble(2**32) + np.longdouble(integer & 0xFFFFFFFF), int(exponent) - 64
    )
