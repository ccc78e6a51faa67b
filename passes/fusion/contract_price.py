"""What a product costs as a kernel of ours that a call of the library does not, in bytes moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel.lanes import Steps
from isthmus.dialects.prim.base import ints
from isthmus.ir import Shape
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.fusion.emit import Strides, linear_index
from isthmus.passes.fusion.graph import Node, Value
from isthmus.passes.fusion.instructions import Refused
from isthmus.passes.fusion.traffic import points, work

LEAST = 16
"""Rows, columns and terms below which the library multiplies, and where it is not known how many rows or columns."""

LARGE = 1 << 24
"""Multiplications from which a kernel of ours multiplies no slower than the library: measured."""

LOSS = 0.05
"""The part of its time that a smaller product loses: more of it is packing."""

FLOPS_PER_BYTE = 5.0
"""Floating-point operations of a product in the time of moving a byte."""

BYTES_PER_ADDITION = 0.6
"""What an addition costs more, in bytes moved, where panels are packed: measured, short vectors wait for each other."""

GUARDED_LOAD = 4.0
"""What an element that is read under a condition costs, in additions."""

LANES = 16
"""Of the widest vectors: heads that are no multiple of it are read one by one."""


@dataclass(frozen=True)
class Policy:
    """Which products a kernel of ours may make."""

    least: int = 0
    """Those of at least so many multiplications."""
    weighs: bool = False
    """Whether what small kernels lose against the library counts against them."""
    alone: bool = False
    """Whether those with nothing around them are taken where a kernel of ours is faster."""

    @staticmethod
    def of(contractions: str, target: str = "cpu") -> Policy | None:
        """Give what the option of `fuse` stands for; None: every product is the library's."""
        joined, alone = Policy(weighs=True), Policy(weighs=True, alone=True)
        auto = alone if target == "cpu" else None  # on a GPU whole steps were measured faster with the library's
        return {"library": None, "large": Policy(LARGE), "own": Policy(), "joined": joined, "auto": auto}[contractions]

    def takes(self, op: prim.DotOp) -> bool:
        """Whether a product may be a kernel's: no few rows, columns or terms, and known how many rows and columns."""
        m, n, k = _extents(op)
        known = isinstance(m, int) and isinstance(n, int) and min(m, n, cost.numeric(k)) >= LEAST
        return known and cost.flops(op) >= 2 * self.least

    def loss(self, node: Node) -> float:
        """What a product loses by being a kernel of ours, in bytes moved."""
        flops = cost.flops(cast(prim.DotOp, node.op))
        return LOSS * flops / FLOPS_PER_BYTE if self.weighs and flops < 2 * LARGE else 0.0

    def takes_alone(self, node: Node) -> bool:
        """Whether a product with nothing around it is better made by a kernel of ours."""
        return self.alone and cost.flops(cast(prim.DotOp, node.op)) >= 2 * LARGE


def _extents(op: prim.DotOp) -> Shape:
    """Rows, columns and terms."""
    a, b = ir.shape_of(op.a), ir.shape_of(op.b)
    batch, contract = ints(op.batch_a.data), ints(op.contract_a.data)
    rows = [s for d, s in enumerate(a) if d not in (*batch, *contract)]
    columns = [s for d, s in enumerate(b) if d not in (*ints(op.batch_b.data), *ints(op.contract_b.data))]
    return tuple(cost.product(tuple(group)) for group in (rows, columns, [a[d] for d in contract]))


def dearer(draft: Draft, summed: int) -> float:
    """What a prologue costs more than the same arithmetic in a kernel; `summed`: the dims of terms."""
    guarded = [i for i in draft.loads() if i.bits & summed and cast("tuple[Value, Index, bool]", i.data)[2]]
    loads = GUARDED_LOAD * sum(points(draft, i.bits) for i in guarded)
    return BYTES_PER_ADDITION * (work(draft, summed) + loads)


def require_vectors(draft: Draft, classes: Mapping[int, str], strides: Strides) -> None:
    """Refused where neighbours of a factor lie apart, so that a panel is gathered; `classes`: batch, m, n, k by dim."""
    for instr in draft.loads():
        value, index, _ = cast("tuple[Value, Index, bool]", instr.data)
        linear = linear_index(value, index, strides)
        found = {classes[d] for d in linear.dims()}
        if "k" not in found or linear.is_affine() or linear.values():
            continue
        near = [d for d in linear.dims() if Steps(d, LANES, aligned=True).of(linear) == 1]
        whole = [d for d in near if classes[d] != "m" or linear.coefficient(d) == 1]  # rows begin anywhere
        if not whole:
            raise Refused("neighbours of a factor lie apart in memory")
