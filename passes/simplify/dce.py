"""Erase ops whose results nobody uses.

Before:
    %a = prim.exp %x : tensor<4xf32>
    %b = prim.neg %a : tensor<4xf32>
    func.return %x : tensor<4xf32>
After:
    func.return %x : tensor<4xf32>
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.traits import IsTerminator, Pure

from isthmus import ir


@dataclass(frozen=True)
class DcePass(ModulePass):
    """Needs: ops that say whether they are pure. Leaves: every pure op with a use."""

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in ir.functions(op).values():
            erase_dead(func.body.block)


def erase_dead(block: Block) -> int:
    """Erase unused pure ops of a block and of the regions in it; gives how many."""
    erased = ir.erase_unused(block, _stays)
    for op in block.ops:
        for region in op.regions:
            erased += sum(map(erase_dead, region.blocks))
    return erased


@cache
def _class_stays(cls: type[Operation]) -> bool:
    return cls.has_trait(IsTerminator) or not cls.has_trait(Pure)


def _stays(op: Operation) -> bool:
    return _class_stays(type(op))
