"""Minimum cut of a flow network: numbers in, numbers out, exact integers.

The maximum flow is found by Dinic's algorithm (Soviet Math. Dokl. 11, 1970): rounds of shortest augmenting
paths, here without recursion. Of all minimum cuts the one nearest to the sink is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Capacity = int | None
"""What an edge can carry; None is without bound."""


@dataclass(frozen=True)
class Cut:
    """`value` is the capacity of the cut, `before[n]` tells whether node n lies on the source's side."""

    value: int
    before: Sequence[bool]


class UnboundedCutError(ValueError):
    """No cut exists: `path` leads from source to sink over edges without bound."""

    def __init__(self, path: tuple[int, ...]) -> None:
        super().__init__(f"nodes {' -> '.join(map(str, path))} are joined without bound")
        self.path = path


class FlowNetwork:
    """A directed network; nodes are numbered from 0 in the order of `node()`."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []  # per node the numbers of its edges, reverse ones included
        self._to: list[int] = []  # edge e and its reverse e ^ 1 are neighbours
        self._capacity: list[Capacity] = []

    def node(self) -> int:
        """Add a node and give its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: Capacity) -> None:
        """Add an edge; ValueError for a negative capacity."""
        if capacity is not None and capacity < 0:
            raise ValueError(f"a capacity must not be negative, not {capacity}")
        number = len(self._to)
        self._to += (end, start)
        self._capacity += (capacity, 0)
        self._edges[start].append(number)
        self._edges[end].append(number + 1)

    def minimum_cut(self, source: int, sink: int) -> Cut:
        """Give the minimum cut with the fewest nodes on the sink's side; UnboundedCutError where there is none."""
        if source == sink:
            raise UnboundedCutError((source,))
        self._require_bound(source, sink)
        flow = _Flow(self._edges, self._to, self._bounded())
        value = flow.saturate(source, sink)
        return Cut(value, [not reaches for reaches in flow.reaching(sink)])

    def _bounded(self) -> list[int]:
        """Replace "without bound" by more than all the rest together, which no minimum cut contains."""
        beyond = 1 + sum(c for c in self._capacity if c is not None)
        return [beyond if c is None else c for c in self._capacity]

    def _require_bound(self, source: int, sink: int) -> None:
        came_from = {source: source}
        queue = [source]
        for node in queue:
            for e in self._edges[node]:
                end = self._to[e]
                if self._capacity[e] is None and end not in came_from:
                    came_from[end] = node
                    queue.append(end)
        if sink in came_from:
            path = [sink]
            while path[-1] != source:
                path.append(came_from[path[-1]])
            raise UnboundedCutError(tuple(reversed(path)))


class _Flow:
    """What every edge can still carry."""

    def __init__(self, edges: list[list[int]], to: list[int], residual: list[int]) -> None:
        self.edges = edges
        self.to = to
        self.residual = residual

    def saturate(self, source: int, sink: int) -> int:
        """Send as much as possible from source to sink and give the amount."""
        total = 0
        while (level := self._levels(source, sink)) is not None:
            total += self._blocking_flow(source, sink, level)
        return total

    def reaching(self, sink: int) -> list[bool]:
        """Tell per node whether it could still send anything to the sink."""
        reaches = [False] * len(self.edges)
        reaches[sink] = True
        queue = [sink]
        for node in queue:
            for e in self.edges[node]:
                start = self.to[e]
                if not reaches[start] and self.residual[e ^ 1]:
                    reaches[start] = True
                    queue.append(start)
        return reaches

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Distances to the sink over edges that can carry something; None where the source does not reach it.

        From the sink, so that paths from the source turn into few dead ends.
        """
        edges, to, residual = self.edges, self.to, self.residual
        level = [-1] * len(edges)
        level[sink] = 0
        queue = [sink]
        for node in queue:
            above = level[node] + 1
            for e in edges[node]:
                start = to[e]
                if level[start] < 0 and residual[e ^ 1]:
                    level[start] = above
                    queue.append(start)
            if level[source] >= 0:
                return level
        return None

    def _blocking_flow(self, source: int, sink: int, level: list[int]) -> int:
        """Fill paths along falling levels until each has a full edge."""
        edges, to, residual = self.edges, self.to, self.residual
        tried = [0] * len(edges)  # per node: its edges before this one are of no use in this round
        path: list[int] = []
        total = 0
        node = source
        while True:
            if node == sink:
                total += self._send_along(path)
                first_full = next(at for at, e in enumerate(path) if not residual[e])
                node = to[path[first_full] ^ 1]
                del path[first_full:]
            own, below = edges[node], level[node] - 1
            at = tried[node]
            while at < len(own) and not (residual[own[at]] and level[to[own[at]]] == below):
                at += 1
            tried[node] = at
            if at < len(own):
                path.append(own[at])
                node = to[own[at]]
            elif node == source:
                return total
            else:  # a dead end
                node = to[path.pop() ^ 1]
                tried[node] += 1

    def _send_along(self, path: list[int]) -> int:
        amount = min(self.residual[e] for e in path)
        for e in path:
            self.residual[e] -= amount
            self.residual[e ^ 1] += amount
        return amount
