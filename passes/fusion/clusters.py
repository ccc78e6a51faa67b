"""Clusters: the nodes that become one kernel, with their frames in its space."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Self, TypeVar, cast

from isthmus.dialects.kernel import Expr, dim, is_nonnegative
from isthmus.passes.analysis.access import Index
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.fusion.alike import Structures
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.fusion.emit import Strides, accesses, linear_index
from isthmus.passes.fusion.graph import Kind, Node, Value
from isthmus.passes.fusion.instructions import Refused
from isthmus.passes.fusion.space import natural_space, parallel_dims
from isthmus.passes.fusion.traffic import traffic
from isthmus.sizes import Dim, exact_quotient

MOST_SPLITS = 8


@dataclass(eq=False)
class Cluster:
    """Nodes of one kernel, the sizes of its space and each node's frame; built into a draft at once."""

    sizes: tuple[Dim, ...]
    frames: Mapping[Node, Index]
    draft: Draft
    parallel: int
    traffic: float
    model: Cluster | None = None
    """The kernel of other nodes that it was copied from: the draft is that one's."""
    names: Mapping[Value, Value] = field(default_factory=dict[Value, Value])
    """What stands for the values of the draft."""

    def of(self, frames: Iterable[Node], names: Mapping[Value, Value]) -> Self:
        """Give the kernel of other nodes that look the same; `names`: what stands for each value of these."""
        own = dict(zip(frames, self.frames.values(), strict=True))
        return replace(self, frames=own, model=self, names=names)

    def own(self, value: Value) -> Value:
        """Give what a value of the draft is here."""
        return self.names.get(value, value)

    def _named(self, found: dict[Value, Index]) -> dict[Value, Index]:
        return {self.names[value]: index for value, index in found.items()}

    @cached_property
    def last(self) -> int:
        """Number of its last node."""
        return max(n.number for n in self.frames)

    @cached_property
    def reads(self) -> dict[Value, Index]:
        """Buffers that it reads, and where it first does."""
        if self.model is not None:
            return self._named(self.model.reads)
        found: dict[Value, Index] = {}
        for instr in self.draft.loads():
            value, index, _ = cast("tuple[Value, Index, bool]", instr.data)
            found.setdefault(value, index)
        for sink in self.draft.sinks:
            if sink.kind == "scatter":
                found.setdefault(sink.value.maker.operands[0], sink.index)
        return found

    @cached_property
    def walked(self) -> frozenset[Value]:
        """Of the buffers that it reads, those that it first reads at places which data do not tell."""
        return frozenset([value for value, index in self.reads.items() if not any([e.values() for e in index])])

    @cached_property
    def writes(self) -> dict[Value, Index]:
        """Buffers that it writes, and where."""
        if self.model is not None:
            return self._named(self.model.writes)
        return {s.value: s.index for s in self.draft.sinks}

    @cached_property
    def makes(self) -> dict[Value, Index]:
        """Values that its nodes make, and where, written or not."""
        return self.draft.anchors if self.model is None else self._named(self.draft.anchors)


ClusterT = TypeVar("ClusterT", bound=Cluster)


class Builder:
    """Builds the kernels of one block; those of nodes that look like others are copied."""

    def __init__(self, strides: Strides, prices: Prices) -> None:
        self.strides, self.prices = strides, prices
        self._structures = Structures()
        self._built: dict[Hashable, tuple[Cluster | Refused, tuple[Value, ...]]] = {}

    def once(
        self,
        sizes: tuple[Dim, ...],
        frames: Mapping[Node, Index],
        stored: Callable[[Value], bool],
        make: Callable[[], ClusterT],
    ) -> ClusterT:
        """Give what `make` gives, or raises, of these nodes; it is called for the first that look like them."""
        structure = self._structures.of(frames, stored)
        if structure is None:
            return make()
        key = (sizes, structure.key)
        if (known := self._built.get(key)) is not None:
            found, values = known
            names = dict(zip(values, structure.values, strict=True))
            if isinstance(found, Refused):
                raise found.of(names)
            return cast("ClusterT", found).of(frames, names)
        try:
            made = make()
        except Refused as refused:
            self._built[key] = refused, structure.values
            raise
        self._built[key] = made, structure.values
        return made

    def build(self, sizes: tuple[Dim, ...], frames: Mapping[Node, Index], stored: Callable[[Value], bool]) -> Cluster:
        """Try nodes as one kernel; Refused where they are none."""
        return self.once(sizes, frames, stored, lambda: _built(sizes, frames, stored, self.strides, self.prices))

    def single(self, node: Node, stored: Callable[[Value], bool]) -> Cluster:
        """Give the kernel of one node; every node is one."""
        sizes, frame = natural_space(node)
        return self.build(sizes, {node: frame}, stored)


def _built(
    sizes: tuple[Dim, ...],
    frames: Mapping[Node, Index],
    stored: Callable[[Value], bool],
    strides: Strides,
    prices: Prices,
) -> Cluster:
    """Build a kernel of nodes.

    A dim that is read through a quotient or remainder is split, so that the read is affine.
    """
    draft = Draft(sizes, frames, stored)
    for _ in range(MOST_SPLITS):
        split = _wanted_split(draft, strides, _walked_in_order(frames))
        if split is None:
            break
        sizes, new = _split(sizes, *split)
        frames = {n: tuple(e.substitute(new) for e in frame) for n, frame in frames.items()}
        draft = Draft(sizes, frames, stored)
    parallel = parallel_dims(draft, frames)
    return Cluster(sizes, frames, draft, parallel, traffic(draft, parallel, strides, prices))


def _walked_in_order(frames: Mapping[Node, Index]) -> frozenset[int]:
    """Dims of running combinations, which stay whole."""
    walked = [f[d].dims() for n, f in frames.items() if n.kind is Kind.CUMULATIVE for d in n.reduced]
    return frozenset[int]().union(*walked)


def _wanted_split(draft: Draft, strides: Strides, whole: frozenset[int]) -> tuple[int, Dim] | None:
    """A dim and the size of its inner part."""
    for value, index in accesses(draft):
        if is_affine(index):
            continue
        for (kind, inner, by), _ in linear_index(value, index, strides).terms:
            if kind in ("div", "mod"):
                found = _digit(draft, cast(Expr, inner), by)
                if found is not None and found[0] not in whole:
                    return found
    return None


@cache
def is_affine(index: Index) -> bool:
    """Tell whether there are no quotients and no remainders in an index."""
    return all(e.is_affine() for e in index)


def _digit(draft: Draft, inner: Expr, by: Dim) -> tuple[int, Dim] | None:
    for (kind, d, _), coefficient in inner.terms:
        if kind != "d" or not is_nonnegative(coefficient):
            continue
        part = exact_quotient(by, coefficient)
        size = draft.sizes[cast(int, d)]
        if part is not None and part != 1 and part != size and exact_quotient(size, part) is not None:
            return cast(int, d), part
    return None


def _split(sizes: tuple[Dim, ...], d: int, part: Dim) -> tuple[tuple[Dim, ...], list[Expr]]:
    outer = exact_quotient(sizes[d], part)
    assert outer is not None
    new = [dim(k if k <= d else k + 1) for k in range(len(sizes))]
    new[d] = dim(d) * part + dim(d + 1)
    return (*sizes[:d], outer, part, *sizes[d + 1 :]), new
