"""What a product costs as a kernel of ours that a call of the library does not, in bytes moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import cast

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel.lanes import Steps
from isthmus.dialects.prim.base import ints
from isthmus.ir import Shape
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.analysis.prices import CPU, Prices
from isthmus.passes.analysis.products import Product, Side
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.fusion.emit import Strides, linear_index
from isthmus.passes.fusion.graph import Node, Value
from isthmus.passes.fusion.instructions import Instr, Refused
from isthmus.passes.fusion.traffic import points, work

LEAST = 16
"""Rows, columns and terms below which the library multiplies, and where it is not known how many rows or columns."""

TILE, DOTS = (6, 16), (3, 4)
"""Rows and columns of tiles that costs are compared for, on whatever machine the kernels run."""

LANES = 16
"""Of the widest vectors: heads that are no multiple of it are read one by one."""


CONTRACTIONS = ("library", "large", "own", "joined", "auto")
"""The words that `Policy.of` reads."""


@dataclass(frozen=True)
class Policy:
    """Which products a kernel of ours may make."""

    least: int = 0
    """Those of at least so many multiplications."""
    weighs: bool = False
    """Whether what small kernels lose against the library counts against them."""
    alone: bool = False
    """Whether those with nothing around them are taken where a kernel of ours is faster."""
    half: bool = True
    """Whether those of 16 bits are taken."""
    tf32: bool = False
    """Whether a GPU may multiply f32 in TF32."""
    prices: Prices = CPU

    @staticmethod
    def of(contractions: str, target: str = "cpu", *, half: bool = True, prices: Prices = CPU) -> Policy | None:
        """Give what the options of `fuse` stand for; None: every product is the library's."""
        found = Policy._named(contractions, target, prices.large_product)
        return replace(found, half=half, prices=prices) if found is not None else None

    @staticmethod
    def _named(contractions: str, target: str, large: int) -> Policy | None:
        joined, alone = Policy(weighs=True), Policy(weighs=True, alone=True)
        auto = alone if target == "cpu" else None  # on a GPU whole steps were measured faster with the library's
        return {"library": None, "large": Policy(large), "own": Policy(), "joined": joined, "auto": auto}[contractions]

    def takes(self, op: prim.DotOp) -> bool:
        """Whether a product may be a kernel's: it is known how many rows and columns, and there are not few of them.

        Where costs are compared, few are a matter of costs.
        """
        m, n, k = _extents(op)
        if ir.is_half(ir.dtype_of(op.y)) and not self.half:
            return False
        known = isinstance(m, int) and isinstance(n, int) and min(m, n, cost.numeric(k)) >= LEAST
        priced = self.weighs and all(isinstance(x, int) and x > 1 for x in (m, n, k))
        return (known or priced) and cost.flops(op) >= 2 * self.least

    def loss(self, node: Node, product: Product | None) -> float:
        """What a product loses by being a kernel of ours, in bytes moved; below 0 it gains."""
        flops = cost.flops(cast(prim.DotOp, node.op))
        if not self.weighs or flops >= 2 * self.prices.large_product:
            return 0.0
        if product is None:
            return self.prices.small_loss * flops / self.prices.flops_per_byte
        form = product.best(TILE, DOTS)
        return (form.cost - product.library) / self.prices.flops_per_byte if form is not None else inf

    def takes_alone(self, node: Node, product: Product | None) -> bool:
        """Whether a product with nothing around it is better made by a kernel of ours."""
        if not self.alone:
            return False
        if cost.flops(cast(prim.DotOp, node.op)) >= 2 * self.prices.large_product:
            return True
        form = product.best(TILE, DOTS) if product is not None else None
        return form is not None and product is not None and form.cost < self.prices.alone_gain * product.library


def _extents(op: prim.DotOp) -> Shape:
    """Rows, columns and terms."""
    a, b = ir.shape_of(op.a), ir.shape_of(op.b)
    batch, contract = ints(op.batch_a.data), ints(op.contract_a.data)
    rows = [s for d, s in enumerate(a) if d not in (*batch, *contract)]
    columns = [s for d, s in enumerate(b) if d not in (*ints(op.batch_b.data), *ints(op.contract_b.data))]
    return tuple(cost.product(tuple(group)) for group in (rows, columns, [a[d] for d in contract]))


def product_of(draft: Draft, classes: Mapping[int, str], strides: Strides, prices: Prices) -> Product | None:
    """Describe a product to the model of costs; None where sizes are not known. `classes`: batch, m, n, k by dim."""
    extent = {c: 1 for c in ("batch", "m", "n", "k")}
    for d, class_ in classes.items():
        size = draft.sizes[d]
        if not isinstance(size, int):
            return None
        extent[class_] *= size
    (dot,) = (i for i in draft.instrs if i.kind == "dot")
    a, b = (_side(factor, own, classes, strides) for factor, own in zip(dot.args, ("m", "n"), strict=True))
    half = ir.is_half(dot.dtype)
    return Product(extent["m"], extent["n"], extent["k"], a, b, extent["batch"], half, prices)


def _side(factor: Instr, own: str, classes: Mapping[int, str], strides: Strides) -> Side:
    """How a factor lies in memory."""
    if factor.kind != "load":
        return Side(True, 0, 0.0)
    value, index, guarded = cast("tuple[Value, Index, bool]", factor.data)
    linear = linear_index(value, index, strides)
    if guarded or not linear.is_affine() or linear.values():
        return Side(True, 0, 0.0)
    steps: dict[str, list[int]] = {own: [], "k": []}
    for d in linear.dims():
        steps.get(classes[d], []).append(abs(cost.numeric(linear.coefficient(d))))
    turned = min(steps["k"], default=1) <= min(steps[own], default=1)
    across = min(steps[own if turned else "k"], default=1)
    near = min(steps["k" if turned else own], default=1) == 1
    lies = near and not ir.is_half(value.dtype)  # half precision is widened while it is packed
    return Side(turned, across * ir.itemsize(value.dtype), None if lies else 0.0)


def dearer(draft: Draft, summed: int, prices: Prices) -> float:
    """What a prologue costs more than the same arithmetic in a kernel; `summed`: the dims of terms."""
    guarded = [i for i in draft.loads() if i.bits & summed and cast("tuple[Value, Index, bool]", i.data)[2]]
    loads = prices.guarded_load * sum(points(draft, i.bits) for i in guarded)
    return prices.prologue_bytes * (work(draft, summed) + loads)


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
