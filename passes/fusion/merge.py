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

LARGEST_KERNEL, LARGEST_ON_GPU = 64, 24
"""Nodes with a buffer or a reduction in one kernel; ptxas takes seconds for many."""

LARGE, MOST_STREAMS = 8 << 20, 8
"""On a GPU, kernels that move more bytes than this and share numbers alone become one up to so many tensors read: of
four times as many a third of the rate was lost, measured, for launches that cost next to nothing."""

FEWEST_POINTS = 8
"""A merge that leaves fewer parallel points than this, where there were more, is refused."""

BETWEEN = "another step lies between them"
MOST_BETWEEN = 4
"""Kernels that a merge takes along at most because they lie between."""

WORTH_MORE = 8
"""A merge that saves so many launches takes along what lies between."""

Unit = Cluster | Node
"""A step of the program: a kernel or a library call."""


@dataclass(frozen=True)
class Refusal:
    """A pair of nodes whose kernels did not become one, and why."""

    first: Node
    second: Node
    reason: str


class Merger:
    """Kernels of a program while they grow."""

    def __init__(
        self,
        clusters: Iterable[Cluster],
        externs: dict[Node, list[Value]],
        builder: Builder,
        launches_cost: bool = True,
    ) -> None:
        """`launches_cost`: as on a GPU, a launch less is worth a merge of kernels that share a number alone."""
        self.builder, self.prices = builder, builder.prices
        self._launches_cost = launches_cost
        self.externs = externs
        self._ends: dict[Node, int] = {}
        self._absorbed: dict[Node, list[Value]] = {}
        self._depth: dict[Unit, int] = {}
        self.home: dict[Value, Unit] = {}
        self.readers: dict[Value, list[Unit]] = {}
        self._in_line: dict[Value, list[tuple[int, Cluster]]] = {}
        """The kernels among the readers of a value, by the number of their last node."""
        self.alive: dict[Cluster, None] = {}
        self.refusals: dict[tuple[Node, Node], Refusal] = {}
        self._hopeless: set[tuple[Cluster, Cluster]] = set()
        """Pairs that were tried: while both are there and only merges happen, nothing that refused them changes."""
        self._queue: list[tuple[float, int, int, Cluster, Cluster]] = []
        self._count = 0
        self.trials = 0
        for node, values in externs.items():
            self.home.update((v, node) for v in node.results)
            for value in values:
                self.readers.setdefault(value, []).append(node)
        for node in externs:
            self._deepen(node)
        for cluster in clusters:
            self._enter(cluster)

    # ---- the program as it is

    def _enter(self, cluster: Cluster) -> None:
        self.alive[cluster] = None
        for node in cluster.frames:
            for value in node.results:
                self.home[value] = cluster
        entry = (cluster.last, cluster)
        for value in cluster.reads:
            self.readers.setdefault(value, []).append(cluster)
            line = self._in_line.setdefault(value, [])
            line.insert(bisect_left(line, entry[:1]), entry)
        self._deepen(cluster)

    def _leave(self, cluster: Cluster) -> None:
        del self.alive[cluster]
        self._depth.pop(cluster, None)
        entry = (cluster.last, cluster)
        for value in cluster.reads:
            self.readers[value].remove(cluster)
            self._in_line[value].remove(entry)

    def replace(self, old: Iterable[Cluster], new: Iterable[Cluster]) -> None:
        """Put kernels in the place of others."""
        for cluster in old:
            self._leave(cluster)
        for cluster in new:
            self._enter(cluster)

    def release(self, extern: Node) -> None:
        """Forget a library call: a kernel takes its place."""
        for value in self.externs.pop(extern):
            self.readers[value].remove(extern)
        self._depth.pop(extern, None)

    def absorb(self, cluster: Cluster, extern: Node, value: Value) -> None:
        """Let a library call do what a kernel does; it then reads `value` too."""
        self._leave(cluster)
        for node in cluster.frames:
            self.home.update((v, extern) for v in node.results)
            self._absorbed.setdefault(extern, []).extend(node.results)
        self._ends[extern] = max(self.last(extern), cluster.last)
        self.externs[extern].append(value)
        self.readers.setdefault(value, []).append(extern)
        self._deepen(extern)

    def is_read(self, value: Value, inside: tuple[Unit, ...] = ()) -> bool:
        """Whether anything but these units reads the buffer of a value."""
        return value.required or any([u not in inside for u in self.readers.get(value, ())])

    def in_order(self) -> list[Unit]:
        """Give all steps, each after what it reads; of those that could come next, the one that ends first."""
        units: list[Unit] = [*self.alive, *self.externs]
        waiting: dict[Unit, int] = {}
        users: dict[Unit, list[Unit]] = {}
        for unit in units:
            before = {self.home[v] for v in self._reads(unit) if v in self.home} - {unit}
            waiting[unit] = len(before)
            for other in before:
                users.setdefault(other, []).append(unit)
        ready = [(self.last(u), k, u) for k, u in enumerate(units) if not waiting[u]]
        heapq.heapify(ready)
        ordered: list[Unit] = []
        while ready:
            _, _, unit = heapq.heappop(ready)
            ordered.append(unit)
            for user in users.get(unit, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (self.last(user), len(units) + len(ordered) * len(units) + len(ready), user))
        assert len(ordered) == len(units), "kernels wait for each other"
        return ordered

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
        between = self._between(first, second)
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

    def _between(self, first: Cluster, second: Cluster) -> list[Cluster]:
        """The kernels that need `first` and that `second` needs, in order; none where many or a library call are."""
        found: dict[Cluster, None] = {}
        free: set[Unit] = set()
        stack: list[Cluster] = [second]
        while stack:
            later = stack.pop()
            for unit in {self.home[v] for v in later.reads if v in self.home} - {first, later}:
                if unit in found or not self._needs(unit, first, free):
                    continue
                if not isinstance(unit, Cluster) or len(found) == MOST_BETWEEN:
                    return []
                found[unit] = None
                stack.append(unit)
        return sorted(found, key=lambda c: c.last)

    def _needs(self, later: Unit, earlier: Cluster, free: set[Unit]) -> bool:
        """Whether a step reads what `earlier` writes, itself or through others; `free`: steps known not to."""
        if later in free:
            return False
        if any([self.home.get(v) is earlier for v in self._reads(later)]) or self.waits(later, earlier, free):
            return True
        free.add(later)
        return False

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

    def waits(self, later: Unit, earlier: Unit, free: set[Unit] | None = None) -> bool:
        """Whether `later` needs a kernel or a library call through some third step.

        `free`: steps known not to need it at all; those that are found to be so are added.
        """
        bound = earlier.last if isinstance(earlier, Cluster) else earlier.number
        home, depth = self.home, self._depth
        if depth.get(later, bound) < bound:
            return False
        seen: set[Unit] = {later} if free is None else {later, *free}
        stack: list[Unit] = []
        for value in self._reads(later):
            unit = home.get(value)
            if unit is not None and unit is not earlier and unit not in seen:
                seen.add(unit)
                stack.append(unit)
        while stack:
            unit = stack.pop()
            if depth[unit] < bound:
                continue
            for value in self._reads(unit):
                before = home.get(value)
                if before is earlier:
                    return True
                if before is not None and before not in seen:
                    seen.add(before)
                    stack.append(before)
        if free is not None:
            free |= seen - {later}
        return False

    def _deepen(self, unit: Unit) -> None:
        """Note the largest node number that a step waits for, its own included, and tell those who wait for it.

        A kernel of nodes far apart makes everything after it wait for the last of them, so numbers alone do not tell
        what lies before what.
        """
        before = (self._depth.get(self.home[v], 0) for v in self._reads(unit) if v in self.home)
        pending = [(unit, max(self.last(unit), *before, 0))]
        while pending:
            step, depth = pending.pop()
            if self._depth.get(step, -1) < depth:
                self._depth[step] = depth
                pending += [(user, depth) for v in self._writes(step) for user in self.readers.get(v, ())]

    def _writes(self, unit: Unit) -> Iterable[Value]:
        return unit.writes if isinstance(unit, Cluster) else (*unit.results, *self._absorbed.get(unit, ()))

    def last(self, unit: Unit) -> int:
        """The number of the last node that a step computes."""
        return unit.last if isinstance(unit, Cluster) else self._ends.get(unit, unit.number)

    def _reads(self, unit: Unit) -> Iterable[Value]:
        return unit.reads if isinstance(unit, Cluster) else self.externs.get(unit, ())


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
