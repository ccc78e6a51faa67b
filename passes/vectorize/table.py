"""The table of batching rules, and the state they share: which values differ from example to example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TypeVar

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.dialects.prim import Emitter, OpaqueOp
from isthmus.passes.autodiff.expand import TERMINATORS, copy
from isthmus.passes.autodiff.pull import made_since
from isthmus.passes.autodiff.rules.scan import make_scan
from isthmus.passes.autodiff.table import Fallbacks

LOOPED = "vectorize.looped"
"""Attribute of a loop over examples that stands for an op without a batched form: [the op, the reason]."""


class Batch:
    """Values of a program for one example, over all: mapped ones have the examples in front, others are the same.

    A value that nobody defined is one of the surroundings.
    """

    def __init__(self, e: Emitter, size: ir.Dim, fallbacks: Fallbacks, randomness: str) -> None:
        self.e, self.size, self.fallbacks, self.randomness = e, size, fallbacks, randomness
        self._values: dict[SSAValue, SSAValue] = {}
        self._mapped: set[SSAValue] = set()

    def define(self, value: SSAValue, over: SSAValue, mapped: bool) -> None:
        """Say what a value of the body is."""
        self._values[value] = over
        if mapped:
            self._mapped.add(value)

    def is_mapped(self, value: SSAValue) -> bool:
        """Tell whether a value differs from example to example."""
        return value in self._mapped

    def now(self, value: SSAValue) -> SSAValue:
        """Give what a value is: with the examples in front where it is mapped."""
        return self._values.get(value, value)

    def shared(self, value: SSAValue) -> SSAValue:
        """Give a value that is the same for all examples."""
        assert value not in self._mapped
        return self.now(value)

    def over_all(self, value: SSAValue) -> SSAValue:
        """Give a value with the examples in dimension 0."""
        over = self.now(value)
        if value in self._mapped:
            return over
        shape = ir.shape_of(over)
        return self.e.broadcast(over, (self.size, *shape), tuple(range(1, len(shape) + 1)))

    def run(self, block: Block) -> None:
        """Define the values of a program for one example, whose arguments are defined."""
        for op in list(block.ops):
            if not isinstance(op, TERMINATORS):
                self.e.location = op.location
                batched(self, op)


Rule = Callable[[Batch, Operation], "SSAValue | Sequence[SSAValue]"]
RULES: dict[type[Operation], Rule] = {}
"""Filled when the rules are imported."""

OpT = TypeVar("OpT", bound=Operation)


def batching(*classes: type[OpT]) -> Callable[[Callable[[Batch, OpT], SSAValue | Sequence[SSAValue]]], Rule]:
    """Enter `rule(batch, op)`: the results over all examples of an op with at least one mapped operand.

    A rule may define results itself, where some are not mapped; it then gives ().
    """

    def enter(rule: Callable[[Batch, OpT], SSAValue | Sequence[SSAValue]]) -> Rule:
        for cls in classes:
            RULES[cls] = rule  # pyright: ignore[reportArgumentType]
        return rule  # pyright: ignore[reportReturnType]

    return enter


SUBJECTS = ("along", "index", "contract", "structured", "control", "call")
"""Modules of the rules."""


@cache
def load_rules() -> None:
    """Import every rule module once."""
    for subject in SUBJECTS:
        import_module(f"isthmus.passes.vectorize.rules.{subject}")


def rule_of(cls: type[Operation]) -> Rule | None:
    """Give the rule of an op class, or of the nearest class above it."""
    load_rules()
    return next((RULES[c] for c in cls.__mro__ if c in RULES), None)


def batched(batch: Batch, op: Operation) -> None:
    """Define the results of one op: once where no operand is mapped, by its rule, else example by example."""
    operands = ir.operands_of(op)
    last = batch.e.block.last_op
    if not any(map(batch.is_mapped, operands)) and not (isinstance(op, OpaqueOp) and batch.fallbacks.draws(op)):
        made = copy(batch.e, op, [batch.shared(v) for v in operands], batch.fallbacks)
        for old, new in zip(op.results, made, strict=True):
            batch.define(old, new, mapped=False)
    else:
        rule = rule_of(type(op))
        found = looped(batch, op, "it has no batched form") if rule is None else rule(batch, op)
        made = (found,) if isinstance(found, SSAValue) else found
        for old, new in zip(op.results, made, strict=bool(made)):
            batch.define(old, new, mapped=True)
    if (tag := op.attributes.get(RECOMPUTE)) is not None:
        for new in made_since(batch.e, last):
            new.attributes.setdefault(RECOMPUTE, tag)


def looped(batch: Batch, op: Operation, reason: str) -> list[SSAValue]:
    """A loop over the examples with the op in it: the last resort, marked so that `explain` can tell."""
    operands = ir.operands_of(op)
    mapped = [v for v in operands if batch.is_mapped(v)]
    rest = [v for v in operands if not batch.is_mapped(v)]

    def step(e: Emitter, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]):
        given = dict(zip([*mapped, *rest], [*slices[: len(mapped)], *shared], strict=True))
        return (), copy(e, op, [given[v] for v in operands], batch.fallbacks)

    whole = [batch.over_all(v) for v in mapped] or [batch.e.iota((batch.size,), 0)]
    _, stacked = make_scan(batch.e, (), whole, [batch.shared(v) for v in rest], step, reverse=False)
    loop = batch.e.block.last_op
    assert loop is not None
    loop.attributes[LOOPED] = ir.Literal.of((_name(op), reason))
    return stacked


def _name(op: Operation) -> str:
    """A library call goes by its own name."""
    callee = ir.literal(op, "callee")
    return callee if isinstance(callee, str) else op.name
