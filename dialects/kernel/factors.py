"""How the factors of a contraction lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.kernel.body import LoadOp
from isthmus.dialects.kernel.facts import linear_map
from isthmus.dialects.kernel.ops import ContractOp
from isthmus.sizes import Dim


@dataclass(frozen=True)
class Factor:
    """A factor that is read as it lies: neighbours along its own dim side by side, or (`turned`) those along k."""

    access: LoadOp
    turned: bool
    stride: Dim
    """Elements from one step of k to the next, or (`turned`) from one neighbour to the next."""


def factor_of(kernel: ContractOp, value: SSAValue, own: int) -> Factor | None:
    """Give how a factor lies in memory where nothing is computed on it; None where it has to be packed."""
    op, depth = value.owner, kernel.mnk[2]
    if not isinstance(op, LoadOp) or ir.operands_of(op):
        return None
    (linear,) = linear_map(kernel, op).data
    if not linear.is_affine():
        return None
    if linear.coefficient(own) == 1:
        return Factor(op, False, linear.coefficient(depth))
    return Factor(op, True, linear.coefficient(own)) if linear.coefficient(depth) == 1 else None
