"""Decisions about each kernel's loops, from its sizes alone: what becomes vectors, how work is cut, what rows keep.

Before:
    %y = kernel.fused %x {sizes = [2048, 1024], classes = ["parallel", "row"]} ({...})
After:
    %y = kernel.fused %x {sizes = [2048, 1024], classes = ["parallel", "row"], partitions = 64, vector = 1, width = 16,
                          unroll = 2} ({...})
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import CPU, Prices
from isthmus.passes.memory.ahead import read_ahead
from isthmus.passes.memory.attention_schedule import schedule_attention
from isthmus.passes.memory.contract_schedule import schedule_contraction
from isthmus.passes.memory.stages import cut_in_stages
from isthmus.sizes import Dim, Size

SHORT_ROW = 16
"""Pointwise kernels walk their last dim as a row where it is at least this long."""

MANY_POINTS = 1 << 12
"""Code for two vectors takes twice as long to compile: not for fewer points than this."""

_touches = ir.one_of(kernel.LoadOp, kernel.SinkOp)
_runs = ir.one_of(kernel.CumulativeOp)
_stores = ir.one_of(kernel.StoreOp)
_sums = ir.one_of(kernel.ReduceOp, kernel.AccumulateOp)
_computes = ir.one_of(prim.PrimOp)
_is_plain = ir.one_of(kernel.LoadOp, kernel.StoreOp, kernel.IndexOp)
_is_there_later = ir.one_of(kernel.ReduceOp, kernel.LoadOp)


@dataclass(frozen=True)
class SchedulePass(ModulePass):
    """Needs: kernels. Leaves: kernels with partitions, vector, width, unroll and residence."""

    name = "schedule"

    vector_bits: int = 512
    """Bits of the vectors that arithmetic uses."""

    tile_bits: int = 256
    """Bits of the vector registers that contractions keep their sums in: 512, 256 or 128."""

    cores: int = 8
    """Cores that contractions are cut for."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Schedule every kernel of the module."""
        for func in ir.functions(op).values():
            prices = Prices.of(func)
            for launch in kernel.launches(func):
                if isinstance(launch, kernel.FusedOp):
                    schedule(launch, self.vector_bits, prices)
                elif isinstance(launch, kernel.ContractOp):
                    schedule_contraction(launch, self.tile_bits, self.cores, prices)
                elif isinstance(launch, kernel.StreamOp):
                    schedule_attention(launch, self.tile_bits, self.cores)


def schedule(op: kernel.FusedOp, vector_bits: int, prices: Prices = CPU) -> None:
    """Write the decisions about one kernel."""
    _walk_rows(op)
    set_ = op.properties.__setitem__
    if op.partitions is None:
        count = _partitions(op, prices)
        set_("partitions", Literal.of(count))
        if isinstance(count, Size):
            set_("symbols", Literal.of(tuple(sorted(count.symbols().union(op.symbols_)))))
    width = _width(op, vector_bits)
    vector = _vector(op, width)
    wide = _is_long_chain(op, vector, prices)
    if vector is not None:
        set_("vector", Literal.of(vector))
        set_("width", Literal.of(2 * width if wide else width))
        set_("unroll", Literal.of(1 if cut_in_stages(op, prices) or wide else _unroll(op, prices)))
        read_ahead(op, prices)
    _choose_residence(op, prices)


def _unroll(op: kernel.FusedOp, prices: Prices) -> int:
    """Vectors at once: what hides the latency of the sums, or of the arithmetic where the body is short.

    Every copy costs compile time; of a long body one vector has work enough for all units.
    """
    work = sum(prices.additions(o, 0.0) for o in op.block.ops)
    reduces = any(_sums(o) for o in op.block.ops)
    return (4 if reduces else 2) // (2 if work >= prices.long_body else 1)


def _is_long_chain(op: kernel.FusedOp, vector: int | None, prices: Prices) -> bool:
    """Whether a body of arithmetic alone, over many points, is little more than a long chain of values.

    What lanes share does not count, sums along the vector among it: chains are those between them.
    """
    if cost.numeric(kernel.points(op)) < MANY_POINTS and not op.rows:
        return False
    work, ready = 0.0, dict[SSAValue, float]()
    varying = kernel.varying(op)
    for inner in op.block.ops:
        if inner.results and not any(vector in varying[r] for r in inner.results):
            continue
        before = max([ready.get(v, 0.0) for v in ir.operands_of(inner)], default=0.0)
        if _computes(inner):
            own = prices.additions(inner)
            if own >= prices.longest_function:
                return False
            work, before = work + own, before + own
        elif not _is_plain(inner):
            return False
        ready.update(dict.fromkeys(inner.results, before))
    longest = max(ready.values(), default=0.0)
    return longest >= prices.long_chain and work <= prices.wide_body * longest


