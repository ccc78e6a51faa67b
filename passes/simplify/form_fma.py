"""Join a multiplication and the addition of its result, its only use, into one rounding.

Before:
    %m = prim.mul %a, %b : tensor<4xf32>
    %y = prim.add %m, %c : tensor<4xf32>
After:
    %y = prim.fma %a, %b, %c : tensor<4xf32>
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim


@dataclass(frozen=True)
class FormFmaPass(ModulePass):
    """Needs: the joint function before partition, so that a value computed twice has the same bits. Leaves: fma ops.

    Only where the product has no other use, in f32 and f64. It changes bits, within one rounding.
    """

    name = "form-fma"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in ir.functions(op).values():
            form_fma(func)


def form_fma(func: FuncOp) -> None:
    """Form the fused multiply-adds of a function in place."""
    _form_in(func.body.block)


def _form_in(block: Block) -> None:
    for op in list(block.ops):
        if isinstance(op, (prim.AddOp, prim.SubOp)):
            terms = _terms(op)
            if terms is not None:
                _replace(op, *terms)
        for region in op.regions:
            for inner in region.blocks:
                _form_in(inner)


Product = tuple[SSAValue, SSAValue, prim.MulOp]


def _terms(op: prim.AddOp | prim.SubOp) -> tuple[Product, SSAValue, bool, bool] | None:
    """Give the product, the other term and which of them is subtracted; a product on the left is taken first."""
    if ir.dtype_of(op.y) not in ("f32", "f64"):
        return None
    subtracts = isinstance(op, prim.SubOp)
    for product, other, left in ((op.a, op.b, True), (op.b, op.a, False)):
        owner = product.owner
        if isinstance(owner, prim.MulOp) and product.has_one_use():
            return (owner.a, owner.b, owner), other, subtracts and not left, subtracts and left
    return None


def _replace(
    op: prim.AddOp | prim.SubOp, product: Product, other: SSAValue, minus_product: bool, minus_other: bool
) -> None:
    """a·b - c = fma(a, b, -c) and c - a·b = fma(-a, b, c): negation is exact."""
    a, b, mul = product
    block = op.parent
    assert block is not None
    if minus_product or minus_other:
        negated = ir.create_op(prim.NegOp, [a if minus_product else other], [op.y.type], location=op.location)
        block.insert_op_before(negated, op)
        a, other = (negated.y, other) if minus_product else (a, negated.y)
    made = ir.create_op(prim.FmaOp, [a, b, other], [op.y.type], location=op.location, attributes=op.attributes)
    block.insert_op_before(made, op)
    op.y.replace_all_uses_with(made.y)
    for old in (op, mul):
        old.detach()
        old.erase()
