"""The least recomputation under a budget of memory: a mixed-integer program, solved by HiGHS through scipy.

For each value v that backward may need, S_v says that it is saved; for each op o that makes some, R_o that backward
runs it (again). What is wanted is saved or computed, and what is computed has its operands:

    minimise   Σ time_o R_o          over the ops that forward runs as well
    subject to S_v + R_op(v) >= 1    for v that tangents meet
               R_o <= S_u + R_op(u)  for each operand u of o
               Σ bytes_v S_v <= saved bytes

The budget is one of the peak: the most that backward holds at once. The bound on saved bytes is searched for: saving
less lowers the peak until much of forward has to be computed, and held, at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import prim
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.memory import peak
from isthmus.passes.partition.network import Plan, leading_to, plan_min_cut, price_values
from isthmus.passes.partition.recompute import NEVER, tag_of
from isthmus.passes.partition.split import Halves, split
from isthmus.passes.partition.work import time

NODES = 20
"""After so many linear relaxations a solution that is not proven best is taken, with its gap: the same on every
machine, however busy. Of a GPT's searches most end at the first; 20 take about as long as 2 busy seconds did."""

SECONDS = 120.0
"""No search takes longer, though what it gives then depends on the machine."""

GAP = 0.01
"""How far from proven best a solution may be."""

GRID = 12
"""How many bounds on saved bytes are tried: the peak does not fall with them everywhere."""

ROUNDS = 4
"""How often the step between the best of these and the next one is halved."""


@dataclass(frozen=True)
class Point:
    """One way to cut: bytes saved, peak bytes of backward, time of recomputing, and how far from proven best it is."""

    plan: Plan
    saved: int
    peak: int
    time: int
    gap: float


