"""How accurate the functions in compiled code are: largest error in units of the last place, beside eager's.

    python benchmarks/ulp.py --write               # the table of docs/accuracy.md, some minutes
    python benchmarks/ulp.py --samples 100000 exp  # fewer samples, functions by name

float32 is sampled evenly over all bit patterns (every exponent equally) and over the range where the function bends,
and compared with float64; the worst samples are judged again by mpmath, so that the figure is exact. float64 is sampled
likewise and compared with mpmath throughout, and so are the neighbours of the zeros of lgamma and digamma. "special"
compares NaN, infinities, zeros, denormals, the edges of the domain and huge arguments: each must be what mpmath says,
and of eager's class (NaN, sign of an infinity or a zero). It ends with 1 where a function exceeds its bar.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gamma_zeros
import mpmath
import numpy as np
import scipy.special as sp
import torch
import torch.nn.functional as F
from mpmath import mp, mpf

import isthmus

mp.prec = 160
INF, NAN = math.inf, math.nan
ROUNDING = {np.float32: np.uint32, np.float64: np.uint64}
JUDGED = 40
"""How many of the worst float32 samples mpmath judges."""

Array = np.ndarray


@dataclass(frozen=True)
class Subject:
    """One function: torch's, the same in float64, the same in mpmath, and where to look closely.

    `bars`: the largest errors allowed, in float32 and float64.
    """

    torch: Callable[..., torch.Tensor]
    wide: Callable[..., Array]
    exact: Callable[..., mpf]
    ranges: Sequence[tuple[float, float]]
    specials: Sequence[float] = ()
    bars: tuple[float, float] = (2.0, 2.0)
    arguments: int = 1
    zeros: Callable[[], Sequence[mpf]] = list
    """Whose neighbours are sampled."""


def gelu_tanh_inner(x: mpf) -> mpf:
    return mpmath.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3)


def wide_gelu_tanh(x: Array) -> Array:
    return x * sp.expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def softplus(x: mpf) -> mpf:
    return x if x > 20 else mpmath.log1p(mpmath.exp(x))


def logistic(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


def lgamma(x: mpf) -> mpf:
    return mpmath.loggamma(x).real if x > 0 else mpmath.log(abs(mp.pi / (mpmath.sinpi(x) * mpmath.gamma(1 - x))))


def log_gamma_zeros() -> list[mpf]:
    return [mpf(1), mpf(2), *gamma_zeros.log_gamma_zeros()]


def digamma_zeros() -> list[mpf]:
    return [mpmath.findroot(mpmath.digamma, 1.46), *map(gamma_zeros.digamma_zero, [*range(300), 1000, 10**6 + 1])]


def power(x: mpf, y: mpf) -> mpf:
    return x**y


SUBJECTS: dict[str, Subject] = {
    "exp": Subject(torch.exp, np.exp, mpmath.exp, [(-104, 89), (-1, 1)], [88.72, 88.73, -103.97, -104.1, 710, -746]),
    "expm1": Subject(torch.expm1, np.expm1, mpmath.expm1, [(-18, 89), (-1, 1)], [88.72, 89, 710, -50]),
    "log": Subject(torch.log, np.log, mpmath.log, [(0.5, 2), (0, 100)]),
    "log1p": Subject(torch.log1p, np.log1p, mpmath.log1p, [(-1, 1), (-0.1, 0.1), (0, 100)]),
    "log2": Subject(torch.log2, np.log2, lambda x: mpmath.log(x, 2), [(0.5, 2), (0, 100)], [8, 0.125]),
    "log10": Subject(torch.log10, np.log10, mpmath.log10, [(0.5, 2), (0, 100)], [1000, 0.1]),
    "sin": Subject(torch.sin, np.sin, mpmath.sin, [(-10, 10), (-1e4, 1e4)], [1e30, -1e30, 1e6, 1.7e6]),
    "cos": Subject(torch.cos, np.cos, mpmath.cos, [(-10, 10), (-1e4, 1e4)], [1e30, -1e30, 1e6, 1.7e6]),
    "tan": Subject(torch.tan, np.tan, mpmath.tan, [(-10, 10), (-1e4, 1e4)], [1e30, -1e30, 1e6, 1.7e6]),
    "asin": Subject(torch.asin, np.arcsin, mpmath.asin, [(-1, 1), (0.4, 0.6)]),
    "acos": Subject(torch.acos, np.arccos, mpmath.acos, [(-1, 1), (0.9, 1)]),
    "atan": Subject(torch.atan, np.arctan, mpmath.atan, [(-5, 5), (0.3, 0.5)]),
    "atan2": Subject(torch.atan2, np.arctan2, mpmath.atan2, [(-5, 5)], [0.5, 3], arguments=2),
    "sinh": Subject(torch.sinh, np.sinh, mpmath.sinh, [(-90, 90), (-1, 1)], [89.4, 89.5, 710.4, 711]),
    "cosh": Subject(torch.cosh, np.cosh, mpmath.cosh, [(-90, 90), (-1, 1)], [89.4, 89.5, 710.4, 711]),
    "tanh": Subject(torch.tanh, np.tanh, mpmath.tanh, [(-10, 10), (-1, 1)]),
    "erf": Subject(torch.erf, sp.erf, mpmath.erf, [(-6, 6), (-1, 1)]),
    "erfc": Subject(torch.erfc, sp.erfc, mpmath.erfc, [(-6, 10), (0, 27)], [10.1, 26.5, 28, -7]),
    "erfinv": Subject(torch.erfinv, sp.erfinv, mpmath.erfinv, [(-1, 1), (0.999, 1)]),
    "pow": Subject(torch.pow, np.power, power, [(0, 10)], [2, 0.5, -2, 3, 1e38], (4.0, 4.0), arguments=2),
    "rsqrt": Subject(torch.rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x), [(0, 10)]),
    "sigmoid": Subject(torch.sigmoid, sp.expit, logistic, [(-90, 20), (-1, 1)], [-87, -88.8, -104, -745]),
    "softplus": Subject(
        F.softplus, lambda x: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))), softplus, [(-90, 21), (-2, 2)]
    ),
    "gelu": Subject(F.gelu, lambda x: x * sp.ndtr(x), lambda x: x * mpmath.ncdf(x), [(-13, 6), (-1, 1)]),
    "gelu tanh": Subject(
        lambda x: F.gelu(x, approximate="tanh"), wide_gelu_tanh, lambda x: x * logistic(2 * gelu_tanh_inner(x)),
        [(-10, 6), (-1, 1)],
    ),
    "silu": Subject(F.silu, lambda x: x * sp.expit(x), lambda x: x * logistic(x), [(-90, 20), (-1, 1)]),
    "lgamma": Subject(
        torch.lgamma, sp.gammaln, lgamma, [(0, 5), (-6, 0), (0.9, 2.1)], [2, 3], (4.0, 4.0), zeros=log_gamma_zeros
    ),
    "digamma": Subject(
        torch.digamma, sp.digamma, mpmath.digamma, [(0, 5), (-6, 0), (1.4, 1.5)], [-2], (4.0, 4.0), zeros=digamma_zeros
    ),
}  # fmt: skip


# ---- samples


def bit_patterns(dtype: type, count: int, seed: int) -> Array:
    """Finite numbers spread evenly over the bit patterns."""
    kind = ROUNDING[dtype]
    bits = np.random.default_rng(seed).integers(0, np.iinfo(kind).max, count, dtype=kind, endpoint=True)
    x = bits.view(dtype)
    return x[np.isfinite(x)]


def samples(subject: Subject, dtype: type, count: int) -> list[Array]:
    """The arguments: `count` of every magnitude and as many in the ranges."""
    found: list[Array] = []
    for k in range(subject.arguments):
        rng = np.random.default_rng(10 + k)
        parts = [bit_patterns(dtype, count, seed=k)[: count - count // 50]]
        parts += [rng.uniform(*r, count // len(subject.ranges)).astype(dtype) for r in subject.ranges]
        found.append(np.concatenate(parts))
    length = min(map(len, found))
    return [x[:length] for x in found]


def beside(zeros: Sequence[mpf], dtype: type) -> Array:
    """The nearest numbers of each zero, and some at every distance from it."""
    rng, found = np.random.default_rng(5), list[np.floating]()
    for zero in zeros:
        for towards in (-INF, INF):
            x = dtype(float(zero))
            for _ in range(3):
                found.append(x)
                x = np.nextafter(x, dtype(towards))
        found += [dtype(float(zero) + s * 2.0**-k * rng.uniform(0.5, 1)) for k in range(3, 50, 2) for s in (-1, 1)]
    return np.unique(np.array(found, dtype))


COMMON = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0)


def special_samples(subject: Subject, dtype: type) -> list[Array]:
    info = np.finfo(dtype)
    near = [np.nextafter(dtype(s), dtype(t)) for s in (1.0, -1.0) for t in (0.0, 2 * s)]
    limits = [s * v for v in (info.tiny, info.smallest_subnormal, info.max) for s in (1, -1)]
    own = [v for v in subject.specials if abs(v) <= info.max]
    values = np.array([*COMMON, *near, *limits, *own], dtype)
    if subject.arguments == 1:
        return [values]
    return [np.repeat(values, len(values)), np.tile(values, len(values))]


# ---- errors


def in_units(result: Array, truth: Array, dtype: type) -> Array:
    """The error in units of the last place of the true value; both in a wider format, or as mpmath's numbers."""
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        magnitude = np.clip(np.abs(truth.astype(dtype)), info.tiny, info.max)
        return np.abs(result.astype(truth.dtype) - truth) / np.spacing(magnitude).astype(truth.dtype)


