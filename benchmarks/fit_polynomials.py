"""Fit the polynomials of `codegen/vector_math`: minimax by Remez exchange, rounded one by one.

A fit minimises max |w(x)·(f(x) - fixed(x) - Σ c_k x^(e_k))| on an interval. Each coefficient is
then rounded to the format that the code uses, lowest power first, and the others are fitted
anew, so that no rounding is left uncompensated. Run it to print every table of coefficients.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpmath import mp, mpf

mp.prec = 200
Real = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """One polynomial: what it approximates, with which weight, on [low, high], by which powers."""

    name: str
    target: Real
    weight: Real
    low: float
    high: float
    powers: Sequence[int]
    double: bool


def remez(fit: Fit, powers: Sequence[int], fixed: Real) -> tuple[list[mpf], mpf]:
    """Give the minimax coefficients and the error that they leave."""
    n = len(powers)
    low, high = mpf(fit.low), mpf(fit.high)
    nodes = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * (n + 1))) for i in range(n + 1)]
    grid = [low + (high - low) * (1 - mp.cos(mp.pi * i / 1200)) / 2 for i in range(1201)]
    values = [(fit.target(x) - fixed(x)) * fit.weight(x) for x in grid]
    weights = [fit.weight(x) for x in grid]
    basis = [[x**p for p in powers] for x in grid]
    best: tuple[mpf, list[mpf]] | None = None
    for _ in range(12):
        matrix, right = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for row, x in enumerate(nodes):
            w = fit.weight(x)
            for column, p in enumerate(powers):
                matrix[row, column] = w * x**p
            matrix[row, n] = mpf((-1) ** row)
            right[row] = w * (fit.target(x) - fixed(x))
        solved = mp.lu_solve(matrix, right)
        c = [solved[i] for i in range(n)]
        errors = [
            v - w * sum(ci * bi for ci, bi in zip(c, b, strict=True))
            for v, w, b in zip(values, weights, basis, strict=True)
        ]
        worst = max(abs(e) for e in errors)
        if best is None or worst < best[0]:
            best = (worst, c)
        if worst < abs(solved[n]) * mpf("1.02"):
            break
        nodes = _alternation(grid, errors, n + 1)
    assert best is not None
    return best[1], best[0]


def _alternation(grid: list[mpf], errors: list[mpf], count: int) -> list[mpf]:
    """Give `count` points where the error is largest with alternating signs."""
    runs: list[tuple[mpf, mpf]] = []
    for x, e in zip(grid, errors, strict=True):
        if runs and (runs[-1][1] >= 0) == (e >= 0):
            if abs(e) > abs(runs[-1][1]):
                runs[-1] = (x, e)
        else:
            runs.append((x, e))
    while len(runs) > count:
        runs.pop(0 if abs(runs[0][1]) < abs(runs[-1][1]) else -1)
    points = [x for x, _ in runs]
    while len(points) < count:  # a flat error: split the widest gap
        gaps = [(points[i + 1] - points[i], i) for i in range(len(points) - 1)]
        _, i = max(gaps)
        points.insert(i + 1, (points[i] + points[i + 1]) / 2)
    return points


def rounded(fit: Fit) -> tuple[list[float], float]:
    """Give coefficients that the format holds, by the order of `powers`, and log2 of the error.

    The better of two: each rounded with the rest fitted anew, and all rounded at once (the
    refitting is ill-conditioned for long polynomials).
    """
    candidates = [_rounded_one_by_one(fit), _rounded_at_once(fit)]
    error, best = min((_error(fit, c), c) for c in candidates)
    return best, float(mp.log(error, 2)) if error else -999.0


def _rounded_at_once(fit: Fit) -> list[float]:
    c, _ = remez(fit, fit.powers, lambda x: mpf(0))
    return [_round(fit, v) for v in c]


def _rounded_one_by_one(fit: Fit) -> list[float]:
    result: list[float] = []

    def fixed(x: mpf) -> mpf:
        return sum((mpf(c) * x**p for p, c in zip(fit.powers, result, strict=False)), mpf(0))

    for start in range(len(fit.powers)):
        try:
            c, _ = remez(fit, fit.powers[start:], fixed)
        except ZeroDivisionError:  # the parity of what is left makes the exchange singular
            return result + [0.0] * (len(fit.powers) - start)
        result.append(_round(fit, c[0]))
    return result


def _round(fit: Fit, value: mpf) -> float:
    return float(value) if fit.double else float(np.float32(float(value)))


def _error(fit: Fit, c: Sequence[float]) -> mpf:
    def left(x: mpf) -> mpf:
        return fit.target(x) - sum(mpf(v) * x**p for v, p in zip(c, fit.powers, strict=True))

    points = [mpf(fit.low) + (mpf(fit.high) - mpf(fit.low)) * i / 2000 for i in range(2001)]
    return max(abs(fit.weight(x) * left(x)) for x in points)


# ---- what codegen/vector_math uses; near 0 the first terms of the series stand for 0/0

NEAR = mpf(10) ** -16
HALF_LN2 = float(mp.log(2) / 2) * 1.0005


def exp_rest(x: mpf) -> mpf:
    """(e^x - 1 - x)/x²"""
    return (mp.expm1(x) - x) / x**2 if abs(x) > NEAR else mpf(1) / 2 + x / 6


def exp2_rest(x: mpf) -> mpf:
    """(2^x - 1)/x"""
    return (mpf(2) ** x - 1) / x if abs(x) > NEAR else mp.log(2) * (1 + x * mp.log(2) / 2)


def log_rest(x: mpf) -> mpf:
    """(ln(1 + x) - x + x²/2)/x³"""
    return (mp.log1p(x) - x + x * x / 2) / x**3 if abs(x) > NEAR else mpf(1) / 3 - x / 4


def in_square(f: Real, first: mpf, second: mpf) -> Real:
    """(f(√z)/√z - 1)/z, of an odd f with f(x) = x + first·x³ + second·x⁵ + ..."""

    def rest(z: mpf) -> mpf:
        r = mp.sqrt(z)
        return (f(r) / r - 1) / z if z > NEAR else first + second * z

    return rest


def cos_rest(z: mpf) -> mpf:
    """(cos √z - 1 + z/2)/z²"""
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > NEAR else mpf(1) / 24 - z / 720


def artanh_rest(z: mpf) -> mpf:
    """(2·artanh(√z)/√z - 2)/z"""
    return (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z if z > NEAR else mpf(2) / 3 + 2 * z / 5


def artanh_rest2(z: mpf) -> mpf:
    """(2·artanh(√z)/√z - 2 - 2z/3)/z²"""
    return (artanh_rest(z) - mpf(2) / 3) / z if z > NEAR else mpf(2) / 5 + 2 * z / 7


def erf_rest(z: mpf) -> mpf:
    """erf(√z)/√z - 1"""
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1 if z > NEAR else 2 / mp.sqrt(mp.pi) - 1


@functools.cache
def erfcx_scaled(t: mpf) -> mpf:
    """(1 + 2x)·e^(x²)·erfc x at x = 4(1 + t)/(1 - t)"""
    x = 4 * (1 + t) / (1 - t)
    if x < 60:
        return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)
    total, term = mpf(0), mpf(1)
    for k in range(1, 30):
        total += term
        term *= -(2 * k - 1) / (2 * x * x)
    return (1 + 2 * x) * total / (x * mp.sqrt(mp.pi))


BEND = mpf(5) / 4


def mills(centre: float) -> Real:
    """(x + BEND)·e^(x²/2)·Φ(-x) at t = (x - centre)/(x + centre)"""

    @functools.cache
    def at(t: mpf) -> mpf:
        x = centre * (1 + t) / (1 - t)
        return (x + BEND) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2)) / 2

    return at


@functools.cache
def erfinv_ratio(w: mpf) -> mpf:
    """erfinv(x)/x at w = -ln(1 - x²), by Newton on ln erfc"""
    if w < NEAR:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    q = mp.exp(-w) / (1 + x)
    y = x * mp.sqrt(mp.pi) / 2 if w < 3 else mp.sqrt(-mp.log(q))
    for _ in range(100):
        slope = -2 / mp.sqrt(mp.pi) * mp.exp(-y * y) / mp.erfc(y)
        step = mp.log(mp.erfc(y) / q) / slope
        y -= step
        if abs(step) < mpf(10) ** -50:
            break
    return y / x


ROOT = mp.findroot(mp.digamma, 1.46)
"""Where digamma is 0."""


def digamma_slope(t: mpf) -> mpf:
    """ψ(x)/(x - its root) at x = 3/2 + t"""
    x = t + mpf(3) / 2
    return mp.digamma(x) / (x - ROOT) if abs(x - ROOT) > NEAR else mp.psi(1, ROOT)


def log_gamma_slope(t: mpf) -> mpf:
    """ln Γ(x)/((x - 1)·(x - 2)) at x = 3/2 + t"""
    x = t + mpf(3) / 2
    for zero, other in ((1, 2), (2, 1)):
        if abs(x - zero) < mpf(10) ** -20:
            return mp.digamma(zero) / (zero - other)
    return mp.loggamma(x).real / ((x - 1) * (x - 2))


def stirling_rest(z: mpf) -> mpf:
    """x·(ln Γ(x) - (x - 1/2)·ln x + x - ln(2π)/2) at z = 1/x²"""
    if z < mpf(10) ** -6:
        return sum(((-1) ** k * z**k / d for k, d in enumerate((12, 360, 1260, 1680))), mpf(0))
    x = 1 / mp.sqrt(z)
    return x * (mp.loggamma(x).real - (x - mpf(1) / 2) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)


def _fit(name: str, f: Real, w: Real, low: float, high: float, count: int, double: bool) -> Fit:
    return Fit(f"{name} {'f64' if double else 'f32'}", f, w, low, high, tuple(range(count)), double)


def fits() -> list[Fit]:
    """Every table of coefficients, in the order of the files."""
    quarter = float((mp.pi / 4) ** 2) * 1.001
    octant = float((mp.sqrt(2) - 1) ** 2) * 1.001
    sin_rest = in_square(mp.sin, -mpf(1) / 6, mpf(1) / 120)
    asin_rest = in_square(mp.asin, mpf(1) / 6, mpf(3) / 40)
    atan_rest = in_square(mp.atan, -mpf(1) / 3, mpf(1) / 5)
    found: list[Fit] = []
    for double, count, more in ((False, 6, 6), (True, 11, 12)):
        low, high = -HALF_LN2, HALF_LN2 * 1.001
        found += [
            _fit("EXP", exp_rest, lambda x: x**2 / mp.exp(x), low, high, count if double else 5, double),
            _fit("EXPM1", exp_rest, lambda x: x**2 / mp.expm1(x) if x else x, low, high, count, double),
            _fit("EXP2", exp2_rest, lambda x: x / mpf(2) ** x, -0.5002, 0.5005, more, double),
        ]
    found += [
        _fit("LOG", log_rest, lambda x: x**3 / mp.log1p(x) if x else x, -1 / 3, 0.3334, 9, False),
        _fit("LOG", artanh_rest, lambda z: z / 2, 0, 0.0401, 8, True),
        _fit("pow LOG", artanh_rest2, lambda z: z * z / 2, 0, 0.0401, 8, True),
        _fit("SIN", sin_rest, lambda z: z, 0, quarter, 7, True),
        _fit("COS", cos_rest, lambda z: z * z, 0, quarter, 6, True),
        _fit("SIN_SHORT", sin_rest, lambda z: z, 0, quarter, 4, True),
        _fit("COS_SHORT", cos_rest, lambda z: z * z, 0, quarter, 4, True),
        _fit("ASIN", asin_rest, lambda z: z, 0, 0.2501, 13, True),
        _fit("ATAN", atan_rest, lambda z: z, 0, octant, 12, True),
    ]
    tanh_rest = in_square(mp.tanh, -mpf(1) / 3, mpf(2) / 15)
    found.append(_fit("TANH", tanh_rest, lambda z: z / (1 + z * tanh_rest(z)), 0, 0.5505**2, 4, False))
    for double, near, tail, low, high in ((False, 7, 8, 0.92, 4.0), (True, 12, 19, 1.0, 6.0)):
        found += [
            _fit("ERF", erf_rest, lambda z: 1 / (1 + erf_rest(z)), 0, 1.0, near, double),
            _fit(
                "ERF_TAIL",
                lambda t: -mp.log(mp.erfc(t)),
                lambda t: mp.erfc(t) / mp.erf(t),
                low,
                high,
                tail,
                double,
            ),
        ]
    found.append(_fit("ERFCX", erfcx_scaled, lambda t: 1 / erfcx_scaled(t), -1, 0.76, 23, True))
    for double, centre, farthest, count in ((False, 4.328125, 14.75, 11), (True, 5.03125, 39.0, 24)):
        f = mills(centre)
        high = (farthest - centre) / (farthest + centre)
        found.append(_fit("MILLS", f, lambda t, f=f: 1 / f(t), -1, high, count, double))
    found += [
        _fit("TANH", in_square(mp.tanh, -mpf(1) / 3, mpf(2) / 15), lambda z: z, 0, 0.123, 5, False),
        _fit("DIGAMMA_SLOPE", digamma_slope, lambda t: 1 / digamma_slope(t), -0.5, 0.5, 23, True),
        _fit("LOG_GAMMA", log_gamma_slope, lambda t: 1 / log_gamma_slope(t), -0.5, 0.5, 23, True),
        _fit("STIRLING", stirling_rest, lambda z: mpf(1), 0, 1 / 9, 7, True),
    ]
    places: tuple[tuple[str, Real, float, float, int], ...] = (
        ("ERFINV", lambda t: t + mpf(25) / 8, -3.125, 3.125, 24),
        ("ERFINV_MIDDLE", lambda t: (t + mpf(13) / 4) ** 2, -0.75, 0.7501, 21),
        ("ERFINV_TAIL", lambda t: (t + 5) ** 2, -1.0, 1.1, 19),
    )
    for name, place, low, high, count in places:

        def ratio(t: mpf, place: Real = place) -> mpf:
            return erfinv_ratio(place(t))

        found.append(_fit(name, ratio, lambda t, f=ratio: 1 / f(t), low, high, count, True))
    return found


def main(wanted: Sequence[str]) -> None:
    """Print the tables whose name starts with one of the words, all without words."""
    for fit in fits():
        if not wanted or any(fit.name.startswith(w) for w in wanted):
            coefficients, error = rounded(fit)
            print(f"{fit.name}: error 2^{error:.1f}")
            for c in coefficients:
                print(f"    {c!r},")


if __name__ == "__main__":
    main(sys.argv[1:])