def _walk_rows(op: kernel.FusedOp) -> None:
    """The last parallel dim of a pointwise kernel becomes a row: one inner loop in place of an odometer."""
    if op.rows or len(op.parallel) < 2:
        return
    last = op.sizes_[-1]
    outer = cost.numeric(kernel.points(op)) // max(cost.numeric(last), 1)
    if cost.numeric(last) >= SHORT_ROW and outer >= 4 and op.initial is None:
        op.properties["classes"] = Literal.of((*op.classes_[:-1], "row"))


def moved_bytes(op: kernel.FusedOp) -> Dim:
    """Give the bytes that a kernel reads and writes, each buffer once."""
    total: Dim = 0
    for value in (*op.inputs, *op.results):
        total = total + ir.nbytes(value)
    return total


def _partitions(op: kernel.FusedOp, prices: Prices) -> Dim:
    return cost.symbolic_partitions(kernel.points(op), moved_bytes(op), prices)


def _vector(op: kernel.FusedOp, width: int) -> int | None:
    """The dim along which most bytes are neighbours: the last row dim or the last parallel one.

    Of a dim shorter than a vector (the window of a pooling) only so many lanes work; where it is a row, every point
    pays for a reduction over lanes besides.
    """
    candidates = [dims[-1] for dims in (op.rows, op.parallel) if dims]
    if any(_runs(o) and not o.in_any_order for o in op.block.ops):
        candidates = [d for d in candidates if d not in op.rows]
    scatters = any(_stores(o) and o.kind is not None for o in op.block.ops)
    if scatters:
        candidates = [d for d in candidates if d not in op.rows]
    best, most = None, 0.0
    for d in candidates:
        filled = min(1.0, cost.numeric(op.sizes_[d]) / width)
        near = neighbouring_bytes(op, d) * filled * (filled if d in op.rows else 1.0)
        if near > most:
            best, most = d, near
    return best


def neighbouring_bytes(op: kernel.FusedOp, d: int) -> int:
    """Give the bytes of accesses whose neighbours along a dim are neighbours in memory."""
    total = 0
    extents = [cost.numeric(size) for size in op.sizes_]
    for access in op.block.ops if extents[d] >= 2 else ():
        if not _touches(access):
            continue
        (linear,) = kernel.linear_map(op, access).data
        if linear.coefficient(d) == 1:
            total += math.prod([extents[k] for k in linear.dims()]) * ir.itemsize(_stored_dtype(op, access))
    return total


def _stored_dtype(op: kernel.FusedOp, access: kernel.LoadOp | kernel.SinkOp) -> str:
    if isinstance(access, kernel.LoadOp):
        return ir.dtype_of(access.results[0])
    return ir.dtype_of(kernel.result_of(op, access))


def _width(op: kernel.FusedOp, vector_bits: int) -> int:
    """Lanes: a vector of the widest float that is computed with, else of the widest integer that is stored."""
    dtypes = {ir.dtype_of(r) for o in op.block.ops for r in o.results}
    floats = [32 if d in ("bf16", "f16") else 8 * ir.itemsize(d) for d in dtypes if ir.is_float(d)]
    floats += [4 * ir.itemsize(d) for d in dtypes if ir.is_complex(d)]
    stored = [8 * ir.itemsize(ir.dtype_of(r)) for r in op.results]
    return vector_bits // max(floats or stored)


# ---- residence


def _choose_residence(op: kernel.FusedOp, prices: Prices) -> None:
    """Mark row values that later walks use and that are dear to compute again, or are stored anyway."""
    levels = kernel.levels(op)
    if max(levels.values(), default=0) == 0:
        return
    varying = kernel.varying(op)
    rows = frozenset(op.rows)
    stored = {o.x for o in op.block.ops if isinstance(o, kernel.StoreOp) and o.kind is None and not o.index_values}
    paid: dict[SSAValue, float] = {}
    for inner in op.block.ops:
        later = {levels[use.operation] for r in inner.results for use in r.uses} - {levels[inner]}
        for result in inner.results:
            paid[result] = price(inner, result, varying, rows, paid, prices)
        if _is_there_later(inner) or not later or not inner.results:
            continue
        result = inner.results[0]
        if not varying[result] & rows:
            continue
        if result in stored:
            inner.attributes["residence"] = Literal.of("reload")
            paid[result] = 1.0
        elif paid[result] >= prices.keep:
            inner.attributes["residence"] = Literal.of("keep")
            paid[result] = 1.0


def price(
    op: Operation,
    result: SSAValue,
    varying: dict[SSAValue, frozenset[int]],
    rows: frozenset[int],
    paid: dict[SSAValue, float],
    prices: Prices,
) -> float:
    """What computing a value once more at a row position costs; what is the same along the row is free.

    `paid`: what its operands cost.
    """
    if not varying[result] & rows or isinstance(op, kernel.ReduceOp):
        return 0.0
    own = prices.additions_of(prim.RngOp) if isinstance(op, kernel.RngOp) else prices.additions(op)
    return own + sum(paid[v] for v in ir.operands_of(op))


__all__ = ["SchedulePass", "cast", "moved_bytes", "schedule"]
