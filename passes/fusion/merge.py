"""Which kernels become one: candidate pairs by the bytes that joining them saves, each tried by building it."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.fusion.align import align, links
from isthmus.passes.fusion.clusters import Builder, Cluster
from isthmus.passes.fusion.graph import Kind, Node, Value
from isthmus.passes.fusion.instructions import Refused
from isthmus.passes.fusion.space import point_count
from isthmus.passes.fusion.steps import Steps

LARGEST_KERNEL, LARGEST_ON_GPU = 64, 24
"""Nodes with a buffer or a reduction in one kernel; ptxas takes seconds for many."""

LARGE, MOST_STREAMS = 8 << 20, 8
"""On a GPU, kernels that move more bytes than this and share numbers alone become one up to so many tensors read: of
four times as many a third of the rate was lost, measured, for launches that cost next to nothing."""

FEWEST_POINTS = 8
"""A merge that leaves fewer parallel points than this, where there were more, is refused."""

BETWEEN = "another step lies between them"

WORTH_MORE = 8
"""A merge that saves so many launches takes along what lies between."""


@dataclass(frozen=True)
class Refusal:
    """A pair of nodes whose kernels did not become one, and why."""

    first: Node
    second: Node
    reason: str


class Merger(Steps):
    """Kernels of a program while they grow."""

    def __init__(
        self,
        clusters: Iterable[Cluster],
        externs: dict[Node, list[Value]],
        builder: Builder,
        launches_cost: bool = True,
    ) -> None:
        """`launches_cost`: as on a GPU, a launch less is worth a merge of kernels that share a number alone."""
        super().__init__(clusters, externs)
        self.builder, self.prices = builder, builder.prices
        self._launches_cost = launches_cost
        self.refusals: dict[tuple[Node, Node], Refusal] = {}
        self._hopeless: set[tuple[Cluster, Cluster]] = set()
        """Pairs that were tried: while both are there and only merges happen, nothing that refused them changes."""
        self._queue: list[tuple[float, int, int, Cluster, Cluster]] = []
        self._count = 0
        self.trials = 0

    def total(self) -> float:
        """Weighted bytes that all kernels move."""
        return sum(c.traffic for c in self.alive)

    # ---- candidates

    def run(self) -> None:
        """Merge until no pair is left to try."""
        self._hopeless.clear()
        for cluster in list(self.alive):
            self._push_neighbours(cluster, both=False)
        while self._queue:
            saving, _, _, first, second = heapq.heappop(self._queue)
            if first in self.alive and second in self.alive:
                merged = self.attempt(first, second)
                if merged is not None:
                    self.replace((first, second), (merged,))
                elif -saving >= WORTH_MORE * self.prices.launch_bytes:
                    merged = self._along(first, second)
                if merged is not None:
                    self._push_neighbours(merged, both=True)

    def _push_neighbours(self, cluster: Cluster, *, both: bool) -> None:
        savings: dict[Cluster, float] = {}
        for other, saved in self._neighbours(cluster, both=both):
            savings[other] = savings.get(other, 0.0) + saved
        for other, saved in savings.items():
            first, second = (cluster, other) if cluster.last <= other.last else (other, cluster)
            self._count += 1
            entry = (-saved, abs(other.last - cluster.last), self._count, first, second)
            heapq.heappush(self._queue, entry)

    def _neighbours(self, cluster: Cluster, *, both: bool) -> Iterator[tuple[Cluster, float]]:
        """Producers of what it reads, (consumers of what it writes,) and who reads the same just before and after."""
        alike: dict[Cluster, Cluster | None] = {}
        for value in cluster.reads:
            producer = self.home.get(value)
            if isinstance(producer, Cluster) and value.maker.kind is not Kind.PARTIAL:
                alone = not self.is_read(value, (cluster,))
                yield producer, value.nbytes * (2.0 if alone else 1.0)
            if value.shape == () and cluster.sizes and not self._launches_cost:
                continue  # apart, kernels that differ in their sizes alone can be one code
            yield from self._siblings(cluster, value)
            if isinstance(producer, Cluster):
                if producer not in alike:
                    alike[producer] = self._alike(cluster, producer)
                if (other := alike[producer]) is not None:
                    yield other, float(self.prices.launch_bytes)
        if both:
            for value in cluster.writes:
                complete = value.maker.kind is not Kind.PARTIAL
                for reader in self.readers.get(value, ()) if complete else ():
                    if isinstance(reader, Cluster):
                        alone = not self.is_read(value, (reader,))
                        yield reader, value.nbytes * (2.0 if alone else 1.0)

    def _siblings(self, cluster: Cluster, value: Value) -> Iterator[tuple[Cluster, float]]:
        """Who reads the same just before and after, not at places that data tell: that is a part of it."""
        if value not in cluster.walked:
            return
        line = self._in_line[value]
        at = bisect_left(line, (cluster.last,))
        for k in range(at - 1, -1, -1):
            if value in line[k][1].walked:
                yield line[k][1], float(value.nbytes)
                break
        for k in range(at, len(line)):
            other = line[k][1]
            if other is not cluster and value in other.walked:
                yield other, float(value.nbytes)
                break

    def _alike(self, cluster: Cluster, producer: Cluster) -> Cluster | None:
        """The next kernel over an equal space that reads something else of the same producer: a launch less."""
        best: tuple[int, Cluster] | None = None
        for value in producer.writes:
            line = self._in_line.get(value, [])
            for k in range(bisect_left(line, (cluster.last + 1,)), len(line)):
                if best is not None and line[k][0] >= best[0]:
                    break
                if line[k][1].sizes == cluster.sizes:
                    best = line[k]
                    break
        return None if best is None else best[1]

    # ---- one pair

    def attempt(self, first: Cluster, second: Cluster) -> Cluster | None:
        """Give the kernel of both where there is one and it moves less; else note why not."""
        if (first, second) in self._hopeless:
            return None
        self.trials += 1
        try:
            merged = self._merge(first, second)
        except Refused as refused:
            self._refuse(first, second, refused.reason)
            return None
        saved = first.traffic + second.traffic - merged.traffic
        if first.sizes == second.sizes == merged.sizes:
            saved += self.prices.launch_bytes
        if saved <= 0:
            self._refuse(first, second, "together they would move more bytes")
            return None
        return merged

    def _along(self, first: Cluster, second: Cluster) -> Cluster | None:
        """Merge two kernels and those between them, which alone would save little: all of them, or nothing."""
        between = self.between(first, second)
        if not between:
            return None
        done: list[tuple[tuple[Cluster, Cluster], Cluster]] = []
        current = first
        for step in (*between, second):
            merged = self.attempt(current, step)
            if merged is None:
                for pair, made in reversed(done):
                    self.replace((made,), pair)
                return None
            self.replace((current, step), (merged,))
            done.append(((current, step), merged))
            current = merged
        return current

    def _merge(self, first: Cluster, second: Cluster) -> Cluster:
        largest = LARGEST_ON_GPU if self._launches_cost else LARGEST_KERNEL
        if len(first.frames) + len(second.frames) > largest:
            raise Refused(f"the kernel would have more than {largest} reductions and buffers")
        if self._launches_cost:
            _require_few_streams(first, second)
        pieces = {n.piece for c in (first, second) for n in c.frames}
        if len(pieces) > 1:
            raise Refused("they belong to pieces of a computation that are done one after the other")
        if self.waits(second, first) or self.waits(first, second):
            raise Refused(BETWEEN)
        both = (first, second)
        sizes, frames = align((first.sizes, dict(first.frames)), (second.sizes, dict(second.frames)), links(*both))
        merged = self.builder.build(sizes, frames, lambda v: self.is_read(v, both))
        fewest = min(point_count(c.draft, c.parallel) for c in both)
        if point_count(merged.draft, merged.parallel) < min(fewest, FEWEST_POINTS):
            raise Refused("too few points would be left to share between threads")
        least = min(both, key=lambda c: c.traffic)
        shares = partial(_shares, prices=self.prices)
        if least.traffic < self.prices.launch_bytes and shares(merged) == 1 < max(map(shares, both)):
            raise Refused("a few numbers would keep a large kernel from being shared between threads")
        return merged

    def _refuse(self, first: Cluster, second: Cluster, reason: str) -> None:
        self._hopeless.add((first, second))
        a, b = _last_node(first), _last_node(second)
        self.refusals[a, b] = Refusal(a, b, reason)


def _require_few_streams(first: Cluster, second: Cluster) -> None:
    if min(first.traffic, second.traffic) <= LARGE:
        return
    reads = [v for c in (first, second) for v in c.reads if v.shape != ()]
    touched = {*reads, *first.writes, *second.writes}
    if len(touched) < len(reads) + len(first.writes) + len(second.writes):
        return  # they have more in common
    if first.sizes != second.sizes or len(reads) > MOST_STREAMS:
        raise Refused("they share numbers alone, and would read and write many tensors at once")


def _shares(cluster: Cluster, prices: Prices) -> int:
    """So many threads can share its work."""
    return cost.partitions(point_count(cluster.draft, cluster.parallel), int(cluster.traffic), prices)


def _last_node(cluster: Cluster) -> Node:
    return max(cluster.frames, key=lambda n: n.number)
