"""Why each value was kept or computed again: the numbers behind a cut, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.signature import saved_sources
from isthmus.passes.partition.choose import Choose
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.network import Plan
from isthmus.passes.partition.partition import plan_partition
from isthmus.passes.partition.split import Halves
from isthmus.passes.partition.work import operations


@dataclass(frozen=True)
class Saved:
    """A value that forward hands over.

    `nbytes` is its size, `costs` what of it would not be alive anyway; `reads` and `operations` are the price of
    recomputing it from what is kept or needs no keeping: bytes read, and additions' worth of arithmetic.
    """

    name: str
    where: str
    type: str
    nbytes: int
    costs: int
    needed_by: tuple[str, ...]
    why: str
    reads: int
    operations: int


@dataclass(frozen=True)
class Recomputed:
    """A value that backward computes a second time: the bytes that this saves, and the arithmetic that it costs.

    Views and what is made from literals alone are not listed.
    """

    name: str
    where: str
    nbytes: int
    operations: int


@dataclass(frozen=True)
class Explanation:
    """What crosses from forward to backward."""

    strategy: str
    saved: tuple[Saved, ...]
    recomputed: tuple[Recomputed, ...]

    @property
    def saved_bytes(self) -> int:
        """Bytes that are kept for the backward alone."""
        return sum(s.costs for s in self.saved)

    def table(self) -> str:
        """Give the explanation as text: one line per value."""
        head = f"saved for backward ({self.strategy}): {self.saved_bytes:,} bytes beside what is alive anyway"
        rows = [("value", "bytes", "kept because", "needed by", "from")]
        rows += [(s.name, f"{s.costs:,}", s.why, ", ".join(s.needed_by), s.where) for s in self.saved]
        again = f"computed again: {len(self.recomputed)} values of {sum(r.nbytes for r in self.recomputed):,} bytes"
        rows_again = [("value", "bytes", "operations", "from")]
        rows_again += [(r.name, f"{r.nbytes:,}", f"{r.operations:,}", r.where) for r in self.recomputed]
        parts = [head, *_aligned(rows), again]
        return "\n".join([*parts, *_aligned(rows_again)] if self.recomputed else parts)


def explain_partition(
    func: FuncOp, strategy: str = "min-cut", budget: float = 1.0, choose: Choose | None = None
) -> Explanation:
    """Say what the partition of a joint function keeps and why; the function stays as it is."""
    plan, halves = plan_partition(func, strategy, budget, choose)
    name = strategy if choose is None else f"the function {getattr(choose, '__qualname__', type(choose).__name__)}"
    return explain(plan, halves, name)


def explain(plan: Plan, halves: Halves, strategy: str) -> Explanation:
    """Say why the halves are as they are."""
    joint = plan.joint
    names = _names(joint)
    work = _Work(joint, frozenset(halves.saved))
    readers = _readers(halves)
    saved = tuple(
        _saved(plan, value, source, names, readers, work)
        for value, source in zip(halves.saved, saved_sources(halves.forward), strict=True)
    )
    again = tuple(
        Recomputed(names[v], _where(v), joint.nbytes(v), operations(joint, op))
        for op in halves.recomputed
        if op.operands and not isinstance(op, prim.ViewOp)
        for v in op.results
    )
    return Explanation(strategy, saved, again)


def _saved(
    plan: Plan,
    value: SSAValue,
    source: tuple[str, int],
    names: Mapping[SSAValue, str],
    readers: Mapping[SSAValue, tuple[str, ...]],
    work: _Work,
) -> Saved:
    price = plan.prices[value]
    reads, operations = work.of(value)
    return Saved(
        names[value],
        _where(value),
        f"{ir.dtype_of(value)}[{', '.join(map(str, ir.shape_of(value)))}]",
        price.nbytes,
        0 if price.keep == 0 else price.nbytes,
        readers[value],
        _why(plan, value, source[0]),
        reads,
        operations,
    )


def _why(plan: Plan, value: SSAValue, kind: str) -> str:
    if kind == "output":
        return "alive anyway: an output"
    if isinstance(value, BlockArgument):
        if value in plan.joint.overwritten:
            return "the argument's old value, which is overwritten"
        return "alive anyway: an argument"
    op = value.owner
    if op not in plan.joint.forward_ops:
        return "backward's own, smaller than what it is computed from"
    return plan.prices[value].why_once or "smaller than what it could be recomputed from"


class _Work:
    """What it would take to compute a value again from the other values that are at hand."""

    def __init__(self, joint: Joint, kept: frozenset[SSAValue]) -> None:
        self.joint = joint
        self.kept = kept

    def of(self, value: SSAValue) -> tuple[int, int]:
        """Give bytes read and additions' worth of arithmetic; nothing for an argument."""
        if isinstance(value, BlockArgument):
            return 0, 0
        seen: set[SSAValue] = {value}
        pending, ops, reads = [value], dict[Operation, None](), 0
        while pending:
            at = pending.pop()
            if isinstance(at, BlockArgument) or (at in self.kept and at is not value):
                reads += self.joint.nbytes(at)
                continue
            op = at.owner
            assert isinstance(op, Operation)
            ops[op] = None
            fresh = [v for v in ir.operands_of(op) if v not in seen]
            seen.update(fresh)
            pending += fresh
        return reads, sum(operations(self.joint, op) for op in ops)


def _names(joint: Joint) -> dict[SSAValue, str]:
    """Call each value as the printed function does, arguments as the user does where that is known."""
    names: dict[SSAValue, str] = {}
    taken: dict[str, int] = {}
    for value in (*joint.block.args, *(r for op in joint.ops for r in op.results)):
        hint = value.name_hint or "v"
        count = taken.get(hint, 0)
        taken[hint] = count + 1
        names[value] = f"%{hint}_{count}" if count else f"%{hint}"
    for argument, role in zip(joint.block.args, joint.signature.arguments, strict=True):
        if role.source is not None:
            names[argument] = role.source
    return names


def _where(value: SSAValue) -> str:
    location = ir.source_location(value.owner) if isinstance(value.owner, Operation) else None
    return "" if location is None else str(location)


def _readers(halves: Halves) -> dict[SSAValue, tuple[str, ...]]:
    """Saved value -> the ops of backward that read it, each kind once, with the user's line where it is known."""
    if halves.backward is None:
        return {}
    arguments = halves.backward.body.block.args[: len(halves.saved)]
    users: dict[SSAValue, dict[str, None]] = {a: {} for a in arguments}
    for op in halves.backward.body.block.ops:
        for operand in ir.operands_of(op):
            if operand in users:
                location = ir.source_location(op)
                kind = op.name.rpartition(".")[2]
                users[operand][f"{kind} ({location})" if location else kind] = None
    return {v: tuple(users[a]) for v, a in zip(halves.saved, arguments, strict=True)}


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