def exact_error(subject: Subject, arguments: Sequence[float], result: float, dtype: type) -> float:
    """The error of one result, 0 where it is right, infinite where it is of another class."""
    truth = true_value(subject, arguments)
    info = np.finfo(dtype)
    if truth is None:
        return 0.0
    if mpmath.isnan(truth) or math.isnan(result):
        return 0.0 if mpmath.isnan(truth) == math.isnan(result) else INF
    limit = mpf(2) ** (info.maxexp) * (1 - mpf(2) ** (-info.nmant - 2))
    if abs(truth) >= limit or math.isinf(result):
        return 0.0 if math.isinf(result) and abs(truth) >= limit * (1 - info.eps) and result * truth > 0 else INF
    exponent = max(int(mpmath.floor(mpmath.log(abs(truth), 2))), info.minexp) if truth else info.minexp
    return float(abs(mpf(result) - truth) / mpf(2) ** (exponent - info.nmant))


def true_value(subject: Subject, arguments: Sequence[float]) -> mpf | None:
    """The function by mpmath, NaN where it is no real number; None where mpmath does not say (poles, infinities)."""
    if any(not math.isfinite(a) or (a == 0 and math.copysign(1, a) < 0) for a in arguments):
        return None
    try:
        value = subject.exact(*map(mpf, arguments))
    except (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.NoConvergence):
        return None
    if isinstance(value, mpmath.mpc):
        return mpf("nan")
    return None if mpmath.isinf(value) else value


