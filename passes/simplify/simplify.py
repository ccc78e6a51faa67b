"""Fold, apply algebra that keeps every bit, share equal ops, erase dead ones.

Before:
    %one = prim.const {value = 1.0} : tensor<4xf32>
    %a = prim.div %x, %one : tensor<4xf32>
    %n = prim.neg %a : tensor<4xf32>
    %y = prim.neg %n : tensor<4xf32>
After: every use of %y is a use of %x.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.passes.simplify.dce import erase_dead
from isthmus.passes.simplify.rebuild import rebuild
from isthmus.passes.simplify.simplifier import Simplifier


@dataclass(frozen=True)
class SimplifyPass(ModulePass):
    """Needs: functions in primitives. Leaves: the same bits from fewer ops."""

    name = "simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in ir.functions(op).values():
            simplify(func)


def simplify(func: FuncOp) -> None:
    """Simplify a function in place: dead ops first, so that a use count says what will remain."""
    erase_dead(func.body.block)
    rebuild(func, Simplifier)
    erase_dead(func.body.block)
