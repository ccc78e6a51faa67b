"""Decisions about each kernel's launch on a GPU, from its sizes alone: who walks what, how wide, what stays where.

Before:
    %y = kernel.fused %x {sizes = [8192, 1024], classes = ["parallel", "row"]} ({...})
After:
    %y = kernel.fused %x {sizes = [8192, 1024], classes = ["parallel", "row"], partitions = 8192, vector = 1, width = 4,
                          unroll = 2, threads = 128, group = 32, chunk = 1} ({...})
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.memory.accuracy_gpu import mark_accuracy
from isthmus.passes.memory.contract_schedule_gpu import schedule_contraction
from isthmus.passes.memory.residence_gpu import keep_rows, read_ahead
from isthmus.passes.memory.schedule import neighbouring_bytes
from isthmus.sizes import Dim, Size

WARP = 32
ACCESS_BYTES = 16
"""What one thread reads or writes at once."""
MOST_THREADS = 1024
POINTWISE_THREADS = 256
BUSY_THREADS = 1 << 15
"""So many threads keep a GPU busy."""
FEW_THREADS = 1 << 11
"""Fewer threads than this, which compute much, had rather be more."""
STEPS = 4
"""Steps in which a block walks a row: enough reads in flight, few enough registers."""
FEW_BLOCKS = 1024
"""Blocks that fill a GPU, and start in two microseconds."""
LONG_SCATTER = 64
"""A scatter's row of so many positions is walked by several threads."""
MOST_OWNERS, ROWS_OF_OWNER = 256, 32
"""Threads that walk one row of a scatter at most; positions that are worth one more of them, beyond the first 64."""
INDICES = 16
"""Indices of a scatter that are read at once."""
LONG_ROW = 256
"""Vectors of the last row dim that are enough for a block."""
FEWEST_SHARED = 32
"""A row of so many positions is worth sharing out among warps."""
LIGHT_BODY = 40
"""A body of so many values keeps a thread within 32 registers."""
WARP_STEPS = 8
"""A row of up to so many steps is walked by one warp, which needs no barrier."""


@dataclass(frozen=True)
class ScheduleGpuPass(ModulePass):
    """Needs: kernels. Leaves: kernels with partitions, vector, width, unroll, threads, group, chunk and residence;
    contractions with tile, grid and partitions."""

    name = "schedule-gpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Schedule every kernel of the module."""
        for func in ir.functions(op).values():
            for launch in kernel.launches(func):
                if isinstance(launch, kernel.FusedOp):
                    schedule(launch)
                elif isinstance(launch, kernel.ContractOp):
                    schedule_contraction(launch)


def schedule(op: kernel.FusedOp) -> None:
    """Write the decisions about one kernel."""
    mark_accuracy(op)
    sums = [o for o in op.block.ops if isinstance(o, kernel.AccumulateOp)]
    spread = _spread(op, sums)
    if spread is not None:
        op.properties["vector"] = Literal.of(spread)
    if op.unless_one is not None and _walk_often(op, spread):
        return
    if sums and not _can_share(op, sums, spread):
        _one_thread_each(op)
    elif not sums and _sums_columns(op):
        _walk_columns(op)
    elif spread is not None and spread in op.rows:
        _walk_together(op, spread, sums)
    else:
        _walk_apart(op, spread, sums)


def _write(op: kernel.FusedOp, **decisions: Dim | None) -> None:
    for name, value in decisions.items():
        if value is not None:
            op.properties[name] = Literal.of(value)
    count = op.partitions_
    if isinstance(count, Size):
        op.properties["symbols"] = Literal.of(tuple(sorted(count.symbols().union(op.symbols_))))


# ---- which dim threads share out


def _spread(op: kernel.FusedOp, sums: list[kernel.AccumulateOp]) -> int | None:
    """The last row dim, walked by a group together, or the last parallel one: threads have points of their own."""
    row = op.rows[-1] if op.rows else None
    points = op.parallel[-1] if op.parallel else None
    if row is None or _is_in_order(op):
        return points
    if points is None or any(_map(s).dims() for s in sums):
        return row
    if cost.numeric(kernel.points(op)) >= BUSY_THREADS and neighbouring_bytes(op, points) > neighbouring_bytes(op, row):
        return points
    return row if _extent(op, op.rows) > 2 else points