def worst(
    subject: Subject, arguments: list[Array], result: Array, dtype: type, every: bool = False
) -> tuple[float, tuple[float, ...]]:
    """The largest error and where; infinite where a result is NaN or infinite and should not be. `every`: by mpmath."""
    if dtype is np.float32 and not every:
        with np.errstate(all="ignore"):
            truth = subject.wide(*(a.astype(np.float64) for a in arguments))
            errors = in_units(result, truth, dtype)
            outside = np.isfinite(result) != np.isfinite(truth.astype(dtype))
        errors = np.where(outside & ~np.isnan(truth), INF, np.nan_to_num(errors, nan=0.0, posinf=0.0))
        chosen = np.argsort(errors)[-JUDGED:]
    else:
        chosen = np.arange(len(result))
    found = [(exact_error(subject, [float(a[i]) for a in arguments], float(result[i]), dtype), i) for i in chosen]
    error, i = max(found)
    return error, tuple(float(a[i]) for a in arguments)


def wrong_specials(subject: Subject, arguments: list[Array], result: Array, eager: Array, dtype: type) -> list[str]:
    """Special arguments whose result is of another class than eager's, or is off by more than the bar."""
    bar, wrong = subject.bars[dtype is np.float64], []
    for i, (y, e) in enumerate(zip(result, eager, strict=True)):
        at = [float(a[i]) for a in arguments]
        truth = true_value(subject, at)
        same = np.isnan(y) == np.isnan(e) and (
            np.isnan(y) or (np.isinf(y) == np.isinf(e) and (np.sign(y) == np.sign(e)))
        )
        same = same and (np.isnan(y) or y != 0 or np.signbit(y) == np.signbit(e))
        right = truth is not None and not mpmath.isnan(truth) and exact_error(subject, at, float(y), dtype) <= bar
        if not (right if truth is not None and not mpmath.isnan(truth) and truth != 0 else same):
            wrong.append(f"{', '.join(f'{a:.6g}' for a in at)} -> {y:.6g}, eager {e:.6g}")
    return wrong


