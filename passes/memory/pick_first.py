"""Elements picked out of a large tensor are read before a kernel that could write over it.

Before:
    %dz, %lse = kernel.fused %z, %t ...                              // could write dz over z
    %loss = kernel.fused %t, %z, %lse {sizes = [8192], ...} ({
      %i = kernel.load {operand = 0, map = [d0]} : i64
      %p = kernel.load %i {operand = 1, map = [d0, v0]} : bf16       // if nobody read z afterwards
      ...
After:
    %picked = kernel.fused %t, %z {sizes = [8192], classes = ["parallel"]} ({
      %i = kernel.load {operand = 0, map = [d0]} : i64
      %p = kernel.load %i {operand = 1, map = [d0, v0]} : bf16
      kernel.store %p {result = 0, map = [d0]}
    }) : tensor<8192xbf16>
    %dz, %lse = kernel.fused %z, %t ...
    %loss = kernel.fused %t, %picked, %lse {sizes = [8192], ...} ({
      %p = kernel.load {operand = 1, map = [d0]} : bf16
      ...
The same is done where one kernel both walks and picks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.dialects.kernel import dim
from isthmus.ir import Literal
from isthmus.passes.analysis.prices import Prices

FEW = 64
"""One byte in so many, at most, is picked."""


@dataclass(frozen=True)
class PickFirstPass(ModulePass):
    """Needs: kernels in execution order, before schedule. Leaves: kernels that pick elements first where another then
    may write over what they pick from."""

    name = "pick-first"

    least: int | None = None
    """Bytes of memory that are worth one more launch; none: by the program's prices."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Go through the kernels of every function."""
        for func in ir.functions(op).values():
            pick_first(func, Prices.of(func, "gpu").pick_bytes if self.least is None else self.least)


def pick_first(func: FuncOp, least: int) -> None:
    """Pull reads of single elements out of kernels, in front of the last kernel that walks all of the tensor."""
    order = {op: n for n, op in enumerate(func.body.block.ops)}
    for op in list(func.body.block.ops):
        if isinstance(op, kernel.FusedOp) and not op.symbols_:
            for source in dict.fromkeys(op.inputs):
                size = ir.nbytes(source)
                before = _could_write_over(op, source, order) if isinstance(size, int) and size >= least else None
                picks = [] if before is None else _picks(op, source, before, order)
                if before is not None and picks:
                    _pull_out(op, picks, before)
                    break  # the kernel is another one now


def _could_write_over(op: kernel.FusedOp, source: SSAValue, order: dict[Operation, int]) -> kernel.FusedOp | None:
    """The last kernel that walks a tensor, where it makes one of the same type and only `op` reads it afterwards."""
    users = {use.operation for use in source.uses}
    here = all(user in order for user in (source.owner, *users))
    if not here or max(users, key=order.__getitem__) is not op:
        return None
    last = op if _walks(op, source) else max(users - {op}, key=order.__getitem__, default=None)
    if not isinstance(last, kernel.FusedOp) or all(r.type != source.type for r in last.results):
        return None
    return last if last is op or all(not load.index_values for load in _loads(last, source)) else None


def _walks(op: kernel.FusedOp, source: SSAValue) -> bool:
    """Whether it reads a tensor otherwise than by picking."""
    return any(not load.index_values for load in _loads(op, source))


def _loads(op: kernel.FusedOp, source: SSAValue) -> list[kernel.LoadOp]:
    return [
        inner
        for inner in op.block.ops
        if isinstance(inner, kernel.LoadOp) and op.inputs[cast(int, inner.operand.data)] is source
    ]


def _picks(
    op: kernel.FusedOp, source: SSAValue, before: kernel.FusedOp, order: dict[Operation, int]
) -> list[kernel.LoadOp]:
    """The reads of a tensor by index, where each picks few elements at places that are known before a kernel runs;
    the kernel itself may walk the tensor as well."""
    loads, varying, limit = _loads(op, source), kernel.varying(op), order[before]
    if before is op:
        loads = [load for load in loads if load.index_values]
    for load in loads:
        elements = math.prod(cast("tuple[int, ...]", tuple(op.sizes_[d] for d in varying[load.y])))
        few = elements * ir.itemsize(ir.dtype_of(load.y)) * FEW <= cast(int, ir.nbytes(source))
        if not load.index_values or load.default is not None or not few:
            return []
        for inner in kernel.leading_to(op, [load]):
            if isinstance(inner, kernel.ReduceOp | kernel.CumulativeOp):
                return []
            if isinstance(inner, kernel.LoadOp):
                owner = op.inputs[cast(int, inner.operand.data)].owner
                if isinstance(owner, Operation) and order.get(owner, limit) >= limit:
                    return []  # it comes later, or is a kernel of this walk
    whole = all(i != op.inputs.index(source) for i in op.initial_)  # pyright: ignore[reportArgumentType]
    return loads if whole else []


