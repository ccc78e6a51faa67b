"""What products of matrices cost, in floating-point operations at full speed: as kernels of ours, and as library calls.

The figures were measured on one machine and hold for all: a decision that changes bits depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

SPEED = 100e9
"""Full speed of one core that `explain` reckons with, operations a second. No decision depends on it."""

STRAIGHT, TURNED = 12.0, 20.0
"""Packing an element that lies along its panel, or across."""

PER_ADDITION = 6.0
"""An addition of a prologue."""

NEAR, AWAY, FAR = 0.05, 0.5, 8.0
"""Reading an element of B as it lies for one more tile, by the cache that a panel's lines stay in: rows of memory that
are a power of two apart share few sets."""

APART, ALIKE = 0.3, 1.7
"""The same for A, of which a tile has few rows; where rows fall on the same set of the first cache."""

SETS, WAYS, MORE_SETS = 4 << 10, 8, 64 << 10
"""Bytes after which lines share a set of the first cache and of the second one, and lines that fit into a set."""

DEEPEST = 512
"""Steps of k between two visits of a result."""

PER_RESULT = 10.0
"""Writing an element, and starting and ending its tile."""

PER_DOT = 130.0
"""Adding up the lanes of an element whose vectors run along k."""

PER_BLOCK = 20e3
"""Walking the blocks."""

RARE = 100e3
"""What a form that few products have must gain, a microsecond, to be worth the time that compiling it takes."""

PACE = 1.04
"""Time of a tile's inner loop over that of its arithmetic alone."""

LIBRARY_CALL, LIBRARY_PACE, LIBRARY_PACK = 150e3, 1.1, 12.0
"""The same of the library: a call, its inner loop, packing an element."""

HALF_PACE = 2.0
"""The library's inner loop in half precision over that in f32. Measured without instructions for it: 1.6 to 10 where
rows of A lie across k or those of B along it, f16 15, up to 90 elsewhere. With them both forms are faster alike."""

FEWEST = 8
"""Rows and columns below which only vectors along k are worth a kernel."""


@dataclass(frozen=True)
class Side:
    """A factor: `turned` where k runs along memory, `stride` bytes between rows of memory.

    `work`: additions that compute an element; None where it is read as it lies and could be so for each tile.
    """

    turned: bool
    stride: int
    work: float | None = None

    @property
    def packing(self) -> float:
        """What packing an element costs."""
        return (TURNED if self.turned else STRAIGHT) + PER_ADDITION * (self.work or 0.0)


@dataclass(frozen=True)
class Product:
    """`count` products of m x k and k x n."""

    m: int
    n: int
    k: int
    a: Side
    b: Side
    count: int = 1
    half: bool = False
    """Whether of 16 bits: added up in f32, rounded once."""

    @property
    def library(self) -> float:
        """What library calls cost."""
        m, n, k = self.m, self.n, self.k
        packing = LIBRARY_PACK * k * (m + n) if min(m, n) > 1 else 0.0
        pace = LIBRARY_PACE * (HALF_PACE if self.half else 1.0)
        return self.count * (2.0 * m * n * k * pace + packing + PER_RESULT * m * n) + LIBRARY_CALL

    def forms(self, tile: tuple[int, int], dots: tuple[int, int]) -> Iterator[Form]:
        """Give the kernels of ours, for tiles of so many rows and columns, and for such whose vectors run along k."""
        m, n, k = self.m, self.n, self.k
        a_lies = self.a.turned and self.a.work is None
        b_lies = not self.b.turned and self.b.work is None and n % tile[1] == 0
        if min(m, n) >= FEWEST:
            down, across = -(-m // tile[0]), -(-n // tile[1])
            rows = m if m % tile[0] == 0 else m // tile[0] * tile[0] + _tail(m % tile[0])
            sums = 2.0 * rows * across * tile[1] * k * PACE + PER_RESULT * m * n + PER_BLOCK
            prices_a = {"": self.a.packing, **({"a": self._reading_a() * across} if a_lies else {})}
            prices_b = {"": self.b.packing, **({"b": self._reading_b() * down} if b_lies else {})}
            for direct_a, price_a in prices_a.items():
                for direct_b, price_b in prices_b.items():
                    direct = tuple(x for x in (direct_a, direct_b) if x)
                    rare = RARE if direct_a else 0.0
                    yield Form(direct, False, self.count * (sums + price_a * m * k + price_b * n * k) + rare)
        if a_lies and self.b.turned and self.b.work is None:
            rows, columns = (-(-x // by) * by for x, by in zip((m, n), dots, strict=True))
            steps = 2.0 * rows * columns * k * PACE
            # A's rows pass by for each tile of columns
            passing = (APART if m * k * 4 > WAYS * SETS else 0.0) * m * k * (columns // dots[1])
            yield Form(("a", "b"), True, self.count * (steps + passing + PER_DOT * m * n + PER_BLOCK))

    def best(self, tile: tuple[int, int], dots: tuple[int, int]) -> Form | None:
        """Give the cheapest kernel, or None where none is worth anything."""
        return min(self.forms(tile, dots), key=lambda form: form.cost, default=None)

    def _reading_a(self) -> float:
        return ALIKE if self.a.stride % SETS == 0 else APART

    def _reading_b(self) -> float:
        lines = min(self.k, DEEPEST)
        if lines * 2 > WAYS * _sets(self.b.stride, MORE_SETS):
            return FAR
        return AWAY if lines > WAYS * _sets(self.b.stride, SETS) else NEAR


@dataclass(frozen=True)
class Form:
    """A way of making a product: the factors that are not packed, whether vectors run along k, and what it costs."""

    direct: tuple[str, ...]
    dots: bool
    cost: float


def _tail(rows: int) -> int:
    """Rows of full speed in the time of a tile of fewer rows, whose sums wait for each other."""
    return max(rows, 4)


def _sets(stride: int, after: int) -> int:
    """Sets that lines so many bytes apart fall on."""
    return after // 64 if stride == 0 else max(1, after // max(gcd(stride, after), 64))
