"""What products of matrices cost, in floating-point operations at full speed: as kernels of ours, and as library calls.

All by one list of prices: a decision that changes bits depends on sizes and on that list alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from isthmus.passes.analysis.prices import CPU, Prices

SETS, WAYS, MORE_SETS = 4 << 10, 8, 64 << 10
"""Bytes after which lines share a set of the first cache and of the second one, and lines that fit into a set."""

DEEPEST = 512
"""Steps of k between two visits of a result."""

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

    def packing(self, prices: Prices) -> float:
        """What packing an element costs."""
        return (prices.pack_turned if self.turned else prices.pack) + prices.panel_addition * (self.work or 0.0)


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
    prices: Prices = CPU

    @property
    def library(self) -> float:
        """What library calls cost."""
        m, n, k, p = self.m, self.n, self.k, self.prices
        packing = p.library_pack * k * (m + n) if min(m, n) > 1 else 0.0
        pace = p.library_pace * (p.library_half if self.half else 1.0)
        return self.count * (2.0 * m * n * k * pace + packing + p.per_result * m * n) + p.library_call

    def forms(self, tile: tuple[int, int], dots: tuple[int, int]) -> Iterator[Form]:
        """Give the kernels of ours, for tiles of so many rows and columns, and for such whose vectors run along k."""
        m, n, k, p = self.m, self.n, self.k, self.prices
        a_lies = self.a.turned and self.a.work is None
        b_lies = not self.b.turned and self.b.work is None and n % tile[1] == 0
        if min(m, n) >= FEWEST:
            down, across = -(-m // tile[0]), -(-n // tile[1])
            rows = m if m % tile[0] == 0 else m // tile[0] * tile[0] + _tail(m % tile[0])
            sums = 2.0 * rows * across * tile[1] * k * p.pace + p.per_result * m * n + p.per_block
            prices_a = {"": self.a.packing(p), **({"a": self._reading_a() * across} if a_lies else {})}
            prices_b = {"": self.b.packing(p), **({"b": self._reading_b() * down} if b_lies else {})}
            for direct_a, price_a in prices_a.items():
                for direct_b, price_b in prices_b.items():
                    direct = tuple(x for x in (direct_a, direct_b) if x)
                    rare = p.rare_form if direct_a else 0.0
                    yield Form(direct, False, self.count * (sums + price_a * m * k + price_b * n * k) + rare)
        if a_lies and self.b.turned and self.b.work is None:
            rows, columns = (-(-x // by) * by for x, by in zip((m, n), dots, strict=True))
            steps = 2.0 * rows * columns * k * p.pace
            # A's rows pass by for each tile of columns
            passing = (p.apart if m * k * 4 > WAYS * SETS else 0.0) * m * k * (columns // dots[1])
            yield Form(("a", "b"), True, self.count * (steps + passing + p.per_dot * m * n + p.per_block))

    def best(self, tile: tuple[int, int], dots: tuple[int, int]) -> Form | None:
        """Give the cheapest kernel, or None where none is worth anything."""
        return min(self.forms(tile, dots), key=lambda form: form.cost, default=None)

    def _reading_a(self) -> float:
        return self.prices.alike if self.a.stride % SETS == 0 else self.prices.apart

    def _reading_b(self) -> float:
        lines = min(self.k, DEEPEST)
        if lines * 2 > WAYS * _sets(self.b.stride, MORE_SETS):
            return self.prices.far
        return self.prices.away if lines > WAYS * _sets(self.b.stride, SETS) else self.prices.near


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