def plan_optimal(joint: Joint, budget: float) -> Plan:
    """Recompute as little as possible while backward holds at most `budget` bytes at once beside what is alive anyway.

    A budget of at most 1 is a fraction of the peak of `min-cut`. Where no cut keeps to it, the one of the lowest peak
    that was found is taken.
    """
    if budget < 0:
        raise IRError(f"a memory budget must not be negative, not {budget}")
    program = _Program(joint)
    cheapest = measure(plan_min_cut(joint), 0.0)
    limit = cheapest.peak * budget if budget <= 1 else budget
    most = min(program.all_bytes, int(limit))
    found = {bound: program.solve(bound) for bound in (most * k // GRID for k in range(GRID + 1))}
    within = [bound for bound, point in found.items() if point.peak <= limit]
    if within:
        low = max(within)
        high = min((bound for bound in found if bound > low), default=low)
        for _ in range(ROUNDS):
            middle = (low + high) // 2
            found[middle] = program.solve(middle)
            low, high = (middle, high) if found[middle].peak <= limit else (low, middle)
    return _choose([cheapest, *found.values()], limit).plan


def pareto(joint: Joint, count: int = 8) -> tuple[Point, ...]:
    """Give cuts from least saved to least recomputed, none of which is worse than another in peak and in time."""
    program = _Program(joint)
    points = [program.solve(program.all_bytes * k // (count - 1)) for k in range(count)]
    points.append(measure(plan_min_cut(joint), 0.0))
    kept = [p for p in points if not any(q.peak <= p.peak and q.time <= p.time and _better(q, p) for q in points)]
    unique = {(p.peak, p.time): p for p in sorted(kept, key=lambda p: -p.saved)}
    return tuple(sorted(unique.values(), key=lambda p: (p.peak, p.time)))


def _better(a: Point, b: Point) -> bool:
    return a.peak < b.peak or a.time < b.time


def measure(plan: Plan, gap: float) -> Point:
    """Build the halves of a plan and look at them."""
    halves = split(plan.joint, plan.kept)
    own = [v for v in halves.saved if plan.prices[v].keep != 0]
    again = sum(time(plan.joint, op) for op in halves.recomputed)
    return Point(plan, sum(map(plan.joint.nbytes, own)), _peak(plan, halves), again, gap)


def _peak(plan: Plan, halves: Halves) -> int:
    if halves.backward is None:
        return 0
    arguments = halves.backward.body.block.args[: len(halves.saved)]
    held = [a for a, v in zip(arguments, halves.saved, strict=True) if plan.prices[v].keep != 0]
    return peak(halves.backward, held, plan.joint.nbytes)


def _choose(points: Iterable[Point], limit: float) -> Point:
    """The least time among those within the limit, then the lowest peak; else the lowest peak of all."""
    within = [p for p in points if p.peak <= limit]
    if within:
        return min(within, key=lambda p: (p.time, p.peak, p.saved))
    return min(points, key=lambda p: (p.peak, p.time))


class _Program:
    """The mixed-integer program of a joint function; columns are the values, then the ops."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.priced = price_values(joint)
        wanted = [v for v in joint.wanted_by_tangents() if _matters(v)]
        values = [v for v in leading_to(wanted, joint) if _matters(v)]
        self.values = values
        ops = list(dict.fromkeys(v.owner for v in values if isinstance(v.owner, Operation)))
        self.column: dict[SSAValue | Operation, int] = {x: i for i, x in enumerate((*values, *ops))}
        self.bytes = np.array([0 if self.priced.prices[v].keep == 0 else joint.nbytes(v) for v in values], float)
        self.all_bytes = int(self.bytes.sum())
        again = [time(joint, op) if op in joint.forward_ops else 0 for op in ops]
        # Among equals the fewer bytes; the sum of all stays below one unit of time.
        self.cost = np.concatenate([self.bytes / (1 + 2 * self.bytes.sum()), np.array(again, float)])
        self.upper = np.array([self._may_be_saved(v) for v in values] + [_may_run(joint, op) for op in ops], float)
        self.rows: list[list[tuple[int, int]]] = [self._available(v) for v in wanted]
        self.at_least = [1] * len(wanted)
        for op in ops:
            for operand in filter(_matters, dict.fromkeys(ir.operands_of(op))):
                self.rows.append([*self._available(operand), (self.column[op], -1)])
                self.at_least.append(0)

    def solve(self, saved_bytes: int) -> Point:
        """Give the best cut that saves at most so many bytes; where there is none, the one that saves the fewest."""
        joint, count = self.joint, len(self.cost)
        entries = [(r, c, k) for r, row in enumerate(self.rows) for c, k in row]
        rows, columns, factors = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = csr_array((factors, (rows, columns)), shape=(len(self.rows), count))
        constraints = [LinearConstraint(matrix, lb=np.array(self.at_least, float))]  # pyright: ignore[reportArgumentType]
        budget = np.concatenate([self.bytes, np.zeros(count - len(self.bytes))])
        capped = LinearConstraint(csr_array(budget[None]), ub=float(saved_bytes))
        options = {"node_limit": NODES, "time_limit": SECONDS, "mip_rel_gap": GAP}
        bounds = Bounds(np.zeros(count), self.upper)  # pyright: ignore[reportArgumentType] (scipy takes arrays)
        whole = np.ones(count)
        found = milp(self.cost, integrality=whole, bounds=bounds, constraints=[*constraints, capped], options=options)
        if found.x is None:  # the fewest bytes that are possible at all
            fewest = budget + self.cost / (1 + 2 * self.cost.sum())
            found = milp(fewest, integrality=whole, bounds=bounds, constraints=constraints, options=options)
        if found.x is None:
            raise IRError(f"no cut was found in {NODES} steps of the search", cure="use strategy=min-cut")
        kept = tuple(v for v in self.values if found.x[self.column[v]] > 0.5)
        return measure(replace(self.priced, joint=joint, kept=kept), float(found.mip_gap or 0.0))

    def _available(self, value: SSAValue) -> list[tuple[int, int]]:
        """The columns of which one must be 1 for backward to have the value."""
        columns = [(self.column[value], 1)]
        if isinstance(value.owner, Operation):
            columns.append((self.column[value.owner], 1))
        return columns

    def _may_be_saved(self, value: SSAValue) -> bool:
        return self.priced.prices[value].keep is not None


def _may_run(joint: Joint, op: Operation) -> bool:
    """Only what runs once in any case, and what a policy wants to keep, must not run again under a budget."""
    return op not in joint.forward_ops or not (isinstance(op, NEVER) or tag_of(op) in ("must_save", "prefer_save"))


def _matters(value: SSAValue) -> bool:
    return not isinstance(value.type, IndexType) and not isinstance(value.owner, prim.SourceOp)
