"""Rules that users register in plain torch code: decompositions, derivatives, rewrites; and their use on a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import aten, new_context
from isthmus.driver.compilers import place_of
from isthmus.frontend import rules as tracing
from isthmus.frontend.generation import advance
from isthmus.passes.pipelines import run_passes
from isthmus.passes.rules import apply
from isthmus.passes.rules.match import Pattern, functional_name

Function = Callable[..., object]


@dataclass(eq=False)
class Rule:
    """A registered rule; `remove()` it, or use it as a context manager. Calling it calls the function.

    Registering and removing a rule forgets every compiled program of the process: none may run without it.
    """

    kind: Literal["decomposition", "derivative", "rewrite"]
    name: str
    """The overload, or the name of the pattern."""
    function: Function
    pattern: Pattern | None = None
    when: Function | None = None
    matched: Function | None = None
    """The pattern as torch code."""
    stage: str = "pre-grad"

    def remove(self) -> None:
        """Forget the rule; nothing happens when it is forgotten already."""
        if self in _RULES:
            _RULES.remove(self)
            advance()

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the function itself."""
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.kind} of {self.name} by {place_of(self.function)}"


_RULES: list[Rule] = []

STAGES = ("pre-grad", "post-grad")
"""When rewrites act: on the captured program, or on forward and backward after gradients were taken and cut apart."""


def registered(stage: str | None = None) -> tuple[Rule, ...]:
    """Give the rules in force (of a stage), oldest first; of two for one overload the later counts."""
    return tuple(r for r in _RULES if stage in (None, r.stage))


def _enter(rule: Rule) -> Rule:
    _RULES.append(rule)
    advance()
    return rule


def register_decomposition(op: object) -> Callable[[Function], Rule]:
    """Say what calls of an operator are made of: `rule(*args, **kwargs)` in torch code, with the operator's arguments.

    `op` is an overload (torch.ops.aten.relu.default), a packet with one, or a torch.library.custom_op. The rule is
    traced once per call and gives tensors of exactly the shapes and dtypes of the call; it is differentiated where
    gradients are asked for. A decorator; gives the `Rule`. TypeError where `op` is no overload.
    """
    name = tracing.overload_name(op)
    return lambda function: _enter(Rule("decomposition", name, function))


def register_derivative(op: object) -> Callable[[Function], Rule]:
    """Say what the gradients of an operator are: `rule(gradient, result, *args, **kwargs)` in torch code.

    It gives one entry for each argument of the operator, None where there is no gradient; `gradient` and `result` are
    tuples where the operator has several results. The rule is differentiated for higher orders, and takes the place
    of any other. A decorator; gives the `Rule`. TypeError where `op` is no overload.
    """
    name = tracing.overload_name(op)
    return lambda function: _enter(Rule("derivative", name, function))


def register_rewrite(
    pattern: Function,
    replacement: Function,
    *,
    examples: Sequence[Tensor] | None = None,
    when: Function | None = None,
    name: str | None = None,
    stage: str = "pre-grad",
) -> Rule:
    """Put `replacement(*tensors)` wherever a program computes `pattern(*tensors)`; the model's code stays as it is.

    Both are torch code on the same tensors. The pattern is traced here, on `examples` (default: float32 of 4x4): its
    numbers and dims are matched as they are, shapes and dtypes of its arguments are free; `add` and `mul` match with
    their operands exchanged too. `when(*tensors)`, given tensors without data, says whether a match is wanted. What is
    put in is not matched again, and its gradient is its own. Matches are counted: `isthmus.explain`,
    ISTHMUS_LOGS=rewrites.

    With `stage="post-grad"` it acts on forward and backward, each for itself, after gradients were taken: on what they
    compute, whoever wrote it, so that pattern and replacement need no gradient. Both are decomposed into primitives as
    programs are; where operands are broadcast, `examples` must be so too.

    CompileError where the pattern is not made of operators alone or gives more than one tensor, or the replacement
    takes other arguments; ValueError on another stage.
    """
    if stage not in STAGES:
        raise ValueError(f"stage={stage!r} is none of {', '.join(map(repr, STAGES))}")
    title = name or getattr(pattern, "__name__", "pattern")
    rule = Rule("rewrite", title, replacement, None, when, pattern, stage)
    code = getattr(pattern, "__code__", None)
    count = code.co_argcount if code is not None else 0
    given = list(examples) if examples is not None else [torch.empty(4, 4, device="meta") for _ in range(count)]
    _require_as_many(replacement, count, pattern)
    with Blamed(Rule("rewrite", title, pattern)):
        module = tracing.trace_function(pattern, [tracing.tensor_type(t) for t in given], hints={}, as_pattern=True)
        assert module is not None
        rule.pattern = Pattern(_functional(module))
        _ = rule.pattern.root  # its form is checked
    return _enter(rule)


def _require_as_many(replacement: Callable[..., object], count: int, pattern: object) -> None:
    try:
        signature = inspect.signature(replacement)
    except ValueError:  # a builtin's may be unknown
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise CompileError(
            f"the replacement {place_of(replacement)} does not take the {count} arguments of the pattern: {error}",
            op="register_rewrite",
            cure=f"give it the parameters of {place_of(pattern)}",
        ) from None


