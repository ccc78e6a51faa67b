"""The user's rules as functions of the same text: `@pattern` becomes `@replacement`, `@meaning` stands for a call,
`@gradients` for its derivative."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects.aten import CallOp
from isthmus.passes import PASSES
from isthmus.passes.rules import apply
from isthmus.passes.rules.match import Pattern


@dataclass(frozen=True)
class RulesInTextPass(ModulePass):
    """Needs: calls on values. Leaves: the rules applied; `overload` is the call that @meaning or @gradients is for."""

    name = "rules-in-text"

    overload: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rules = {name: f for name, f in ir.functions(op).items() if name in _RULES}
        for func in rules.values():
            func.detach()
        if "pattern" in rules:
            replace = rules["replacement"]
            apply.rewrite(op, apply.Rewrite("text", Pattern(rules["pattern"]), lambda call, bound: replace))
        if "meaning" in rules:
            apply.expand(op, lambda call: rules["meaning"] if call.overload == self.overload else None)
        if "gradients" in rules:
            apply.override(op, lambda call: self._gradients(call, rules["gradients"]))

    def _gradients(self, call: CallOp, rule: FuncOp) -> tuple[FuncOp, list[bool]] | None:
        return (rule, [True] * len(call.operands)) if call.overload == self.overload else None


_RULES = ("pattern", "replacement", "meaning", "gradients")
PASSES["rules-in-text"] = f"{__name__}:RulesInTextPass"
