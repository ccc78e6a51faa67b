"""Derivatives of digamma: ψₙ(x) = (-1)ⁿ⁺¹ n! Σ 1/(x + k)ⁿ⁺¹, k = 0, 1, ...

The first terms are added, the sum of the others from y on is, by Euler and Maclaurin with s = n + 1,
y⁻ˢ·(y/(s - 1) + 1/2 + Σ B₂ⱼ/(2j)!·s·(s + 1)·...·(s + 2j - 2)·y¹⁻²ʲ). Below 0 it is mirrored.
"""

from __future__ import annotations

import math

from isthmus.codegen.llvm_text import Value
from isthmus.codegen.vector_math.core import NAN, Math
from isthmus.codegen.vector_math.gamma_terms import sine_and_cosine

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
"""B₂ⱼ"""


def polygamma(m: Math, x: Value, n: int) -> Value:
    """Give the derivative of digamma of order n >= 1; infinite at 0, -1, -2, ... For f32 evaluated in f64."""
    if x.type.scalar == "float":
        return m.narrow(_polygamma(m, m.widen(x), n))
    return _polygamma(m, x, n)


def _polygamma(m: Math, x: Value, n: int) -> Value:
    f = m.f
    mirrored = f.compare("olt", x, 0.0)
    sign = 1.0 if n % 2 else -1.0
    right = zeta(m, f.select(mirrored, 1.0 - x, x + 0.0), n + 1) * (math.factorial(n) * sign)
    # ψₙ(x) = (-1)ⁿψₙ(1 - x) - dⁿ/dxⁿ π·cot πx
    left = right * -sign - _slope_of_cotangent(m, x, n)
    result = f.select(mirrored, left, right)
    return f.select(f.compare("oeq", x, -math.inf), NAN, result)


def zeta(m: Math, x: Value, s: int) -> Value:
    """Give Σ 1/(x + k)ˢ for x >= 0."""
    f, reach = m.f, 10 + s
    y, head = x, m.const(0.0, x)
    for _ in range(reach):
        near = f.compare("olt", y, float(reach))
        head = f.select(near, head + _power(m, 1.0 / y, s), head)
        y = f.select(near, y + 1.0, y)
    factors, rising = [], 1.0
    for j, bernoulli in enumerate(BERNOULLI, 1):  # s·(s + 1)·...·(s + 2j - 2)
        rising *= s if j == 1 else (s + 2 * j - 3) * (s + 2 * j - 2)
        factors.append(bernoulli / math.factorial(2 * j) * rising)
    inverse = 1.0 / y
    series = inverse * m.horner(inverse * inverse, factors)
    power = _power(m, inverse, s - 1)
    return head + (power * (1 / (s - 1)) + power * inverse * (series + 0.5))


def _power(m: Math, x: Value, n: int) -> Value:
    """Give xⁿ, n >= 1, by squaring."""
    if n == 1:
        return x
    half = _power(m, x, n // 2)
    return half * half * x if n % 2 else half * half


def _slope_of_cotangent(m: Math, x: Value, n: int) -> Value:
    """Give dⁿ/dxⁿ π·cot πx = πⁿ⁺¹·pₙ(cot πx), p₀(c) = c, pₖ₊₁(c) = -(1 + c²)·pₖ'(c)."""
    p = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(p)][1:]
        p = [-(a + b) for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    sine, cosine = sine_and_cosine(m, x)
    cotangent = cosine / sine
    square = cotangent * cotangent
    value = m.horner(square, p[n + 1 & 1 :: 2])  # all powers are even, or all odd
    return (value if n % 2 else value * cotangent) * math.pi ** (n + 1)
