"""Contractions that meet in a sum or side by side become one over the operands put together.

Before:
    %d = prim.dot %g, %x {contract_a = [0], contract_b = [0], ...} : tensor<64x32xf32>
    %e = prim.dot %h, %y {contract_a = [0], contract_b = [0], ...} : tensor<64x32xf32>
    %s = prim.add %d, %e : tensor<64x32xf32>
After:
    %a = prim.concat %g, %h {dim = 0} : tensor<8x64xf32>
    %b = prim.concat %x, %y {dim = 0} : tensor<8x32xf32>
    %s = prim.dot %a, %b {contract_a = [0], contract_b = [0], ...} : tensor<64x32xf32>

The gradient of a weight that a loop uses at every step is such a sum: Σ_t g_tᵀ x_t. A sum of contractions is one
reduction; its order is fixed, and is another than that of adding the products one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import Literals, ints
from isthmus.ir import Literal
from isthmus.passes.analysis import cost

Orders = dict[frozenset[SSAValue], tuple[SSAValue, ...]]
"""Values that are put together somewhere, and in which order."""


@dataclass(frozen=True)
class JoinDotsPass(ModulePass):
    """Needs: functions in primitives, not to be differentiated again. Leaves: fewer, longer contractions.

    Only in f32 and f64: narrower floats round each product of theirs.
    """

    name = "join-dots"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Join in every block, control flow's included."""
        blocks = {found.parent: None for found in op.walk() if isinstance(found, prim.DotOp)}
        for block in blocks:
            if block is not None:
                join_dots(block)


def join_dots(block: Block) -> None:
    """Join the contractions of a block in place: those side by side first, whose order a sum can then share."""
    joined = _Joined(block)
    for op in list(block.ops):
        if isinstance(op, prim.ConcatOp):
            joined.neighbours(op)
    seen: set[Operation] = set()
    for op in reversed(list(block.ops)):
        if isinstance(op, prim.AddOp) and op not in seen:
            leaves = _leaves(op, seen)
            dots = [d for d in map(_only_use, leaves) if d is not None]
            if len(dots) == len(leaves) and _are_alike(dots) and _is_cheaper(dots):
                joined.sum(op, dots)
    joined.erase()


