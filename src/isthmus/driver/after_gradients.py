"""The user's rewrites of what is left after gradients: patterns and replacements in primitives, made for each shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import new_context
from isthmus.driver.rules import Blamed, Rule, registered
from isthmus.frontend import rules as tracing
from isthmus.passes.pipelines import run_passes
from isthmus.passes.rules.primitives import rewrite

STAGE = "post-grad"


def rewrite_after_gradients(module: ModuleOp, hints: Mapping[str, int], draws: str) -> dict[str, int]:
    """Apply the rules of this stage to functions of primitives in place; gives how often each was used.

    `hints`: example values of the size symbols; `draws`: where random numbers come from, as `decompose` takes it.
    CompileError names the rule that fails.
    """
    counts: dict[str, int] = {}
    for rule in registered(STAGE):
        made = _Made(rule, hints, draws)
        with Blamed(rule):
            counts[str(rule)] = rewrite(module, made.outline(), made.pattern, made.replacement)
    return counts


class _Made:
    """One rule's functions in primitives; for the same types they are made once."""

    def __init__(self, rule: Rule, hints: Mapping[str, int], draws: str) -> None:
        self._rule, self._hints = rule, hints
        decompose = f"decompose{{to=prim random={draws}}}"
        self._passes = ("functionalize", decompose, "end-differentiation", "simplify")
        self._patterns: dict[tuple[Attribute, ...], FuncOp | None] = {}
        self._replacements: dict[tuple[Attribute, ...], FuncOp | None] = {}

    def outline(self) -> FuncOp:
        """The pattern on the shapes of its examples."""
        assert self._rule.pattern is not None
        func = self.pattern([a.type for a in self._rule.pattern.func.body.block.args])
        if func is None:
            raise CompileError("the pattern is not defined on its examples")
        return func

    def pattern(self, types: Sequence[Attribute]) -> FuncOp | None:
        """The pattern on these types; None where it is not defined on them."""

        def trace() -> FuncOp | None:
            pattern = self._rule.matched
            assert pattern is not None
            try:
                return self._lowered(tracing.trace_function(pattern, types, hints=self._hints, as_pattern=True))
            except (RuntimeError, TypeError, ValueError):  # what torch refuses there is not what the program does
                return None

        return _once(self._patterns, types, trace)

    def replacement(self, types: Sequence[Attribute]) -> FuncOp | None:
        """What comes in its place; None where `when` says no."""

        def trace() -> FuncOp | None:
            made = tracing.trace_function(self._rule.function, types, hints=self._hints, when=self._rule.when)
            if made is None:
                return None
            func, pattern = self._lowered(made), self.pattern(types)
            assert pattern is not None
            found, wanted = (list(f.function_type.outputs.data) for f in (func, pattern))
            if found != wanted:
                gives, needs = (", ".join(map(str, ts)) or "nothing" for ts in (found, wanted))
                raise CompileError(f"it gives {gives} where {needs} is expected")
            return func

        return _once(self._replacements, types, trace)

    def _lowered(self, module: ModuleOp | None) -> FuncOp:
        assert module is not None
        run_passes(new_context(), module, self._passes)
        func = ir.function(module, "main")
        if any("isthmus.mutated" in d.data for d in (func.res_attrs.data if func.res_attrs else ())):
            raise CompileError("it writes into its arguments", cure="compute new values instead")
        return func


def _once(
    known: dict[tuple[Attribute, ...], FuncOp | None], types: Sequence[Attribute], make: Callable[[], FuncOp | None]
) -> FuncOp | None:
    key = tuple(types)
    if key not in known:
        known[key] = make()
    return known[key]
