"""In-line functions against mpmath: error in units of the last place, edges, equal bits for every number of lanes."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from math_reference import apply, exact, ulp_error

from isthmus.codegen import vector_math
from isthmus.codegen.vector_math.gamma_zeros import DIGAMMA_ZEROS, LOG_GAMMA_ZEROS
from isthmus.runtime import cpu

N = 150
INF, NAN = math.inf, math.nan


def uniform(low, high, count=N):
    return np.random.default_rng(0).uniform(low, high, count)


def spread(low, high, count=N):
    """Positive numbers of every magnitude, and their negatives."""
    x = np.exp(np.random.default_rng(1).uniform(np.log(low), np.log(high), count))
    return np.concatenate([x, -x])


def join(*parts):
    return np.concatenate(parts)


POSITIVE = join(np.abs(spread(1e-37, 1e37)), uniform(0.5, 2), np.abs(spread(1e-44, 1e-38)))
WAVE = join(uniform(-10, 10), spread(1e-20, 1e6), spread(1e6, 1e30, 20))
UNIT = join(uniform(-1, 1), spread(1e-20, 1), 1 - np.abs(spread(1e-7, 1)))
SAMPLES = {
    "exp": join(uniform(-103, 88), uniform(-1, 1)),
    "exp2": join(uniform(-149, 127), uniform(-1, 1)),
    "expm1": join(uniform(-17, 88), uniform(-1, 1), spread(1e-20, 1)),
    "log": POSITIVE,
    "log2": POSITIVE,
    "log10": POSITIVE,
    "log1p": join(uniform(-0.999, 10), spread(1e-20, 0.9), np.abs(spread(1, 1e30))),
    "logistic": join(uniform(-100, 40), uniform(-1, 1)),
    "tanh": join(uniform(-12, 12), uniform(-1, 1), spread(1e-20, 1)),
    "sin": WAVE,
    "cos": WAVE,
    "tan": WAVE,
    "asin": UNIT,
    "acos": UNIT,
    "atan": join(uniform(-5, 5), spread(1e-20, 1e20)),
    "sinh": join(uniform(-88, 88), uniform(-1, 1), spread(1e-20, 1)),
    "cosh": join(uniform(-88, 88), uniform(-1, 1)),
    "asinh": join(uniform(-88, 88), spread(1e-20, 1e30)),
    "acosh": join(uniform(1, 88), 1 + np.abs(spread(1e-6, 1)), np.abs(spread(1, 1e30))),
    "atanh": UNIT,
    "erf": join(uniform(-6, 6), uniform(-1, 1), spread(1e-20, 1)),
    "erfc": join(uniform(-6, 9), uniform(-1, 1)),
    "erfinv": join(uniform(-1, 1), 1 - np.abs(spread(1e-7, 1)), spread(1e-20, 1)),
    "silu": join(uniform(-110, 30), uniform(-1, 1), spread(1e-20, 1)),
    "gelu": join(uniform(-14.5, 6), uniform(-4, 1), spread(1e-20, 1)),
    "gelu_tanh": join(uniform(-11, 6), uniform(-4, 1), spread(1e-20, 1)),
    "tanh_gate": join(uniform(-11, 6), uniform(-4, 1), spread(1e-20, 1)),
    "ndtr": join(uniform(-14.5, 6), uniform(-4, 1), spread(1e-20, 1)),
    "normal_density": join(uniform(-14, 14), uniform(-1, 1), spread(1e-20, 1)),
    "lgamma": join(
        spread(1e-5, 1e5),
        uniform(-6, 5),
        np.float32([-3.1435809, -2.4570247, -2.7476826]),
        uniform(0.9, 1.1),
        uniform(1.9, 2.1),
        uniform(5, 40),
    ),
    "digamma": join(np.abs(spread(1e-5, 1e5)), uniform(0, 5), uniform(-8, 0), uniform(1.4, 1.5)),
    "sqrt": POSITIVE,
    "rsqrt": POSITIVE,
}
# Largest errors allowed, f32 and f64.
LIMITS = {name: (1.5, 1.5) for name in SAMPLES} | {
    "exp": (1.0, 1.0),
    "log": (1.0, 1.0),
    "sin": (0.7, 0.8),
    "cos": (0.7, 0.8),
    "sqrt": (0.5, 0.5),
    "logistic": (2.0, 1.5),
    "log1p": (1.7, 1.5),
    "atan": (0.6, 1.9),
    "sinh": (0.6, 1.9),
    "erfc": (0.6, 1.5),
    "erfinv": (0.6, 1.6),
    "lgamma": (0.6, 4.0),
    "normal_density": (1.1, 1.1),
    "digamma": (0.6, 2.0),
    **dict.fromkeys(("silu", "gelu", "gelu_tanh", "tanh_gate", "ndtr"), (2.0, 2.0)),
}
WITHOUT_FMA = dict.fromkeys(("gelu", "ndtr"), (4.0, 4.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SAMPLES)
def test_error(name, dtype):
    x = SAMPLES[name].astype(dtype)
    if name in ("asin", "acos", "atanh", "erfinv"):
        x = x[np.abs(x) < 1]
    if name == "acosh":
        x = x[x >= 1]
    with np.errstate(all="ignore"):
        truth = exact(name, x)
        fine = np.isfinite(truth) & (np.abs(truth) < np.finfo(dtype).max)
        for target in (cpu.host_target(), cpu.baseline_target()):
            error = ulp_error(apply(name, x, target=target), truth)[fine]
            worst = int(np.argmax(error))
            limits = LIMITS if target.has("fma") else LIMITS | WITHOUT_FMA
            assert error[worst] <= limits[name][dtype is np.float64], (x[fine][worst], error[worst])


@pytest.mark.parametrize("dtype,limit", [(np.float32, 0.6), (np.float64, 2.0)])
@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_error_of_two_arguments(name, dtype, limit):
    a, b = np.abs(spread(1e-3, 1e3)).astype(dtype), uniform(-9, 9, 2 * N).astype(dtype)
    near = np.abs(1 + uniform(-1, 1, 2 * N) * 1e-3).astype(dtype)
    big = uniform(-700, 700, 2 * N).astype(dtype)
    for x, y in ((a, b), (near, big)):
        error = ulp_error(apply(name, x, y), exact(name, x, y))
        assert error.max() <= limit


@pytest.mark.parametrize("name,low,high", [("silu", -752, -80), ("gelu", -39, -12), ("gelu_tanh", -22, -9)])
def test_tiny_results(name, low, high):
    """Rounded once, though the factor of x is a denormal."""
    for dtype in (np.float32, np.float64):
        x = uniform(low, high, 400).astype(dtype)
        error = ulp_error(apply(name, x), exact(name, x))
        assert error.max() <= 1.7, x[np.argmax(error)]


def beside(zeros, dtype):
    """The nearest numbers of each zero, and others at every distance from it."""
    rng, found = np.random.default_rng(2), list(map(dtype, zeros))
    for zero in map(dtype, zeros):
        found += [np.nextafter(zero, dtype(INF)), np.nextafter(zero, dtype(-INF))]
        found += [dtype(zero + s * 2.0**-k * rng.uniform(0.5, 1)) for k in range(3, 50, 5) for s in (-1, 1)]
    return np.unique(np.array(found, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name,zeros", [("lgamma", LOG_GAMMA_ZEROS), ("digamma", DIGAMMA_ZEROS)])
def test_next_to_zeros_below_0(name, zeros, dtype):
    """Where large terms cancel, a result next to 0 has all of its digits, as everywhere."""
    x = beside([high for high, _ in zeros], dtype)
    x = x[x != np.trunc(x)]
    with mpmath.workprec(250):
        truth = exact(name, x)
    for target in (cpu.host_target(), cpu.baseline_target()):
        error = ulp_error(apply(name, x, target=target), truth)
        worst = int(np.argmax(error))
        assert error[worst] <= 4.0, (x[worst], error[worst])


def far_zeros():
    """Zeros of digamma below the stored ones, each the double nearest to one: ψ(-a) = 0."""
    found = []
    with mpmath.workprec(250):
        for n in [*range(33, 700), *(2**k + 5 for k in range(10, 48))]:
            fraction = mpmath.acot(-mpmath.log(n) / mpmath.pi) / mpmath.pi
            found.append(float(mpmath.findroot(mpmath.digamma, -(n + fraction % 1))))
    return found


def test_next_to_zeros_of_digamma_far_down():
    x = np.array(far_zeros())
    x = np.concatenate([x, np.nextafter(x, INF), np.nextafter(x, -INF)])
    x = x[x != np.trunc(x)]
    with mpmath.workprec(250):
        truth = exact("digamma", x)
    for target in (cpu.host_target(), cpu.baseline_target()):
        error = ulp_error(apply("digamma", x, target=target), truth)
        worst = int(np.argmax(error))
        assert error[worst] <= 2.0, (x[worst], error[worst])


@pytest.mark.parametrize("name,zeros", [("lgamma", LOG_GAMMA_ZEROS), ("digamma", DIGAMMA_ZEROS)])
def test_stored_zeros(name, zeros):
    """Each sum of two is a zero to 2^-100 of its size."""
    function = mpmath.digamma if name == "digamma" else lambda x: mpmath.log(abs(mpmath.gamma(x)))
    with mpmath.workprec(250):
        for high, low in zeros:
            x, step = mpmath.mpf(high) + mpmath.mpf(low), mpmath.mpf(abs(high)) * mpmath.mpf(2) ** -100
            assert function(x - step) * function(x + step) < 0


ZERO_TO_ALL = ((0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (1e30, 1e30), (2e-30, 1e-30), (-2e-30, -1e-30))
"""x·s(x) as eager has it: 0·∞ at -∞."""
EDGES = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (89.5, INF), (-1e30, 0.0)],
    "exp2": [(0.0, 1.0), (INF, INF), (-INF, 0.0), (5.0, 32.0), (-149.0, 2.0**-149)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e-40, 1e-40)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN), (-INF, NAN)],
    "log2": [(1.0, 0.0), (8.0, 3.0), (2.0**-140, -140.0), (0.0, -INF), (INF, INF), (-1.0, NAN)],
    "log10": [(1.0, 0.0), (1000.0, 3.0), (0.0, -INF), (INF, INF), (-1.0, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (1e-40, 1e-40)],
    "logistic": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e-40, 1e-40), (50.0, 1.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (1e-40, 1e-40)],
    "cos": [(0.0, 1.0), (INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (2.0, NAN), (1.0, math.pi / 2), (-1.0, -math.pi / 2)],
    "acos": [(1.0, 0.0), (2.0, NAN), (-1.0, math.pi), (0.0, math.pi / 2)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e-40, 1e-40)],
    "cosh": [(0.0, 1.0), (INF, INF), (-INF, INF)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-3.0, NAN), (INF, INF)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (1e30, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "erfc": [(0.0, 1.0), (INF, 0.0), (-INF, 2.0)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN)],
    "silu": [*ZERO_TO_ALL, (-1e30, -0.0), (-960.0, -0.0)],
    "gelu": [*ZERO_TO_ALL, (-1e30, -0.0), (-40.0, -0.0)],
    "gelu_tanh": [*ZERO_TO_ALL, (-1e30, -0.0), (-23.0, -0.0)],
    "tanh_gate": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e30, 1.0), (-1e30, 0.0)],
    "ndtr": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e30, 1.0), (-1e30, 0.0)],
    "normal_density": [(INF, 0.0), (-INF, 0.0), (1e30, 0.0), (0.0, 1 / math.sqrt(2 * math.pi))],
    "lgamma": [
        (1.0, 0.0),
        (2.0, 0.0),
        (0.0, INF),
        (-0.0, INF),
        (-1.0, INF),
        (INF, INF),
        (-INF, INF),
        (1e30, math.lgamma(1e30)),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-1.0, NAN), (-1e30, NAN), (INF, INF), (-INF, NAN), (1e30, math.log(1e30))],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-1.0, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN)],
    "floor": [(-0.5, -1.0), (-0.0, -0.0), (2.5, 2.0), (INF, INF)],
    "ceil": [(-0.5, -0.0), (2.5, 3.0), (-INF, -INF)],
    "round_even": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (-2.5, -2.0)],
    "trunc": [(-0.5, -0.0), (2.9, 2.0), (-2.9, -2.0)],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EDGES)
def test_edges(name, dtype):
    points = np.array([*EDGES[name], (NAN, NAN)])
    x, wanted = points.T.astype(dtype)
    if name == "exp" and dtype is np.float64:
        wanted[x == 89.5] = np.exp(89.5)
    for target in (cpu.host_target(), cpu.baseline_target()):
        result = apply(name, x, target=target)
        np.testing.assert_array_max_ulp(np.where(np.isnan(result), 0, result), np.where(np.isnan(wanted), 0, wanted), 1)
        assert np.array_equal(np.isnan(result), np.isnan(wanted))
        zero = wanted == 0
        assert np.array_equal(np.signbit(result[zero]), np.signbit(wanted[zero]))


def test_power_of_special_values():
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.0, INF, -INF, NAN, 1e300, 5e-324, 2.5, 2.0**53 + 2]
    x, y = np.repeat(values, len(values)), np.tile(values, len(values))
    for dtype in (np.float64, np.float32):
        a, b = x.astype(dtype), y.astype(dtype)
        result, wanted = apply("pow", a, b), np.power(a, b)
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
        fine = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(result[fine]), np.signbit(wanted[fine]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SAMPLES)
def test_bits_do_not_depend_on_the_number_of_lanes(name, dtype):
    x = SAMPLES[name].astype(dtype)
    one = apply(name, x, lanes=1)
    for lanes in (4, 8, 16):
        np.testing.assert_array_equal(one.view(np.uint8), apply(name, x, lanes=lanes).view(np.uint8))


def test_every_function_is_tested():
    assert set(vector_math.UNARY) == SAMPLES.keys() | {"floor", "ceil", "round_even", "trunc"}
