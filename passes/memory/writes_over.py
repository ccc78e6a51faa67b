"""Whether a kernel may write a result over an operand: nothing is read there after it has been written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel


@dataclass(frozen=True)
class Access:
    """The loads of each operand of a kernel, what writes each result, and in which walk over the row all that is."""

    levels: Mapping[Operation, int]
    loads: Mapping[SSAValue, list[kernel.LoadOp]]
    sinks: Mapping[int, list[kernel.StoreOp | kernel.AccumulateOp]]
    varying: Mapping[SSAValue, frozenset[int]]

    @staticmethod
    def of(op: kernel.FusedOp) -> Access:
        """Look at the body once."""
        loads: dict[SSAValue, list[kernel.LoadOp]] = {}
        sinks: dict[int, list[kernel.StoreOp | kernel.AccumulateOp]] = {}
        for inner in op.block.ops:
            if isinstance(inner, kernel.LoadOp):
                loads.setdefault(op.inputs[cast(int, inner.operand.data)], []).append(inner)
            elif isinstance(inner, kernel.StoreOp | kernel.AccumulateOp):
                sinks.setdefault(cast(int, inner.result.data), []).append(inner)
        return Access(kernel.levels(op), loads, sinks, kernel.varying(op))


def reads_where_it_writes(op: kernel.FusedOp, result: int, target: SSAValue, access: Access) -> bool:
    """Whether every read of `target` is at the place that the result is then written to, and in no later walk."""
    levels = access.levels
    sinks = access.sinks.get(result, [])
    if len(sinks) != 1 or not isinstance(sinks[0], kernel.StoreOp):
        return False
    store = sinks[0]
    if store.kind is not None:
        return op.inputs[cast(int, op.initial_[result])] is target and target not in access.loads
    every = frozenset(d for d, s in enumerate(op.sizes_) if s != 1)
    for load in access.loads.get(target, []):
        if load.map is not store.map or load.index_values:
            return False
        if load.map.dims() != every and not _once_per_point(op, load, every, access.varying):
            return False
        reached = _reached(load)
        last = max(levels[inner] for inner in reached)  # the last walk in which it may be executed again
        if store not in reached or last > levels[store]:
            return False  # where the store waits for the load, nobody moves one past the other
    return True


def _once_per_point(
    op: kernel.FusedOp, load: kernel.LoadOp, every: frozenset[int], varying: Mapping[SSAValue, frozenset[int]]
) -> bool:
    """Whether a load is of one parallel point's own element, and nothing computed from it belongs to a walk."""
    rows = frozenset(op.rows)
    if load.map.dims() != every - rows:
        return False
    reached = {load.y}
    for inner in op.block.ops:
        if not reached.isdisjoint(ir.operands_of(inner)):
            reached.update(inner.results)
            if any([not rows.isdisjoint(varying[v]) for v in ir.operands_of(inner)]):
                return False
            map_ = inner.properties.get("map")
            if isinstance(map_, kernel.Map) and not rows.isdisjoint(map_.dims()):
                return False
    return True


def _reached(load: kernel.LoadOp) -> set[Operation]:
    """A load, and what is computed from it without a reduction between."""
    reached: set[Operation] = {load}
    waiting: list[Operation] = [load]
    while waiting:
        for result in waiting.pop().results:
            for use in result.uses:
                user = use.operation
                if user not in reached:
                    reached.add(user)
                    if not isinstance(user, kernel.ReduceOp):
                        waiting.append(user)
    return reached
