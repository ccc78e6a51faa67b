"""Clusters: the nodes that become one kernel, with their frames in its space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.fusion.graph import Node, Value
from isthmus.passes.fusion.space import natural_space, parallel_dims
from isthmus.sizes import Dim


@dataclass(eq=False)
class Cluster:
    """Nodes of one kernel, the sizes of its space and each node's frame; built into a draft at once."""

    sizes: tuple[Dim, ...]
    frames: dict[Node, Index]
    draft: Draft
    parallel: int

    @cached_property
    def first(self) -> int:
        """Number of its first node."""
        return min(n.number for n in self.frames)

    @cached_property
    def last(self) -> int:
        """Number of its last node."""
        return max(n.number for n in self.frames)

    @cached_property
    def reads(self) -> frozenset[Value]:
        """Buffers that it reads."""
        found = {i.data[0] for i in self.draft.loads()}  # pyright: ignore[reportIndexIssue]
        found |= {s.value.maker.operands[0] for s in self.draft.sinks if s.kind == "scatter"}
        return frozenset(found)

    @cached_property
    def writes(self) -> tuple[Value, ...]:
        """Buffers that it writes."""
        return tuple(s.value for s in self.draft.sinks)


def build(sizes: tuple[Dim, ...], frames: dict[Node, Index], stored: Callable[[Value], bool]) -> Cluster:
    """Try nodes as one kernel; Refused where they are none."""
    draft = Draft(sizes, frames, stored)
    return Cluster(sizes, frames, draft, parallel_dims(draft, frames))


def single(node: Node, stored: Callable[[Value], bool]) -> Cluster:
    """Give the kernel of one node; every node is one."""
    sizes, frame = natural_space(node)
    return build(sizes, {node: frame}, stored)
