"""Matching a pattern, itself a function of calls on values, against the calls of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, OpResult, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import aten
from isthmus.ir import LiteralValue, Operand

COMMUTATIVE = frozenset(
    ("add.Tensor", "mul.Tensor", "maximum.default", "minimum.default", "eq.Tensor", "ne.Tensor", "logical_and.default")
)
"""Overloads whose first two arguments may change places (add: where alpha is 1)."""


@dataclass(frozen=True)
class Pattern:
    """A function whose only result is made by a call; its arguments stand for any values."""

    func: FuncOp

    @property
    def root(self) -> aten.CallOp:
        """The call that makes the result; CompileError for patterns of another form."""
        last = self.func.body.block.last_op
        returned = () if last is None else ir.operands_of(last)
        if len(returned) != 1 or not isinstance(returned[0], OpResult):
            raise CompileError("a pattern gives one tensor that it computes")
        strange = [op.name for op in self.func.body.block.ops if op is not last and not isinstance(op, aten.CallOp)]
        root = returned[0].owner
        if strange or not isinstance(root, aten.CallOp):
            raise CompileError(f"a pattern is made of calls, not of {', '.join(strange) or root.name}")
        unused = [a.index for a in self.func.body.block.args if a.first_use is None]
        if unused:
            raise CompileError(f"the pattern does not use its argument {unused[0]}")
        return root

    def match(self, op: aten.CallOp) -> tuple[list[SSAValue], list[aten.CallOp]] | None:
        """Give what the arguments stand for and the calls matched, or None."""
        root = self.root
        for bound in _calls(root, op, _Bound({}, ())):
            return [bound.values[a] for a in self.func.body.block.args], list(bound.calls)
        return None


@dataclass(frozen=True)
class _Bound:
    values: dict[SSAValue, SSAValue]
    calls: tuple[aten.CallOp, ...]


def functional_name(overload: str) -> str:
    """Give `add.Tensor` for `add_.Tensor`: on values they mean the same."""
    name, _, variant = overload.rpartition(".")
    in_place = name.endswith("_") and not name.endswith("__")
    return f"{name[:-1]}.{variant}" if in_place else overload


def _calls(pattern: aten.CallOp, op: aten.CallOp, bound: _Bound) -> Iterator[_Bound]:
    """Give the ways in which a call is what the pattern's call says, as extensions of what is bound."""
    name = functional_name(op.overload)
    if name != functional_name(pattern.overload) or len(op.results) != len(pattern.results):
        return
    if len(op.args) != len(pattern.args):
        return
    extended = _Bound(bound.values, (*bound.calls, op))
    yield from _all(pattern, op, pattern.args, op.args, extended)
    alpha = op.args[2:3]
    if name in COMMUTATIVE and alpha in ((), (1,)):
        swapped = (op.args[1], op.args[0], *op.args[2:])
        yield from _all(pattern, op, pattern.args, swapped, extended)


def _all(
    pattern: aten.CallOp, op: aten.CallOp, wanted: Sequence[LiteralValue], given: Sequence[LiteralValue], bound: _Bound
) -> Iterator[_Bound]:
    if not wanted:
        yield bound
        return
    for first in _argument(pattern, op, wanted[0], given[0], bound):
        yield from _all(pattern, op, wanted[1:], given[1:], first)


def _argument(
    pattern: aten.CallOp, op: aten.CallOp, wanted: LiteralValue, given: LiteralValue, bound: _Bound
) -> Iterator[_Bound]:
    if isinstance(wanted, Operand):
        if isinstance(given, Operand):
            yield from _value(ir.operands_of(pattern)[wanted.index], ir.operands_of(op)[given.index], bound)
    elif isinstance(wanted, tuple) and isinstance(given, tuple):
        if len(wanted) == len(given):
            parts = cast("tuple[LiteralValue, ...]", wanted), cast("tuple[LiteralValue, ...]", given)
            yield from _all(pattern, op, *parts, bound)
    elif type(wanted) is type(given) and wanted == given:
        yield bound


def _value(wanted: SSAValue, given: SSAValue, bound: _Bound) -> Iterator[_Bound]:
    known = bound.values.get(wanted)
    if known is not None:
        if known is given:
            yield bound
        return
    if isinstance(wanted, BlockArgument):
        yield _Bound({**bound.values, wanted: given}, bound.calls)
        return
    inner, owner = wanted.owner, given.owner
    if not (isinstance(inner, aten.CallOp) and isinstance(owner, aten.CallOp)):
        return
    assert isinstance(wanted, OpResult) and isinstance(given, OpResult)
    if wanted.index == given.index:
        for found in _calls(inner, owner, bound):
            yield _Bound({**found.values, wanted: given}, found.calls)