def _pull_out(op: kernel.FusedOp, picks: list[kernel.LoadOp], before: kernel.FusedOp) -> None:
    block, varying = cast(Block, op.parent), kernel.varying(op)
    made: dict[Operation, tuple[SSAValue, kernel.Map]] = {}
    for load in picks:
        dims = tuple(sorted(varying[load.y]))
        picking = _picking(op, load, dims)
        block.insert_op_before(picking, before)
        made[load] = picking.results[0], kernel.Map.of(tuple(dim(d) for d in dims))
    block.insert_op_before(new := _reading(op, made), op)
    new.attributes.update(op.attributes)
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.detach()
    op.erase()


def _picking(op: kernel.FusedOp, load: kernel.LoadOp, dims: tuple[int, ...]) -> kernel.FusedOp:
    """A kernel over some dims that does what leads to a load, and keeps what that reads."""
    wanted = kernel.leading_to(op, [load])
    numbers = [cast(int, inner.operand.data) for inner in wanted if isinstance(inner, kernel.LoadOp)]
    inputs = list(dict.fromkeys(op.inputs[n] for n in numbers))
    new = [dim(dims.index(d)) if d in dims else dim(0) for d in range(len(op.sizes_))]
    block, values = Block(), dict[SSAValue, SSAValue]()
    for inner in wanted:
        kernel.copy_into(block, inner, values, _moved(inner, new) | _renumbered(inner, op.inputs, inputs))
    sizes = tuple(op.sizes_[d] for d in dims)
    store = {"result": Literal.of(0), "map": kernel.Map.identity(len(dims))}
    block.add_op(ir.create_op(kernel.StoreOp, [values[load.y]], [], store))
    properties = {"sizes": Literal.of(sizes), "classes": Literal.of(("parallel",) * len(dims))}
    result = ir.tensor(sizes, ir.dtype_of(load.y))
    return ir.create_op(kernel.FusedOp, inputs, [result], properties, regions=[Region([block])], location=op.location)


def _moved(inner: Operation, new: list[kernel.Expr]) -> dict[str, Attribute]:
    map_ = inner.properties.get("map")
    return {"map": kernel.Map.of(tuple(e.substitute(new) for e in map_.data))} if isinstance(map_, kernel.Map) else {}


def _renumbered(inner: Operation, old: Sequence[SSAValue], new: list[SSAValue]) -> dict[str, Attribute]:
    """The number that what a load reads has among other operands."""
    if not isinstance(inner, kernel.LoadOp):
        return {}
    return {"operand": Literal.of(new.index(old[cast(int, inner.operand.data)]))}


def _reading(op: kernel.FusedOp, made: dict[Operation, tuple[SSAValue, kernel.Map]]) -> kernel.FusedOp:
    """The kernel with what was picked in place of the tensor that it was picked from."""
    ends = [inner for inner in op.block.ops if isinstance(inner, kernel.SinkOp) or _only_checks(inner)]
    needed = kernel.leading_to(op, ends, made)
    used = [op.inputs[cast(int, o.operand.data)] for o in needed if isinstance(o, kernel.LoadOp) and o not in made]
    started = [op.inputs[n] for n in op.initial_ if n is not None]
    inputs = list(dict.fromkeys([v for v in op.inputs if v in {*used, *started}] + [v for v, _ in made.values()]))
    block, values = Block(), dict[SSAValue, SSAValue]()
    for inner in needed:
        if inner in made:
            value, map_ = made[inner]
            picked = {"operand": Literal.of(inputs.index(value)), "map": map_}
            load = ir.create_op(kernel.LoadOp, [], [inner.results[0].type], picked, location=inner.location)
            block.add_op(load)
            values[inner.results[0]] = load.results[0]
            continue
        kernel.copy_into(block, inner, values, _renumbered(inner, op.inputs, inputs))
    properties = dict(op.properties)
    if op.initial is not None:
        starts = [None if n is None else inputs.index(op.inputs[n]) for n in op.initial_]
        properties["initial"] = Literal.of(tuple(starts))
    types = [r.type for r in op.results]
    return ir.create_op(kernel.FusedOp, inputs, types, properties, regions=[Region([block])], location=op.location)


def _only_checks(inner: Operation) -> bool:
    return isinstance(inner, kernel.CheckOp) and not any(True for r in inner.results for _ in r.uses)
