"""What is written to memory when a list of ops runs in fused kernels, and the most that is held at once.

An approximation of what fusion does. Kernels form levels: one that reads what a contraction, a library call or a
reduction over rows gives comes after it. A pointwise value stays inside its kernel when all its readers are pointwise
(or reductions within a row) on the same level. A view is never written: its readers read its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import literals_of
from isthmus.passes.partition.recompute import is_pointwise


def written(ops: Sequence[Operation], results: Iterable[SSAValue]) -> frozenset[SSAValue]:
    """Give the values that the ops write, in program order, when `results` are wanted."""
    level, wanted = _kernel_levels(ops), frozenset(results)
    found: set[SSAValue] = set(wanted)
    for op in reversed(ops):
        if isinstance(op, prim.ViewOp):
            from_memory = op.y in found
            if op.y not in wanted:
                found.discard(op.y)
        else:
            from_memory = not (is_pointwise(op) or _stays_in_row(op))
            found.update(op.results if not is_pointwise(op) else ())
        own = level[op.results[0]]
        found.update(v for v in ir.operands_of(op) if from_memory or level.get(v, 0) < own)
    return frozenset(found)


def _kernel_levels(ops: Sequence[Operation]) -> dict[SSAValue, int]:
    level: dict[SSAValue, int] = {}
    for op in ops:
        own = max((level.get(v, 0) for v in ir.operands_of(op)), default=0)
        own += not (is_pointwise(op) or _stays_in_row(op))
        level.update(dict.fromkeys(op.results, own))
    return level


def _stays_in_row(op: Operation) -> bool:
    """Tell whether an op reduces trailing dimensions only, so that a kernel goes on with the result at once."""
    if not isinstance(op, (prim.ReduceOp, prim.MomentsOp)):
        return isinstance(op, (prim.SoftmaxOp, prim.LogSoftmaxOp, prim.CrossEntropyOp))
    dims, rank = literals_of(op)["dims"], len(ir.shape_of(op.x))
    return isinstance(dims, tuple) and len(dims) < rank and dims == tuple(range(rank - len(dims), rank))


def peak(func: FuncOp, held: Sequence[SSAValue], nbytes: Callable[[SSAValue], int]) -> int:
    """Give the most bytes that a function holds at once, besides what its caller holds anyway.

    `held` are the arguments that go when they were read for the last time. Results count from where they are made.
    """
    *ops, last_op = func.body.block.ops
    returned = ir.operands_of(last_op)
    stored = written(ops, returned)
    last: dict[SSAValue, int] = dict.fromkeys(returned, len(ops))
    for at in range(len(ops) - 1, -1, -1):  # who reads something inside a kernel or as a view reads its sources
        op = ops[at]
        ends = [last.get(r, at) for r in op.results if r not in stored]
        for operand in ir.operands_of(op):
            last[operand] = max([last.get(operand, at), at, *ends])
    size = {v: nbytes(v) for v in (*held, *(r for op in ops for r in op.results if r in stored))}
    gone: dict[int, int] = {}
    for value, amount in size.items():
        gone[last.get(value, -1)] = gone.get(last.get(value, -1), 0) + amount
    alive = most = sum(size[v] for v in dict.fromkeys(held)) - gone.get(-1, 0)
    for at, op in enumerate(ops):
        alive += sum(size.get(r, 0) for r in op.results)
        most = max(most, alive)
        alive -= gone.get(at, 0)
    return most
