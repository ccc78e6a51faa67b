"""The table of batching rules, and the state they share: which values differ from example to example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.expand import copy
from isthmus.passes.autodiff.table import Fallbacks

LOOPED = "vectorize.looped"
"""Attribute of ops without a rule of their own: one copy per example."""

LIMIT = 4096
"""So many copies of one op at most."""


class Batch:
    """Values of the body over all examples: mapped ones have the examples in dimension 0, the others are the same.

    A value that nobody defined is one of the surroundings.
    """

    def __init__(self, e: Emitter, size: ir.Dim, fallbacks: Fallbacks) -> None:
        self.e, self.size, self.fallbacks = e, size, fallbacks
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

    def shared(self, value: SSAValue) -> SSAValue:
        """Give a value that is the same for all examples."""
        assert value not in self._mapped
        return self._values.get(value, value)

    def over_all(self, value: SSAValue) -> SSAValue:
        """Give a value with the examples in dimension 0."""
        over = self._values.get(value, value)
        if value in self._mapped:
            return over
        shape = ir.shape_of(over)
        return self.e.broadcast(over, (self.size, *shape), tuple(range(1, len(shape) + 1)))


Rule = Callable[[Batch, Operation], "SSAValue | Sequence[SSAValue]"]
RULES: dict[type[Operation], Rule] = {}

OpT = TypeVar("OpT", bound=Operation)


def batching(*classes: type[OpT]) -> Callable[[Callable[[Batch, OpT], SSAValue | Sequence[SSAValue]]], Rule]:
    """Enter `rule(batch, op)`: the results over all examples of an op with at least one mapped operand."""

    def enter(rule: Callable[[Batch, OpT], SSAValue | Sequence[SSAValue]]) -> Rule:
        for cls in classes:
            RULES[cls] = rule  # pyright: ignore[reportArgumentType]
        return rule  # pyright: ignore[reportReturnType]

    return enter


def batched(batch: Batch, op: Operation) -> None:
    """Define the results of one op: once where no operand is mapped, by its rule, else example by example."""
    operands = ir.operands_of(op)
    if not any(map(batch.is_mapped, operands)):
        made = copy(batch.e, op, [batch.shared(v) for v in operands], batch.fallbacks)
        for old, new in zip(op.results, made, strict=True):
            batch.define(old, new, mapped=False)
        return
    rule = next((RULES[c] for c in type(op).__mro__ if c in RULES), None)
    made = one_by_one(batch, op) if rule is None else rule(batch, op)
    for old, new in zip(op.results, (made,) if isinstance(made, SSAValue) else made, strict=True):
        batch.define(old, new, mapped=True)


def one_by_one(batch: Batch, op: Operation) -> list[SSAValue]:
    """One copy of the op per example, their results joined. UnsupportedError where there are too many to unroll."""
    e, size = batch.e, batch.size
    if not isinstance(size, int) or not 0 < size <= LIMIT:
        raise UnsupportedError(
            f"it has no batched form, and {size} examples cannot be unrolled",
            op=op.name,
            location=ir.source_location(op),
            cure=f"map over a fixed number of examples, from 1 to {LIMIT}, or write the batched computation out",
        )
    columns: list[list[SSAValue]] = [[] for _ in op.results]
    for i in range(size):
        operands = [_example(batch, v, i) for v in ir.operands_of(op)]
        last = e.block.last_op
        for column, value in zip(columns, copy(e, op, operands, batch.fallbacks), strict=True):
            column.append(e.reshape(value, (1, *ir.shape_of(value))))
        _mark(last.next_op if last is not None else e.block.first_op, type(op))
    return [e.concat(column, 0) for column in columns]


def _mark(first: Operation | None, cls: type[Operation]) -> None:
    while first is not None:
        if isinstance(first, cls):
            first.attributes[LOOPED] = ir.Literal.of(True)
        first = first.next_op


def _example(batch: Batch, value: SSAValue, i: int) -> SSAValue:
    if not batch.is_mapped(value):
        return batch.shared(value)
    over = batch.over_all(value)
    return batch.e.reshape(batch.e.slice(over, 0, i, i + 1), ir.shape_of(over)[1:])
