"""Fit the polynomials of `codegen/vector_math`: minimax by Remez exchange, rounded one by one.

A fit minimises max |w(x)·(f(x) - fixed(x) - Σ c_k x^(e_k))| on an interval. Each coefficient is
then rounded to the format that the code uses, lowest power first, and the others are fitted
anew, so that no rounding is left uncompensated. Run it to print every table of coefficients.
"""

from __future__ import annotations

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
        return sum((mpf(c) * x**p for p, c in zip(fit.powers, result)), mpf(0))

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
    points = [mpf(fit.low) + (mpf(fit.high) - mpf(fit.low)) * i / 2000 for i in range(2001)]
    return max(abs(fit.weight(x) * (fit.target(x) - sum(mpf(v) * x**p for v, p in zip(c, fit.powers)))) for x in points)
