"""What gradients of tensors reach: along torch's tape, and past it where a tensor was made again without its calls."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Edge = tuple[Any, int]
"""A node of the tape, and which of its results."""


@dataclass(frozen=True)
class Reached:
    """What gradients of some tensors arrive at."""

    edges: set[Edge] = field(default_factory=set[Edge])
    leaves: set[int] = field(default_factory=set[int])
    """Leaves of the tape, by their ids."""

    def holds(self, tensor: Tensor) -> bool:
        """Tell whether a gradient by the tensor is reached; RuntimeError for one that requires none."""
        if tensor.is_leaf and tensor.requires_grad:
            return id(tensor) in self.leaves
        return edge_of(tensor) in self.edges


class History:
    """Of one trace. A tensor that is made again is a leaf of the tape; what it was computed from is noted here."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def note(self, tensor: Tensor, sources: Sequence[Tensor]) -> None:
        """Remember that a tensor was made again, and which tensors gradients by it go on to."""
        self._sources[id(tensor)] = tensor, tuple(sources)

    def is_remade(self, tensor: object) -> bool:
        """Tell whether the tape is wrong about a tensor."""
        return id(tensor) in self._sources

    def reached(self, outputs: Sequence[Tensor], until: Sequence[Tensor] = ()) -> Reached:
        """Give what gradients of the outputs reach; they go no further than to `until`."""
        found = Reached()
        last = {edge_of(t) for t in until if not t.is_leaf}
        last_leaves = {id(t) for t in until}
        tensors, edges = list(outputs), list[Edge]()
        while tensors or edges:
            while tensors:
                tensor = tensors.pop()
                if not tensor.requires_grad:
                    continue
                if not tensor.is_leaf:
                    edges.append(edge_of(tensor))
                elif id(tensor) not in found.leaves:
                    found.leaves.add(id(tensor))
                    if id(tensor) not in last_leaves:
                        tensors.extend(self._sources.get(id(tensor), (tensor, ()))[1])
            if not edges or (edge := edges.pop()) in found.edges:
                continue
            found.edges.add(edge)
            if edge[0].name() == _LEAF:
                tensors.append(edge[0].variable)
            elif edge not in last:
                edges.extend((node, k) for node, k in edge[0].next_functions if node is not None)
        return found


_LEAF = "torch::autograd::AccumulateGrad"


def edge_of(tensor: Tensor) -> Edge:
    """Give where the gradient by a tensor arrives; RuntimeError for one that requires none."""
    found = torch.autograd.graph.get_gradient_edge(tensor)
    return found.node, found.output_nr
