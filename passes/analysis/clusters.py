"""What fusion will keep and what recomputing costs, asked before anything is fused: one linear walk, no kernels built.

Partition asks it of a joint function. The answer is an estimate with fusion's own rules: arithmetic, views and sources
are computed where they are read; reductions, scatters, library calls and values with several dear uses have buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import Prices

INLINE = (
    prim.ElementwiseOp,
    prim.MovementOp,
    prim.SourceOp,
    prim.ConcatOp,
    prim.GatherOp,
    prim.RngOp,
)
"""Classes that a kernel computes at any index that it wants."""

LARGEST_CONE = 100
"""Ops that one value is computed from without a buffer in between."""


@dataclass(frozen=True)
class Cone:
    """What computing a value where it is wanted needs: additions per element, the buffers it reads, its ops."""

    cost: float
    buffers: frozenset[SSAValue]
    ops: int


class Clusters:
    """The answers for one function; see `of`."""

    def __init__(self, kept: frozenset[SSAValue], cones: dict[SSAValue, Cone]) -> None:
        self._kept = kept
        self._cones = cones

    def materialised(self, value: SSAValue) -> bool:
        """Tell whether a kernel would write the value to memory, were it not asked to."""
        return value in self._kept

    def cone(self, value: SSAValue) -> Cone:
        """Give what computing the value again from buffers takes."""
        return self._cones[value]

    def cone_bytes(self, value: SSAValue) -> int:
        """Give the bytes that computing the value again reads, symbols guessed; each buffer once."""
        return sum(cost.numeric(ir.nbytes(b)) for b in self._cones[value].buffers)


def of(func: FuncOp) -> Clusters:
    """Look at a function of primitives."""
    block, prices = func.body.block, Prices.of(func)
    kept: set[SSAValue] = set()
    cones: dict[SSAValue, Cone] = {}
    exposed: dict[SSAValue, Cone] = {}
    uses = _uses(block.ops)
    for argument in block.args:
        kept.add(argument)
        exposed[argument] = cones[argument] = Cone(0.0, frozenset((argument,)), 0)
    for op in block.ops:
        if op is block.last_op:
            break
        whole = _joined(op, exposed, prices)
        for result in op.results:
            cones[result] = whole
            if _is_kept(op, result, whole, uses.get(result, 0), prices):
                kept.add(result)
                exposed[result] = Cone(0.0, frozenset((result,)), 0)
            else:
                exposed[result] = whole
    return Clusters(frozenset(kept), cones)


def _uses(ops: Iterable[Operation]) -> dict[SSAValue, int]:
    """How many ops use a value, those behind views included (more than two count as two)."""
    found: dict[SSAValue, int] = {}
    for op in reversed(list(ops)):
        through = isinstance(op, prim.ViewOp)
        weight = min(found.get(op.results[0], 0), 2) if through else 1
        for operand in set(ir.operands_of(op)):
            found[operand] = found.get(operand, 0) + weight
    return found


def _joined(op: Operation, exposed: dict[SSAValue, Cone], prices: Prices) -> Cone:
    parts = [exposed[v] for v in dict.fromkeys(ir.operands_of(op))]
    own = prices.additions(op, 0.0)
    buffers = frozenset[SSAValue]().union(*(p.buffers for p in parts))
    return Cone(own + sum(p.cost for p in parts), buffers, 1 + sum(p.ops for p in parts))


def _is_kept(op: Operation, result: SSAValue, cone: Cone, uses: int, prices: Prices) -> bool:
    if not isinstance(op, INLINE):
        return True
    if isinstance(op, (prim.ViewOp, prim.SourceOp)) or not cone.buffers:
        return False
    if cone.ops > LARGEST_CONE:
        return True
    read = sum(cost.numeric(ir.nbytes(b)) for b in cone.buffers)
    return uses > 1 and not (cone.cost <= prices.cheap and read <= cost.numeric(ir.nbytes(result)))