def _is_in_order(op: kernel.FusedOp) -> bool:
    """Whether rows must be walked position by position: running combinations and scatters."""
    return any(
        isinstance(o, kernel.CumulativeOp) or (isinstance(o, kernel.StoreOp) and (o.kind is not None or o.index_values))
        for o in op.block.ops
    )


def _map(op: kernel.AccumulateOp) -> kernel.Map:
    return cast(kernel.Map, op.properties["map"])


def _can_share(op: kernel.FusedOp, sums: list[kernel.AccumulateOp], spread: int | None) -> bool:
    """Whether the threads of a group can take part in all sums over points."""
    for one in sums:
        dims = _map(one).dims()
        if dims and spread not in op.rows:
            return False
        if spread in dims and not _map(one).separates(frozenset({spread}), op.sizes_):
            return False
    return True


def _is_flat(op: kernel.FusedOp, width: int, sums: list[kernel.AccumulateOp]) -> bool:
    """Whether threads share out all row dims as one: where the last one alone is short, and sums keep their places."""
    last, rows = op.sizes_[op.rows[-1]], frozenset(op.rows)
    if len(op.rows) < 2 or not all(isinstance(op.sizes_[d], int) for d in op.rows):
        return False
    maps = [_map(one) for one in sums]
    kept = all(not m.dims() or (rows <= m.dims() and m.separates(rows, op.sizes_)) for m in maps)
    return kept and cost.numeric(last) // width < LONG_ROW


# ---- width


