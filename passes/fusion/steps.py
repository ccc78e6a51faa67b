"""The steps of a program on its way to kernels: who makes and reads which buffers, who waits for whom."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable

from isthmus.passes.fusion.clusters import Cluster
from isthmus.passes.fusion.graph import Node, Value

Unit = Cluster | Node
"""A step of the program: a kernel or a library call."""

MOST_BETWEEN = 4
"""Kernels that a merge takes along at most because they lie between."""


class Steps:
    """Kernels, one in place of others now and then, and library calls."""

    def __init__(self, clusters: Iterable[Cluster], externs: dict[Node, list[Value]]) -> None:
        self.externs = externs
        self._ends: dict[Node, int] = {}
        self._absorbed: dict[Node, list[Value]] = {}
        self._depth: dict[Unit, int] = {}
        self.home: dict[Value, Unit] = {}
        self.readers: dict[Value, list[Unit]] = {}
        self._in_line: dict[Value, list[tuple[int, Cluster]]] = {}
        """The kernels among the readers of a value, by the number of their last node."""
        self.alive: dict[Cluster, None] = {}
        for node, values in externs.items():
            self.home.update((v, node) for v in node.results)
            for value in values:
                self.readers.setdefault(value, []).append(node)
        for node in externs:
            self._deepen(node)
        for cluster in clusters:
            self._enter(cluster)

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

    # ---- who waits for whom

    def between(self, first: Cluster, second: Cluster) -> list[Cluster]:
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
