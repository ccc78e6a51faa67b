"""Spaces: which dims of a kernel are parallel, and how the spaces of two kernels become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from isthmus.dialects.kernel import Expr, constant, dim
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.draft import Draft, Refused, anchors, mask
from isthmus.passes.fusion.graph import Kind, Node, Value, kept
from isthmus.sizes import Dim


def natural_space(node: Node) -> tuple[tuple[Dim, ...], Index]:
    """Give the space and the frame of a node on its own: one dim for each size that is not 1."""
    extents = _extents(node)
    sizes: list[Dim] = []
    frame: list[Expr] = []
    for extent in extents:
        if extent == 1:
            frame.append(constant(0))
        else:
            frame.append(dim(len(sizes)))
            sizes.append(extent)
    return tuple(sizes), tuple(frame)


def _extents(node: Node) -> tuple[Dim, ...]:
    if node.kind in (Kind.REDUCE, Kind.PARTIAL):
        return node.operands[0].shape
    if node.kind is Kind.SCATTER:
        return node.operands[1].shape
    if node.kind is Kind.WINDOW:
        window = cast("tuple[int, ...]", node.op.properties["window"].data)  # pyright: ignore
        return (*node.value.shape, *window)
    return node.value.shape


def parallel_dims(draft: Draft, frames: Mapping[Node, Index]) -> int:
    """Choose the parallel dims of a kernel, as bits: what each of its nodes allows; Refused where they disagree.

    A reduction over rows keeps exactly the parallel dims. Partial results are sums over all parallel dims, at places
    that row dims name. A stored value is written at least once in each parallel point, hence at no more than one.
    """
    everything = (1 << len(draft.sizes)) - 1
    exact: int | None = None
    most = everything
    columns = 0
    stored = {sink.value for sink in draft.sinks}
    for node, frame in frames.items():
        if node.kind is Kind.PARTIAL:
            columns |= _bits(frame[d] for d in kept(node))
            _require_whole(node, frame, everything)
            continue
        walked = _walked(node, frame)
        if walked:
            if exact is not None and exact != everything & ~walked:
                raise Refused("its reductions leave different dims")
            exact = everything & ~walked
        if node.kind is not Kind.INLINE or node.value in stored:
            most &= _bits(index for _, at in anchors(node, frame)[:1] for index in at) if not walked else everything
    chosen = most & ~columns if exact is None else exact
    if chosen & columns:
        raise Refused("a reduction over points and one over rows want different dims in parallel")
    if chosen & ~most:
        raise Refused("a value would be stored by more than one point")
    for node, frame in frames.items():
        if node.kind is Kind.SCATTER or (node.kind is not Kind.INLINE and node.kind is not Kind.PARTIAL):
            own = _bits(e for _, at in anchors(node, frame)[:1] for e in at)
            if node.kind is not Kind.SCATTER and chosen & ~own:
                raise Refused("a reduction would be computed by more than one point")
    return chosen


def _require_whole(node: Node, frame: Index, everything: int) -> None:
    if _bits(frame) != everything:
        raise Refused("a sum over points would add values more than once")


def _walked(node: Node, frame: Index) -> int:
    """The dims that a node needs as row dims."""
    if node.kind in (Kind.REDUCE, Kind.CUMULATIVE):
        return _bits(frame[d] for d in node.reduced)
    if node.kind is Kind.WINDOW:
        return _bits(frame[len(node.value.shape) :])
    if node.kind is Kind.SCATTER:
        return _bits(frame[: len(node.operands[2].shape)])
    return 0


def _bits(exprs: object) -> int:
    found = frozenset[int]()
    for expr in cast("tuple[Expr, ...]", exprs):
        found |= expr.dims()
    return mask(found)


__all__ = ["Value", "natural_space", "parallel_dims"]