class _Joined:
    """One block, with the operands put together so far."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.orders: Orders = {}
        self.whole: dict[tuple[int, tuple[SSAValue, ...]], SSAValue] = {}
        self.old: list[Operation] = []
        self.position = {op: k for k, op in enumerate(block.ops)}

    def neighbours(self, op: prim.ConcatOp) -> None:
        """concat(a_t · w) along a free dim of a is concat(a_t) · w, element by element the same sums."""
        if op.dim.data != 0 or len(op.xs) < 2:
            return
        peeled = [_without_first(x) for x in op.xs]
        dots = [d for d in map(_only_use, peeled) if d is not None]
        if len(dots) != len(peeled) or not _are_alike(dots) or any(d.b is not dots[0].b for d in dots):
            return
        free = [d for d in range(len(ir.shape_of(dots[0].a))) if d not in ints(dots[0].contract_a.data)]
        if not free or not _share_is_cheaper(dots[0]):
            return
        a = self._concat([d.a for d in dots], free[0])
        self.orders[frozenset(d.a for d in dots)] = tuple(d.a for d in dots)
        made = self._dot(op, dots[0], a, dots[0].b)
        if ir.shape_of(made) != ir.shape_of(op.y):
            made = self._add(op, prim.ReshapeOp, [made], {}, op.y.type)
        self._replace(op, made)

    def sum(self, op: prim.AddOp, dots: list[prim.DotOp]) -> None:
        """Σ_t a_t · b_t is concat(a_t) · concat(b_t), the contraction as long as all of them."""
        order = self.orders.get(frozenset(d.a for d in dots))
        if order is not None and len(order) == len(dots):
            position = {a: k for k, a in enumerate(order)}
            dots = sorted(dots, key=lambda d: position[d.a])
        dim_a, dim_b = ints(dots[0].contract_a.data)[0], ints(dots[0].contract_b.data)[0]
        a = self._concat([d.a for d in dots], dim_a)
        b = self._concat([d.b for d in dots], dim_b)
        self._replace(op, self._dot(op, dots[0], a, b))

    def erase(self) -> None:
        """Take out what nothing uses any more."""
        while self.old:
            op = self.old.pop()
            if op.parent is not None and not any(r.uses for r in op.results):
                self.old += [v.owner for v in op.operands if isinstance(v.owner, (prim.AddOp, *_PASSED))]
                op.detach()
                op.erase()

    def _concat(self, values: Sequence[SSAValue], dim: int) -> SSAValue:
        """The values put together, as soon as all are there."""
        key = (dim, tuple(values))
        found = self.whole.get(key)
        if found is None:
            makers = [v.owner for v in values if isinstance(v.owner, Operation)]
            last = max(makers, key=self.position.__getitem__) if makers else None
            before = cast(Operation, self.block.first_op if last is None else last.next_op)
            type_ = prim.ConcatOp.infer(tuple(v.type for v in values), {"dim": dim})[0]
            found = self.whole[key] = self._add(before, prim.ConcatOp, values, {"dim": dim}, type_)
        return found

    def _dot(self, before: Operation, like: prim.DotOp, a: SSAValue, b: SSAValue) -> SSAValue:
        literals = {key: attr.data for key, attr in like.properties.items() if isinstance(attr, Literal)}
        return self._add(before, prim.DotOp, [a, b], literals, prim.DotOp.infer((a.type, b.type), literals)[0])

    def _add(
        self,
        before: Operation,
        cls: type[prim.PrimOp],
        operands: Sequence[SSAValue],
        literals: Literals,
        type_: Attribute,
    ) -> SSAValue:
        properties = {key: Literal.of(value) for key, value in literals.items()}
        made = ir.create_op(cls, operands, [type_], properties, location=before.location)
        self.block.insert_op_before(made, before)
        self.position[made] = self.position.get(before, len(self.position))
        return made.results[0]

    def _replace(self, op: Operation, value: SSAValue) -> None:
        op.results[0].replace_all_uses_with(value)
        self.old.append(op)


_PASSED = (prim.DotOp, prim.ReshapeOp)


def _leaves(root: prim.AddOp, seen: set[Operation]) -> list[SSAValue]:
    """The terms of a tree of additions whose inner sums have no other use, from left to right."""
    leaves: list[SSAValue] = []
    stack: list[SSAValue] = [root.b, root.a]
    seen.add(root)
    while stack:
        value = stack.pop()
        owner = value.owner
        if isinstance(owner, prim.AddOp) and value.has_one_use():
            seen.add(owner)
            stack += (owner.b, owner.a)
        else:
            leaves.append(value)
    return leaves


def _only_use(value: SSAValue) -> prim.DotOp | None:
    owner = value.owner
    return owner if isinstance(owner, prim.DotOp) and value.has_one_use() else None


def _without_first(value: SSAValue) -> SSAValue:
    """What a reshape gives a first dim of size 1."""
    owner = value.owner
    if isinstance(owner, prim.ReshapeOp) and value.has_one_use():
        if ir.shape_of(value) == (1, *ir.shape_of(owner.x)):
            return owner.x
    return value


def _are_alike(dots: Sequence[prim.DotOp]) -> bool:
    """Whether they contract tensors of the same shapes along the same dims, and nothing is a batch."""
    first = dots[0]
    return (
        ir.dtype_of(first.y) in ("f32", "f64")
        and not ints(first.batch_a.data)
        and bool(ints(first.contract_a.data))
        and all(
            d.a.type == first.a.type and d.b.type == first.b.type and d.properties == first.properties for d in dots
        )
    )


def _is_cheaper(dots: Sequence[prim.DotOp]) -> bool:
    """Whether copying operands into one moves less than writing every product and reading it for the sum."""
    return _nbytes(dots[0].a) + _nbytes(dots[0].b) <= _nbytes(dots[0].y)


def _share_is_cheaper(dot: prim.DotOp) -> bool:
    """Whether copying an operand moves less than reading the shared one again and copying the result."""
    return 2 * _nbytes(dot.a) < _nbytes(dot.b) + _nbytes(dot.y)


def _nbytes(value: SSAValue) -> int:
    return cost.numeric(ir.numel(value)) * ir.itemsize(ir.dtype_of(value))