def _width(op: kernel.FusedOp, spread: int | None, within: Dim) -> int:
    """Neighbours of one thread: 16 bytes of the widest element of whole tensors, as far as they divide `within`."""
    if spread is None:
        return 1
    near: dict[int, list[int]] = {}
    for access in op.block.ops:
        if isinstance(access, (kernel.LoadOp, kernel.SinkOp)):
            (linear,) = kernel.linear_map(op, access).data
            if linear.coefficient(spread) == 1 and not isinstance(access, kernel.AccumulateOp):
                near.setdefault(len(linear.dims()), []).append(ir.itemsize(_dtype(op, access)))
    if not near:
        return 1
    width = max(1, ACCESS_BYTES // max(near[max(near)]))
    return gcd(width, factor(within)) if within != 0 else width


def _dtype(op: kernel.FusedOp, access: kernel.LoadOp | kernel.SinkOp) -> str:
    return ir.dtype_of(access.y if isinstance(access, kernel.LoadOp) else kernel.result_of(op, access))


def factor(dim: Dim) -> int:
    """Give the largest number that is known to divide a size."""
    if isinstance(dim, int):
        return abs(dim)
    return gcd(*(coefficient for _, coefficient in dim.terms))


# ---- the three ways


def _walk_apart(op: kernel.FusedOp, spread: int | None, sums: list[kernel.AccumulateOp]) -> None:
    """Threads have points of their own; whole blocks take chunks of them, or partitions where sums are made."""
    points = kernel.points(op)
    many = cost.numeric(points)
    last = op.sizes_[spread] if spread is not None else 1
    width = _width(op, spread, 0 if len(op.parallel) == 1 else last)
    if _is_in_order(op) or many // width < (BUSY_THREADS if op.rows else FEW_THREADS if _is_heavy(op) else 0):
        width = 1
    threads = POINTWISE_THREADS
    while threads > WARP and many // width < threads:
        threads //= 2
    if sums:
        count = op.partitions_
        known = isinstance(points, int) and isinstance(count, int) and points % count == 0
        per_partition = cast(int, points) // cast(int, count) if known else 1
        _write(op, width=max(gcd(width, per_partition), 1), unroll=4, threads=threads, group=threads)
        return
    owners = _owners(op, many)
    if owners > 1:
        width = _width(op, spread, last)
        threads = max(WARP, gcd(factor(points) // width, POINTWISE_THREADS))  # whole chunks: a row is walked once
        _write(op, owners=owners)
    copies = (INDICES if owners > 1 else 4) if op.rows else _copies(op, many // width)
    chunk = threads * width * (1 if op.rows else copies)
    count = (points + (chunk - 1)) // chunk * owners
    _write(op, partitions=count, width=width, unroll=copies, threads=threads, group=threads, chunk=chunk)


def _walk_often(op: kernel.FusedOp, spread: int | None) -> bool:
    """What mostly leaves everything as it is takes few blocks, each of which does much where it does anything."""
    points = kernel.points(op)
    width = _width(op, spread, 0 if len(op.parallel) == 1 or spread is None else op.sizes_[spread])
    count = gcd(factor(points) // width, FEW_BLOCKS)
    if count < FEW_BLOCKS // 8 or cost.numeric(points) // width < count * POINTWISE_THREADS:
        return False
    _write(op, partitions=count, width=width, unroll=4, threads=POINTWISE_THREADS, group=POINTWISE_THREADS)
    return True


def _owners(op: kernel.FusedOp, points: int) -> int:
    """Threads of one point of a scatter: where points are few and rows long, each has places of its own."""
    sinks = [o for o in op.block.ops if isinstance(o, (kernel.SinkOp, kernel.ReduceOp, kernel.CumulativeOp))]
    indices = {o.index_values[0] for o in sinks if isinstance(o, kernel.StoreOp) and o.index_values}
    scatter = len(indices) == 1 and all(isinstance(o, kernel.StoreOp) and o.index_values for o in sinks)
    if not scatter or not op.rows or _extent(op, op.rows) < LONG_SCATTER or points == 0:
        return 1
    (index,) = indices
    if kernel.varying(op)[index] & frozenset(op.parallel):
        return 1
    owners, most = 1, max(LONG_SCATTER, min(MOST_OWNERS, _extent(op, op.rows) // ROWS_OF_OWNER))
    while owners < most and owners * points < 4 * BUSY_THREADS:
        owners *= 2
    return owners


def _copies(op: kernel.FusedOp, vectors: int) -> int:
    """Vectors of one thread, read before the first is used: more where there are enough to keep all threads busy."""
    reads = sum(isinstance(o, kernel.LoadOp) for o in op.block.ops)
    copies = 4 if reads <= 2 else 2
    while copies > 1 and vectors // copies < BUSY_THREADS:
        copies //= 2
    return copies


def _walk_together(op: kernel.FusedOp, spread: int, sums: list[kernel.AccumulateOp]) -> None:
    """A group walks each row together: a warp, a part of one or a whole block."""
    size = op.sizes_[spread]
    width = _width(op, spread, size)
    flat = _is_flat(op, width, sums)
    outer = 1 if flat else _extent(op, op.rows[:-1])
    vectors = max(1, -(-(_extent(op, op.rows) if flat else cost.numeric(size)) // width))
    group = _group_ahead(op, spread, width, vectors, flat) if sums and _walks_many(op) else None
    ahead = group is not None
    if group is None:
        group = _power_of_two(vectors)
        if vectors > WARP:
            whole_warp = vectors * outer <= WARP * WARP_STEPS and not sums
            steps, most = (1, MOST_THREADS // 2) if sums else (STEPS, MOST_THREADS)
            group = WARP if whole_warp else min(most, max(WARP, _power_of_two(-(-vectors // steps))))
        if sums:
            group = max(WARP, group)
    threads = group if group > WARP or sums else 4 * WARP
    if flat:
        op.properties["flat"] = Literal.of(True)
    in_shared = False
    if not ahead:
        steps = _steps(op, spread, vectors, group, width, flat)
        in_shared = keep_rows(op, spread, steps=steps, width=width, threads=threads, whole_block=threads == group)
    if sums:
        _write(op, width=width, unroll=STEPS // 2, threads=threads, group=group)
        if _walks_many(op):
            op.properties["dealt"] = Literal.of(True)
        return
    if in_shared and group == MOST_THREADS and _is_heavy(op):
        threads = group = MOST_THREADS // 2  # two blocks leave a thread twice as many registers
    unroll = 1 if in_shared else 4 if width == 1 else 2  # reads in flight; of few registers, where rows are long
    _write(op, partitions=kernel.points(op), width=width, unroll=unroll, threads=threads, group=group, chunk=1)


def _group_ahead(op: kernel.FusedOp, spread: int, width: int, vectors: int, flat: bool) -> int | None:
    """Threads that share out rows without a rest and read ahead, where their registers do; written on the kernel then.

    Few threads that take several steps keep more reads in flight than many that take one.
    """
    if not isinstance(op.sizes_[spread], int) or vectors * width != _extent(op, op.rows if flat else (spread,)):
        return None
    for most in (MOST_THREADS // 4, MOST_THREADS // 2):
        for count in range(1, MOST_THREADS // WARP + 1):
            group = vectors // count
            if group <= most and (2 * group > most or count == 1) and vectors % (count * WARP) == 0:
                steps = _steps(op, spread, vectors, group, width, flat)
                if steps is not None and read_ahead(op, spread, steps=steps, width=width, threads=group):
                    return group
    return None


def _is_heavy(op: kernel.FusedOp) -> bool:
    """Whether a thread that computes this needs more than 32 registers."""
    made = [ir.dtype_of(r) for o in op.block.ops for r in o.results if not isinstance(o, prim.ConstOp)]
    return len(made) > LIGHT_BODY or "f64" in made or any(ir.is_complex(d) for d in made)


def _walks_many(op: kernel.FusedOp) -> bool:
    """Whether each partition has several points."""
    points, count = kernel.points(op), op.partitions_ or 1
    return isinstance(points, int) and isinstance(count, int) and points >= 2 * count


def _sums_columns(op: kernel.FusedOp) -> bool:
    """Whether rows of few points are read down columns, and nothing but reductions comes of them."""
    points = kernel.points(op)
    if len(op.rows) != 1 or not op.parallel or not isinstance(points, int) or _is_in_order(op) or kernel.can_fail(op):
        return False
    (row,), levels, varying = op.rows, kernel.levels(op), kernel.varying(op)
    length, last = op.sizes_[row], op.parallel[-1]
    few = points % WARP == 0 and points < BUSY_THREADS and isinstance(length, int) and length >= FEWEST_SHARED
    once = max(levels.values(), default=0) == 1
    for inner in op.block.ops:
        if isinstance(inner, kernel.ReduceOp):
            once = once and ir.dtype_of(inner.operands[0]) in ("f32", "f64", "i64", "i32")
        elif isinstance(inner, kernel.SinkOp):
            once = once and levels[inner] == 1 and all(row not in varying[v] for v in inner.operands)
    return few and once and neighbouring_bytes(op, last) > neighbouring_bytes(op, row)


def _walk_columns(op: kernel.FusedOp) -> None:
    """A warp reads 32 neighbouring points at once; the warps of a block share out their rows."""
    length, points = cast(int, op.sizes_[op.rows[0]]), cast(int, kernel.points(op))
    warps = min(MOST_THREADS // WARP, _power_of_two(length // 8))
    op.properties["vector"] = Literal.of(op.parallel[-1])
    threads = WARP * warps
    _write(op, partitions=points // WARP, width=1, unroll=4, threads=threads, group=threads, chunk=WARP, sharers=warps)


def _one_thread_each(op: kernel.FusedOp) -> None:
    """Sums that no group can share: a thread for each partition."""
    op.properties.pop("vector", None)
    _write(op, width=1, unroll=1, threads=WARP, group=1)


def _extent(op: kernel.FusedOp, dims: tuple[int, ...]) -> int:
    total = 1
    for d in dims:
        total *= cost.numeric(op.sizes_[d])
    return total


def _steps(op: kernel.FusedOp, spread: int, vectors: int, group: int, width: int, flat: bool) -> int | None:
    """Steps in which a thread walks a row, None where that is not known before it runs."""
    if flat:
        return -(-vectors // group)
    total = 1
    for d in op.rows:
        size = op.sizes_[d]
        if not isinstance(size, int):
            return None
        total *= -(-size // (group * width)) if d == spread else size
    return total


def _power_of_two(number: int) -> int:
    """Give the smallest power of two that is at least the number."""
    return 1 << (number - 1).bit_length()
