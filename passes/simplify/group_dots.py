"""Narrow products of one operand become one: linear layers side by side on the same input.

Before:
    %y = prim.dot %x, %w {contract_a = [1], contract_b = [1], ...} : tensor<256x8xf32>
    %z = prim.dot %x, %v {contract_a = [1], contract_b = [1], ...} : tensor<256x8xf32>
After:
    %a = prim.concat %w, %v {dim = 0} : tensor<16x64xf32>
    %b = prim.dot %x, %a {contract_a = [1], contract_b = [1], ...} : tensor<256x16xf32>
    %y = prim.slice %b {dim = 1, start = 0, limit = 8, stride = 1} : tensor<256x8xf32>
    %z = prim.slice %b {dim = 1, start = 8, limit = 16, stride = 1} : tensor<256x8xf32>

A library multiplies narrow matrices at a fraction of its speed. Measured with weights put together at every call, one
thread, AVX2 (CPU time, apart / together): eight of 1024x64x8 4.1, of 8x64x8 3.4, of 256x64x16 1.5, three of 256x64x64
1.05, of 64x256x256 0.87. So products of up to 16 columns are joined, wider ones stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.base import ints

NARROW = 16
"""Columns up to which products are joined."""


@dataclass(frozen=True)
class GroupDotsPass(ModulePass):
    """Needs: functions in primitives, not to be differentiated again. Leaves: fewer, wider products.

    Only in f32 and f64: a product in a narrower float is not the library's alone.
    """

    name = "group-dots"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Group in every block, control flow's included."""
        blocks = {found.parent: None for found in op.walk() if isinstance(found, prim.DotOp)}
        for block in blocks:
            if block is not None:
                group_dots(block)


def group_dots(block: Block) -> None:
    """Join the narrow products of a block that share their first operand, in place."""
    position = {op: k for k, op in enumerate(block.ops)}
    groups: defaultdict[object, list[prim.DotOp]] = defaultdict(list)
    for op in block.ops:
        if isinstance(op, prim.DotOp) and _is_narrow(op):
            groups[op.a, op.b.type, tuple(op.properties.items())].append(op)
    for dots in groups.values():
        there = [d for d in dots if _is_there(d.b, block, position, position[dots[0]])]
        if len(there) > 1:
            at = position[there[0]]
            position.update((made, at) for made in _join(there))  # another group may multiply by a part


def _is_narrow(op: prim.DotOp) -> bool:
    free = _free(op)
    columns = ir.shape_of(op.b)[free[0]] if len(free) == 1 else 0
    plain = ir.dtype_of(op.y) in ("f32", "f64") and not ints(op.batch_a.data) and bool(ints(op.contract_a.data))
    return plain and isinstance(columns, int) and 0 < columns <= NARROW


def _free(op: prim.DotOp) -> list[int]:
    """The dims of the second operand that the result has."""
    return [d for d in range(len(ir.shape_of(op.b))) if d not in ints(op.contract_b.data)]


def _is_there(value: SSAValue, block: Block, position: dict[Operation, int], at: int) -> bool:
    """Whether a value is known before the op at a position."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.parent is not block or position[owner] < at


def _join(dots: Sequence[prim.DotOp]) -> list[Operation]:
    """Put one product in the place of the first of several; gives the ops that this made."""
    first, e = dots[0], Emitter(Block())
    e.location = first.location
    (free,) = _free(first)
    (whole,) = e.copy(first, (first.a, e.concat([d.b for d in dots], free)))
    last = len(ir.shape_of(whole)) - 1
    width = ir.shape_of(first.y)[-1]
    parts = [e.slice(whole, last, k * width, (k + 1) * width) for k in range(len(dots))]
    ops = e.put_before(first)
    for dot, part in zip(dots, parts, strict=True):
        part.name_hint = dot.y.name_hint
        dot.y.replace_all_uses_with(part)
        dot.detach()
        dot.erase()
    return ops
