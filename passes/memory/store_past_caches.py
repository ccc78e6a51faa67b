"""What is written and not read again before it has left the caches is stored past them.

A store of a line that is in no cache reads it first. Where a kernel moves more bytes than the last cache has, that
reading is of no use to anybody: a store past the caches leaves it out.

Before:
    %y = kernel.fused %x {sizes = [4096, 4096], classes = ["parallel", "row"], ..., places = [["output", 0]]} ({...})
After:
    %y = kernel.fused %x {sizes = [4096, 4096], classes = ["parallel", "row"], ..., past_caches = [0],
                          places = [["output", 0]]} ({...})
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.ir import Literal
from isthmus.passes.analysis.prices import Prices

SMALL_PART = 8
"""Less than this part of what a kernel moves is not worth another kind of stores."""


@dataclass(frozen=True)
class StorePastCachesPass(ModulePass):
    """Needs: planned memory. Leaves: `past_caches` on kernels that write much which nobody reads soon.

    One result of a kernel at most: two streams of such stores, whose lines fall on one buffer of the processor, turn
    each other out half written (measured: up to 5 times as long as through the caches).
    """

    name = "store-past-caches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Decide for every kernel of the module."""
        for func in ir.functions(op).values():
            least = Prices.of(func).past_caches
            for launch in kernel.launches(func):
                if isinstance(launch, kernel.FusedOp):
                    _decide(launch, least)


def _decide(op: kernel.FusedOp, least: int) -> None:
    moved = [ir.nbytes(value) for value in (*op.inputs, *op.results)]
    if not all(isinstance(n, int) for n in moved):
        return
    total = sum(cast("list[int]", moved))
    if total < least or not _keeps_order(op):
        return
    largest, chosen = total // SMALL_PART, None
    for number, result in enumerate(op.results):
        size = cast(int, ir.nbytes(result))
        if size > largest and _is_fresh(op, number) and _is_left_alone(result) and _fills_lines(op, number):
            largest, chosen = size, number
    if chosen is not None:
        op.properties["past_caches"] = Literal.of((chosen,))


def _keeps_order(op: kernel.FusedOp) -> bool:
    """Whether vectors are whole ones from the start of each row, or of the one dim that is cut for threads."""
    if op.initial is not None or any(isinstance(o, kernel.CumulativeOp) for o in op.block.ops):
        return False
    vector = ir.literal(op, "vector")
    if vector in op.rows:
        return True
    sums = any(isinstance(o, kernel.AccumulateOp) for o in op.block.ops)  # their bits are those of a partition's points
    return vector is not None and len(op.sizes_) == 1 and not sums


def _is_fresh(op: kernel.FusedOp, number: int) -> bool:
    """Whether a result has a place of its own: what lies in an operand's is in a cache already."""
    places = cast("tuple[tuple[object, ...], ...] | None", ir.literal(op, "places"))
    if places is None or places[number][0] not in ("output", "saved"):
        return False
    return all(places[number] != _place_of(value) for value in op.inputs)


def _place_of(value: SSAValue) -> object:
    maker = value.owner
    places = ir.literal(maker, "places") if isinstance(maker, kernel.LaunchOp) else None
    if places is None:
        return None
    number = cast(OpResult, value).index
    return cast("tuple[object, ...]", places)[number]


def _is_left_alone(result: SSAValue) -> bool:
    """Whether no later step of the function reads a result."""
    return all(isinstance(use.operation, ReturnOp) for use in result.uses)


def _fills_lines(op: kernel.FusedOp, number: int) -> bool:
    """Whether each vector of a result's one store begins at a line, where the buffer does; no walk reads it again.

    A line that is written in parts is read after all, and takes ten times as long; complex numbers are stored one by
    one.
    """
    dtype = ir.dtype_of(op.results[number])
    if ir.is_complex(dtype):
        return False
    stores = [o for o in op.block.ops if isinstance(o, kernel.SinkOp) and kernel.result_of(op, o) is op.results[number]]
    (store, *others) = stores
    if others or not isinstance(store, kernel.StoreOp) or store.kind is not None or store.index_values:
        return False
    if ir.literal(cast(Operation, store.x.owner), "residence") == "reload":
        return False
    vector = cast(int, ir.literal(op, "vector"))
    elements = kernel.LINE // ir.itemsize(dtype)
    (place,) = kernel.linear_map(op, store).data
    place = place - kernel.starts(op)[len(op.inputs) + number]
    if not place.is_affine() or place.coefficient(vector) != 1:
        return False
    steps = [place.constant, *(place.coefficient(d) for d in place.dims() if d != vector)]
    return all(isinstance(step, int) and step % elements == 0 for step in steps)
