"""Contractions as kernels of our own: what computes a factor moves into the prologue, what reads the product into the
epilogue.

Before:
    %h = kernel.fused %x ... gelu ...                     (4 MB written, only for the call)
    %w = kernel.extern %g, %h {symbol = "prim.dot", ...}
After:
    %w = kernel.contract %g, %x ... gelu in the loads of one factor ...

A contraction that gains neither stays a call of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.kernel import Expr, constant, dim
from isthmus.dialects.prim.base import ints
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.fusion.ability import Ability
from isthmus.passes.fusion.clusters import Builder, Cluster
from isthmus.passes.fusion.contract_price import Policy, require_vectors
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.fusion.emit import Buffers, Layout, Strides, create, emit_body
from isthmus.passes.fusion.graph import Node, Value
from isthmus.passes.fusion.instructions import Instr, Refused, mask
from isthmus.passes.fusion.traffic import traffic
from isthmus.sizes import Dim

IN_PROLOGUE = ("load", "const", "index", "arith", "convert", "select", "cmp", "and")
"""Kinds of instructions that a contraction computes: none that can fail, and no reductions."""


class Panels(Layout):
    """The space of a contraction: batch dims, then one dim each of m, n, k; Refused where some do not join to one."""

    CLASSES = ("batch", "m", "n", "k")

    def _groups(self, order: list[int]) -> list[list[int]]:
        found = super()._groups(order)
        groups = [g for g in found if self._class[g[0]] == "batch"]
        for class_ in self.CLASSES[1:]:
            own = [g for g in found if self._class[g[0]] == class_]
            if len(own) > 1:
                raise Refused(f"its dims of class {class_} are not neighbours in every buffer")
            groups += own or [[]]
        return groups


@dataclass(eq=False)
class Contraction(Cluster):
    """The kernel of one product and of what is computed around it. `inner`: the sizes that are summed over.

    `sizes` and `frames` are of the result's space; the draft has the inner dims after it.
    """

    dot: Node = field(kw_only=True)
    inner: tuple[Dim, ...] = field(kw_only=True)

    def of(self, frames: Iterable[Node], names: Mapping[Value, Value]) -> Self:
        """Give the kernel of another product that looks the same."""
        return replace(super().of(frames, names), dot=names[self.dot.value].maker)


def is_contraction(node: Node, ability: Ability, policy: Policy) -> bool:
    """Whether a library call is a product that a kernel of ours may make too."""
    op = node.op
    return (
        isinstance(op, prim.DotOp)
        and len(node.operands) == 2
        and ir.dtype_of(op.y) in ability.dtypes
        and policy.takes(op)
    )


def plain(node: Node, stored: Callable[[Value], bool], builder: Builder, ability: Ability) -> Contraction:
    """Give the kernel of a product alone; Refused where there is none."""
    sizes: list[Dim] = []
    index: list[Expr] = []
    for size in node.value.shape:
        index.append(constant(0) if size == 1 else dim(len(sizes)))
        if size != 1:
            sizes.append(size)
    return contraction(node, tuple(sizes), {node: tuple(index)}, stored, builder, ability)


def contraction(
    node: Node,
    sizes: tuple[Dim, ...],
    frames: Mapping[Node, Index],
    stored: Callable[[Value], bool],
    builder: Builder,
    ability: Ability,
) -> Contraction:
    """Try a product and what is computed from it, over the space of its result; Refused where that is no kernel."""
    make = partial(_contraction, node, sizes, frames, stored, builder.strides, ability, builder.prices)
    return builder.once(sizes, frames, stored, make)


def _contraction(
    node: Node,
    sizes: tuple[Dim, ...],
    frames: Mapping[Node, Index],
    stored: Callable[[Value], bool],
    strides: Strides,
    ability: Ability,
    prices: Prices,
) -> Contraction:
    if frozenset[int]().union(*(e.dims() for e in frames[node])) != frozenset(range(len(sizes))):
        raise Refused("what reads the product has dims that the product lacks")
    op = cast(prim.DotOp, node.op)
    shape = ir.shape_of(op.a)
    inner = tuple(shape[d] for d in ints(op.contract_a.data))
    within = tuple(dim(len(sizes) + k) for k in range(len(inner)))
    draft = Draft((*sizes, *inner), {**frames, node: (*frames[node], *within)}, stored)
    for instr in draft.instrs:
        if instr.kind not in (*IN_PROLOGUE, "dot") or _can_fail(instr):
            raise Refused(f"a contraction computes no {instr.kind}")
    if any(s.kind == "scatter" for s in draft.sinks):
        raise Refused("a contraction scatters nothing")
    classes = classes_of(node, frames[node], len(inner))
    _require_one_store(draft, classes, frames)
    ability.require(draft, classes, strides)
    require_vectors(draft, classes, strides)
    Panels(draft, classes, strides)
    everything = mask(frozenset(classes))  # panels are packed: no walk is narrow
    parallel = mask(frozenset(d for d, c in classes.items() if c != "k"))
    moved = traffic(draft, everything, strides, prices)
    return Contraction(sizes, frames, draft, parallel, moved, dot=node, inner=inner)


def _can_fail(instr: Instr) -> bool:
    return isinstance(instr.op, (prim.DivOp, prim.RemOp)) and ir.is_integer(instr.dtype)


def _require_one_store(draft: Draft, classes: Mapping[int, str], frames: Mapping[Node, Index]) -> None:
    everywhere = frozenset(d for d, c in classes.items() if c != "k")
    columns = frozenset(d for d, c in classes.items() if c == "n")
    for sink in draft.sinks:
        own = _dims(sink.index)
        if sink.kind == "store" and own != everywhere:
            raise Refused("a value would be made by more than one point")
        if sink.kind == "accumulate" and (
            own != columns or _dims(frames[sink.value.maker]) != everywhere or sink.combine != "add"
        ):
            raise Refused("what is summed over points is the sum of all rows")


def _dims(index: Index) -> frozenset[int]:
    return frozenset[int]().union(*(e.dims() for e in index))


def classes_of(node: Node, index: Index, inner: int) -> dict[int, str]:
    """Give the class of each dim of a contraction's draft: batch, m, n or k."""
    op = cast(prim.DotOp, node.op)
    batch = len(ints(op.batch_a.data))
    rows = len(ir.shape_of(op.a)) - batch - len(ints(op.contract_a.data))
    found: dict[int, str] = {}
    for position, expr in enumerate(index):
        class_ = "batch" if position < batch else "m" if position < batch + rows else "n"
        for d in expr.dims():
            if found.setdefault(d, class_) != class_:
                raise Refused("a dim belongs to rows and columns")
    rank = len(found)
    return {**found, **{rank + k: "k" for k in range(inner)}}


def emit_contraction(own: Contraction, strides: Strides, buffer_of: Buffers) -> kernel.ContractOp:
    """Give the kernel of a contraction; its results are what the draft's sinks write, in order."""
    index = own.frames[own.dot]
    layout = Panels(own.draft, classes_of(own.dot, index, len(own.inner)), strides)
    layout.classes[-3:] = ["m", "n", "k"]
    emitter, properties = emit_body(own.draft, layout, strides, buffer_of)
    properties["cost"] = Literal.of(cost.flops(cast(Operation, own.dot.op)))
    return create(kernel.ContractOp, emitter, properties)
