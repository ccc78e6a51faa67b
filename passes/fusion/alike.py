"""Equal kernels are built once: what nodes and all that they compute look like, apart from which nodes they are.

A layer that is like one before it asks for the same kernels, of other nodes. Whether nodes fit into one kernel, and
what that looks like, follows from the sizes of its space, the nodes' frames and order, what is stored, and the
primitives that are computed from the buffers on: their kinds, attributes and types, and how they are connected.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.graph import ANCHORED, Kind, Node, Value


@dataclass(frozen=True, slots=True)
class Structure:
    """What some nodes look like: equal keys are equal structures, whose `values` correspond one by one."""

    key: tuple[Hashable, ...]
    values: tuple[Value, ...]


class Structures:
    """The structures of one block. Operands and strides must not change from the first question on.

    Which values have a buffer and which products are kernels may change: both are asked anew.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._nodes: dict[Node, int | None] = {}
        self._leaves: dict[Value, int] = {}

    def of(self, frames: Mapping[Node, Index], stored: Callable[[Value], bool]) -> Structure | None:
        """Give the structure of nodes and of what they compute; None where something may be told by its op alone."""
        found: dict[Value, None] = {}
        key: list[Hashable] = []
        if len(frames) > 1:
            numbers = [node.number for node in frames]
            key += sorted(range(len(numbers)), key=numbers.__getitem__)
        for node, frame in frames.items():
            key += (self._node(node), node.kind is Kind.CONTRACT, frame)
            for value in node.results:
                found[value] = None
                key.append(stored(value))
        places = {value: place for place, value in enumerate(found)}
        pending = list(frames)
        for node in pending:
            for value in node.operands:
                place = places.get(value)
                if place is None:
                    places[value] = len(places)
                    maker = value.maker
                    if value.root or maker.kind in ANCHORED:
                        place = self._leaf(value)
                    else:
                        place = self._node(maker)
                        pending.append(maker)
                key.append(place)
        return None if None in key else Structure(tuple(key), tuple(places))

    def _node(self, node: Node) -> int | None:
        """The number of all nodes that compute the same of operands of these types."""
        if node not in self._nodes:
            told = node.op is None or node.identity is not None
            kind = Kind.EXTERN if node.kind is Kind.CONTRACT else node.kind
            facts = (kind, node.identity, node.form, node.reduced, node.along, node.cost)
            types = tuple([(v.shape, v.dtype) for v in node.operands])
            results = tuple([(v.shape, v.dtype, v.strides) for v in node.results])
            self._nodes[node] = self._number((facts, types, results)) if told else None
        return self._nodes[node]

    def _leaf(self, value: Value) -> int:
        """The number of all buffers that look like this one."""
        if value not in self._leaves:
            self._leaves[value] = self._number((value.shape, value.dtype, value.strides))
        return self._leaves[value]

    def _number(self, facts: Hashable) -> int:
        """Below 0, as places in an order are not."""
        return self._numbers.setdefault(facts, -1 - len(self._numbers))
