"""Share equal ops and apply the folds that ops have at birth.

Before:
    %a = prim.exp %x : tensor<4xf32>
    %b = prim.exp %x : tensor<4xf32>
    %y = prim.add %a, %b : tensor<4xf32>
After:
    %a = prim.exp %x : tensor<4xf32>
    %y = prim.add %a, %a : tensor<4xf32>
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.passes.simplify.rebuild import rebuild


@dataclass(frozen=True)
class CsePass(ModulePass):
    """Needs: functions of one block. Leaves: no two equal pure primitives in a block; every bit as it was."""

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in ir.functions(op).values():
            rebuild(func)