def same_class(a: np.floating, b: np.floating) -> bool:
    """Both NaN, the same infinity, the same zero, or numbers of one sign next to each other."""
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(a) and np.isnan(b))
    if np.signbit(a) != np.signbit(b) or np.isinf(a) != np.isinf(b):
        return False
    return bool(a == b or abs(a - b) <= 4 * np.spacing(abs(b)))


# ---- the table


def rows(names: Sequence[str], count: int, count64: int) -> list[list[str]]:
    found: list[list[str]] = []
    for name in names:
        subject, cells, wrong, met = SUBJECTS[name], [name], [], True
        for dtype, n in ((np.float32, count), (np.float64, count64)):
            compiled = isthmus.compile(subject.torch, capture="trace")
            groups = [(samples(subject, dtype, n), False)]
            if zeros := subject.zeros():
                groups.append(([beside(zeros, dtype)], True))
            for function in (compiled, subject.torch):
                error, at = max(
                    worst(subject, group, function(*map(torch.from_numpy, group)).numpy(), dtype, every)
                    for group, every in groups
                )
                cells.append(f"{error:.2f}" if error < 1e4 else f"{error:.1e}")
                if function is compiled:
                    cells.append(", ".join(f"{a:.6g}" for a in at))
                    met = met and error <= subject.bars[dtype is np.float64]
            special = special_samples(subject, dtype)
            tensors = [torch.from_numpy(a) for a in special]
            values = [f(*tensors).numpy() for f in (compiled, subject.torch)]
            wrong += [f"{dtype.__name__} {w}" for w in wrong_specials(subject, special, *values, dtype)]
        cells.append(f"{max(subject.bars):g}{'' if met else ' EXCEEDED'}")
        cells.append("; ".join(wrong) or "all right")
        print_row(cells)
        found.append(cells)
    return found


HEAD = ["function", "f32", "worst at", "eager f32", "f64", "worst at", "eager f64", "bar", "special values"]
BAR = HEAD.index("bar")


PAGE = """# Accuracy

Largest errors in units of the last place of compiled functions, beside torch's own kernels, on this machine's CPU.
Written by `python benchmarks/ulp.py --write` ({samples}):
float32 evenly over all bit patterns and over the range where a function bends, float64 likewise, judged by mpmath.
The bar is 2, and 4 for lgamma, digamma and pow. `tests/unit/codegen/test_vector_math.py` holds a smaller sample to it.

{table}

"special values": NaN, infinities, zeros of both signs, denormals, the edges of the domain, huge arguments (sin 1e30),
overflow; for functions of two arguments every pair of them.

- gelu and silu are functions of their own (docs/decisions/gelu-keeps-its-digits.md); eager's cancel in 1 + erf and
  1 + tanh for negative x, and its silu is x times a denormal below x = -87. softplus is the log of a sum, as eager's.
  gelu(-0) is -0; eager gives +0 in float32.
- lgamma and digamma have zeros below 0, next to which large terms cancel. There they are computed from the zero, which
  is stored as a sum of two numbers: all of lgamma's, digamma's down to -32. Further down digamma's terms are added to
  2^-100. The neighbours of these zeros are among the samples. No function calls the C library but sin, cos and tan
  beyond 1.6e6.
- eager's infinite errors are overflows a little early (sinh, cosh) and zeros of lgamma.
"""


def print_row(cells: Sequence[str]) -> None:
    print(line(cells), flush=True)


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", help="which; all by default")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md too")
    parser.add_argument("--samples", type=int, default=2_000_000, help="float32 samples for each function, twice")
    parser.add_argument("--samples64", type=int, default=20_000, help="float64 samples for each function, twice")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print_row(HEAD)
    print_row(["---"] * len(HEAD))
    found = rows(given.functions or list(SUBJECTS), given.samples, given.samples64)
    if given.write:
        table = "\n".join(line(cells) for cells in (HEAD, ["---"] * len(HEAD), *found))
        samples = f"{given.samples:,} float32 and {given.samples64:,} float64 samples, twice"
        (Path(__file__).parents[1] / "docs" / "accuracy.md").write_text(PAGE.format(samples=samples, table=table))
    sys.exit(any("EXCEEDED" in cells[BAR] for cells in found))


if __name__ == "__main__":
    main()
