"""A product of matrices that is only wanted transposed is that of its factors in the other order.

Before (the gradient of a weight that is written `x @ w.t()`):
    %d = prim.dot %x, %dy {contract_a = [0], contract_b = [0], ...} : tensor<4096x50304xbf16>
    %dw = prim.transpose %d {perm = [1, 0]} : tensor<50304x4096xbf16>
After:
    %dw = prim.dot %dy, %x {contract_a = [0], contract_b = [0], ...} : tensor<50304x4096xbf16>
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import ints
from isthmus.passes.analysis.prices import Prices


@dataclass(frozen=True)
class TurnDotsPass(ModulePass):
    """Needs: functions in primitives. Leaves: no transposition of a product of `least` bytes that nobody else reads."""

    name = "turn-dots"

    least: int | None = None
    """None: by the program's prices."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Turn products in every block, control flow's included."""
        blocks = {found.parent: None for found in op.walk() if isinstance(found, prim.TransposeOp)}
        for block in blocks:
            if block is not None:
                turn_dots(block, Prices.of(block.parent_op(), "gpu").turn_bytes if self.least is None else self.least)


def turn_dots(block: Block, least: int) -> None:
    """Turn the products of a block in place."""
    for op in list(block.ops):
        if not isinstance(op, prim.TransposeOp) or ints(op.perm.data) != (1, 0):
            continue
        dot, size = op.x.owner, ir.nbytes(op.x)
        if not isinstance(dot, prim.DotOp) or not _is_of_matrices(dot) or not dot.y.has_one_use():
            continue
        if dot.parent is not block or not isinstance(size, int) or size < least:
            continue
        swapped = {"contract_a": dot.contract_b, "contract_b": dot.contract_a}
        properties = {**dot.properties, **swapped}
        made = ir.create_op(prim.DotOp, (dot.b, dot.a), (op.y.type,), properties, location=dot.location)
        block.insert_op_before(made, dot)
        op.y.replace_all_uses_with(made.results[0])
        for old in (op, dot):
            old.detach()
            old.erase()


def _is_of_matrices(dot: prim.DotOp) -> bool:
    """Whether each factor gives the result one dim."""
    contracted = len(ints(dot.contract_a.data))
    ranks = {len(ir.shape_of(v)) for v in (dot.a, dot.b)}
    return not ints(dot.batch_a.data) and ranks == {contracted + 1}
