"""Spaces: which dims of a kernel are parallel, and how the spaces of two kernels become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from isthmus.dialects.kernel import Expr, constant, dim
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.draft import Draft, anchors
from isthmus.passes.fusion.graph import Kind, Node, kept
from isthmus.passes.fusion.instructions import Refused, index_bits
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
    if node.kind in (Kind.REDUCE, Kind.PARTIAL, Kind.PIECES):
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
    that row dims name. What is written is written once: by the points of its own dims.
    """
    everything = (1 << len(draft.sizes)) - 1
    exact: int | None = None
    most, columns = everything, 0
    stored = {sink.value for sink in draft.sinks}
    places: list[int] = []
    for node, frame in frames.items():
        if node.kind is Kind.PARTIAL:
            columns |= index_bits(tuple([frame[d] for d in kept(node)]))
            most &= index_bits(frame)
            places.append(index_bits(frame))
            continue
        walked = _walked(node, frame)
        own = index_bits(anchors(node, frame)[0][1])
        if walked:
            if exact is not None and exact != everything & ~walked:
                raise Refused("its reductions leave different dims")
            exact = everything & ~walked
            if node.kind is Kind.CUMULATIVE and walked.bit_count() > 1:
                raise Refused("a running combination walks one dim only")
            own |= walked if node.kind in (Kind.CUMULATIVE, Kind.SCATTER) else 0
        if node.kind is not Kind.INLINE or node.value in stored:
            most &= own
            places.append(own | walked)
    chosen = most & ~columns if exact is None else exact
    if chosen & columns:
        raise Refused("a reduction over points and one over rows want different dims in parallel")
    if chosen & ~most:
        raise Refused("a value would be made by more than one point")
    rows = everything & ~chosen
    if any(own & rows not in (0, rows) for own in places):
        raise Refused("a value would be made more than once along a row")
    _require_counted(draft, frames, rows)
    if len({s.value.shape[0] for s in draft.sinks if s.kind == "accumulate"}) > 1:
        raise Refused("its sums over points want different numbers of partial results")
    return chosen


def _require_counted(draft: Draft, frames: Mapping[Node, Index], rows: int) -> None:
    """A partial result takes a value that is the same along a row once, which is wrong for sums along that row."""
    for sink in draft.sinks:
        if sink.kind == "accumulate" and sink.combine in ("add", "mul"):
            missing = index_bits(frames[sink.value.maker]) & rows & ~(sink.instr.bits | index_bits(sink.index))
            if missing:
                raise Refused("a value that is the same along a row would be summed once")


def point_count(draft: Draft, parallel: int) -> int:
    """Give the number of parallel points, symbols guessed."""
    points = 1
    for d, size in enumerate(draft.sizes):
        if parallel >> d & 1:
            points *= cost.numeric(size)
    return points


def _walked(node: Node, frame: Index) -> int:
    """The dims that a node needs as row dims."""
    if node.kind in (Kind.REDUCE, Kind.CUMULATIVE):
        return index_bits(tuple([frame[d] for d in node.reduced]))
    if node.kind is Kind.WINDOW:
        return index_bits(frame[len(node.value.shape) :])
    if node.kind is Kind.SCATTER:
        return index_bits(frame[: len(node.operands[2].shape)])
    return 0
