"""Rebuild functions in primitives by the tables of decompositions.

Before:
    %y = aten.call %x, %w, %b {overload = "linear.default", args = [arg0, arg1, arg2]} : tensor<4x8xf32>
After:
    %0 = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<4x8xf32>
    %1 = prim.broadcast %b {dims = [1]} : tensor<4x8xf32>
    %y = prim.add %0, %1 : tensor<4x8xf32>
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import aten
from isthmus.passes.decompose import regions as regions  # fills its table
from isthmus.passes.decompose.expand import expand
from isthmus.passes.decompose.rebuild import Rebuild
from isthmus.passes.decompose.table import TABLES, load_rules
from isthmus.passes.options import check_words

LEVELS = ("prim", "elementary")
RANDOM = ("philox", "library")

CALLS = tuple(aten.ATEN.operations)
"""What makes a program one of calls."""


@dataclass(frozen=True)
class DecomposePass(ModulePass):
    """Needs: functions on values (functionalized). Leaves: with `to=prim` primitives and autodiff ops, a library call
    (prim.opaque, with the reason) where the table has no rule; with `to=elementary` no structured primitive that has
    an elementary form.

    `table` names the table of rules ("none": every call stays a library call); `random=library` leaves random numbers
    to torch's own kernels.
    """

    name = "decompose"
    to: str = "prim"
    table: str = "default"
    random: str = "philox"

    def __post_init__(self) -> None:
        """Check the options; IRError for a word without a meaning."""
        check_words(self, to=LEVELS, table=TABLES, random=RANDOM)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rebuild every function. IRError when a rule breaks its promise."""
        load_rules()
        rebuild = Rebuild(TABLES[self.table], draws=self.random == "philox")
        for func in ir.functions(op).values():
            if func.is_declaration:
                continue
            if self.to == "prim" or any(isinstance(inner, CALLS) for inner in func.walk()):
                rebuild.function(func)
            if self.to == "elementary":
                expand(func.body.block)
