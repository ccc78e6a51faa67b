"""Find the zeros of ln |Γ| and ψ below 0 and write them as sums of two doubles: codegen/vector_math/gamma_zeros.py.

    python benchmarks/gamma_zeros.py --write

ln |Γ| has two zeros in each interval (-m, 1 - m), m >= 3, whose distance from the poles shrinks like 1/m!: beyond
m = 18 no double lies between a zero and its pole. ψ has one in each interval (-n - 1, -n).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from mpmath import mp, mpf

BITS = 260
LOG_GAMMA_INTERVALS = range(3, 19)
DIGAMMA_INTERVALS = 32

HEAD = '''"""Zeros below 0, each a sum of two doubles; written by benchmarks/gamma_zeros.py."""

LOG_GAMMA_ZEROS = (
{log_gamma}
)  # fmt: skip
"""Of ln |Γ|: in (-m, 1 - m), m = {first}, {second}, ..., {last}, the one left of the middle and the one right of it."""

DIGAMMA_ZEROS = (
{digamma}
)  # fmt: skip
"""Of ψ: in (-1, 0), (-2, -1), ..."""
'''


def bisected(f: Callable[[mpf], mpf], low: mpf, high: mpf) -> mpf:
    """Where f changes its sign."""
    below = f(low) < 0
    for _ in range(BITS):
        middle = (low + high) / 2
        low, high = (middle, high) if (f(middle) < 0) == below else (low, middle)
    return (low + high) / 2


def log_gamma(x: mpf) -> mpf:
    """ln |Γ(x)|"""
    return mp.log(abs(mp.gamma(x)))


@mp.workprec(BITS)
def log_gamma_zeros() -> list[mpf]:
    """Both of each interval: between a pole, where it is infinite, and its only minimum."""
    found: list[mpf] = []
    for m in LOG_GAMMA_INTERVALS:
        lowest = digamma_zero(m - 1)
        tiny = mpf(2) ** -200
        found += [bisected(log_gamma, -m + tiny, lowest), bisected(log_gamma, lowest, 1 - m - tiny)]
    return found


@mp.workprec(BITS)
def digamma_zero(n: int) -> mpf:
    """The zero in (-n - 1, -n): by Newton from tan πd = π/ln n."""
    x = -n - mp.mpf(1) / 2 if n == 0 else -n - 1 + mp.atan(mp.pi / mp.log(n + mpf(3) / 2)) / mp.pi
    x = bisected(mp.digamma, mpf(-n - 1) + mpf(2) ** -20, mpf(-n) - mpf(2) ** -20) if n < 3 else x
    for _ in range(9):
        x -= mp.digamma(x) / mp.psi(1, x)
    assert -n - 1 < x < -n and abs(mp.digamma(x)) < mpf(2) ** -200
    return x


@mp.workprec(BITS)
def pairs(zeros: list[mpf]) -> str:
    """Lines of two pairs."""
    texts = [f"({float(x)!r}, {float(x - mpf(float(x)))!r})" for x in zeros]
    return "\n".join("    " + ", ".join(texts[i : i + 2]) + "," for i in range(0, len(texts), 2))


def main() -> None:
    """Print the file, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    text = HEAD.format(
        log_gamma=pairs(log_gamma_zeros()),
        digamma=pairs([digamma_zero(n) for n in range(DIGAMMA_INTERVALS)]),
        first=LOG_GAMMA_INTERVALS[0],
        second=LOG_GAMMA_INTERVALS[1],
        last=LOG_GAMMA_INTERVALS[-1],
    )
    if parser.parse_args().write:
        (Path(__file__).parents[1] / "codegen" / "vector_math" / "gamma_zeros.py").write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