class Blamed:
    """Errors inside name the rule and where it stands."""

    def __init__(self, rule: Rule, call: aten.CallOp | None = None) -> None:
        """`call`: the call that the rule is used for."""
        self.rule, self.call = rule, call

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        what = error.what if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
        raise CompileError(
            f"the {self.rule} fails: {what}",
            location=None if self.call is None else ir.source_location(self.call),
            op=None if self.call is None else self.call.overload,
            cure=error.cure if isinstance(error, CompileError) else None,
        ) from error


@dataclass
class Applied:
    """What the registered rules did to one program."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    """Rule, as text -> how often it was used."""

    def table(self) -> str:
        """One line per rule that was looked for."""
        return "\n".join(f"{count:4} x {rule}" for rule, count in self.counts.items()) or "no rules are registered"


def apply_rules(module: ModuleOp, hints: Mapping[str, int]) -> Applied:
    """Apply the rules in force to a captured program on values, in place: rewrites, derivatives, decompositions."""
    user = _UserRules(module, hints)
    applied = Applied()
    for rule in registered("pre-grad"):
        if rule.kind == "rewrite":
            applied.counts[str(rule)] = user.rewrite(rule)
    for kind, run in (("derivative", user.derivative), ("decomposition", user.decomposition)):
        latest = {r.name: r for r in registered() if r.kind == kind}
        for rule in latest.values():
            applied.counts[str(rule)] = run(rule)
    aten.attach_schemas(module, [*user.schemas])
    return applied


class _UserRules:
    """Traces rules for the calls of one program; the same rule on the same signature is traced once."""

    def __init__(self, module: ModuleOp, hints: Mapping[str, int]) -> None:
        self.module, self.hints = module, hints
        carried = module.attributes.get(aten.SCHEMAS)
        self.schemas = list(cast("tuple[str, ...]", carried.data)) if isinstance(carried, ir.Literal) else []
        self._traced: dict[object, tuple[FuncOp | None, Sequence[bool]]] = {}

    def rewrite(self, rule: Rule) -> int:
        """Replace the matches of a pattern; gives their number."""

        def replace(op: aten.CallOp, bound: Sequence[SSAValue]) -> FuncOp | None:
            types = [v.type for v in bound]

            def traced() -> tuple[FuncOp | None, Sequence[bool]]:
                location = ir.source_location(op)
                made = tracing.trace_function(rule.function, types, hints=self.hints, location=location, when=rule.when)
                if made is None:
                    return None, ()
                return self._checked(made, [r.type for r in op.results]), ()

            return self._once((rule, *map(id, types)), rule, op, traced)[0]

        assert rule.pattern is not None
        return apply.rewrite(self.module, apply.Rewrite(rule.name, rule.pattern, replace))

    def decomposition(self, rule: Rule) -> int:
        """Expand the calls of an overload; gives their number."""

        def body(op: aten.CallOp) -> FuncOp | None:
            def traced() -> tuple[FuncOp | None, Sequence[bool]]:
                made = tracing.trace_decomposition(rule.function, op, hints=self.hints, location=ir.source_location(op))
                return self._checked(made, [r.type for r in op.results]), ()

            return self._once(_key(rule, op), rule, op, traced)[0] if _is_of(rule, op) else None

        return apply.expand(self.module, body)

    def derivative(self, rule: Rule) -> int:
        """Give the calls of an overload the gradients of a rule; gives their number."""

        def gradients(op: aten.CallOp) -> tuple[FuncOp, Sequence[bool]] | None:
            if not _is_of(rule, op):
                return None

            def traced() -> tuple[FuncOp | None, Sequence[bool]]:
                made, wanted = tracing.trace_gradients(
                    rule.function, op, hints=self.hints, location=ir.source_location(op)
                )
                types = [v.type for v, w in zip(ir.operands_of(op), wanted, strict=True) if w]
                return self._checked(made, types), wanted

            func, wanted = self._once(_key(rule, op), rule, op, traced)
            assert func is not None
            return func, wanted

        return apply.override(self.module, gradients)

    def _once(
        self,
        key: object,
        rule: Rule,
        op: aten.CallOp,
        trace: Callable[[], tuple[FuncOp | None, Sequence[bool]]],
    ) -> tuple[FuncOp | None, Sequence[bool]]:
        if key not in self._traced:
            with Blamed(rule, op):
                self._traced[key] = trace()
        return self._traced[key]

    def _checked(self, module: ModuleOp, wanted: Sequence[Attribute]) -> FuncOp:
        func = _functional(module)
        carried = module.attributes.get(aten.SCHEMAS)
        if isinstance(carried, ir.Literal):
            self.schemas += cast("tuple[str, ...]", carried.data)
        found = list(func.function_type.outputs.data)
        types = [aten.value_type(t) for t in wanted]
        if found != types:
            gives, needs = (", ".join(map(str, ts)) or "nothing" for ts in (found, types))
            raise CompileError(f"it gives {gives} where {needs} is expected")
        return func


def _key(rule: Rule, op: aten.CallOp) -> object:
    return (rule, op.overload, op.properties["args"], *(id(v.type) for v in ir.operands_of(op)))


def _is_of(rule: Rule, op: aten.CallOp) -> bool:
    return op.overload == rule.name or (functional_name(op.overload) == rule.name and len(op.results) == 1)


def _functional(module: ModuleOp) -> FuncOp:
    """Bring a traced rule to values. CompileError where it writes into its arguments."""
    run_passes(new_context(), module, ("functionalize",))
    func = ir.function(module, "main")
    if any("isthmus.mutated" in d.data for d in (func.res_attrs.data if func.res_attrs else ())):
        raise CompileError("it writes into its arguments", cure="compute new values instead")
    return func
