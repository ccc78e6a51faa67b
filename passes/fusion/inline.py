"""Values that are computed at any index: sources, random numbers, gathers, pads, concatenations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel import Expr, constant
from isthmus.dialects.prim.base import dim as as_dim
from isthmus.dialects.prim.base import integer, ints
from isthmus.ir import Shape
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.graph import Node, Value
from isthmus.passes.fusion.instructions import Instr, Instructions, linear_position
from isthmus.sizes import Dim

Key = tuple[Value, Index, Instr | None]
"""A value at an index, where a predicate holds (None: everywhere)."""


class Values(Instructions):
    """Instructions that ask for elements of values."""

    def value_at(self, value_: Value, index: Index, predicate: Instr | None = None) -> Instr:
        """Give the scalar that is the value's element at an index."""
        raise NotImplementedError

    def need(self, keys: Sequence[Key]) -> list[Instr] | list[Key]:
        """Give what all the keys stand for, or those that are missing."""
        raise NotImplementedError

    def forward(self, key: Key) -> Instr | list[Key]:
        """Give what a key stands for, or the key where that is missing."""
        raise NotImplementedError


def _const(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    return draft.constant(ir.literal(cast(prim.ConstOp, node.op), "value"), node.value.dtype)


def _size(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    return draft.index(constant(as_dim(cast(prim.SizeOp, node.op).expr.data)))


def _iota(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    return draft.convert(draft.index(index[integer(cast(prim.IotaOp, node.op).dim.data)]), node.value.dtype)


def _rng(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    found = draft.need([(node.operands[0], (), None)])
    if not complete(found):
        return cast("list[Key]", found)
    (key,) = cast("list[Instr]", found)
    rng = cast(prim.RngOp, node.op)
    counter = draft.index(linear_position(index, node.value.shape) + as_dim(rng.offset.data))
    return draft.instr("rng", (key, counter), node.value.dtype, rng.kind.data, node.op, None, node.cost)


def _gather(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    x, *indices = node.operands
    rank = len(indices[0].shape)
    keys: list[Key] = [(i, index[:rank], predicate) for i in indices]
    found = draft.need(keys)
    if not complete(found):
        return cast("list[Key]", found)
    dims = ints(cast(prim.GatherOp, node.op).dims.data)
    at, _ = gathered(draft, indices, dims, x.shape, index[:rank], predicate)
    return draft.forward((x, spread(x.shape, dims, at, index[rank:]), predicate))


def _pad(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    pad = cast(prim.PadOp, node.op)
    (x,) = node.operands
    d, low, interior = integer(pad.dim.data), as_dim(pad.low.data), as_dim(pad.interior.data)
    shifted = index[d] + low * -1
    inner = shifted.floordiv(interior + 1, draft.bound)
    inside = draft.within(inner, x.shape[d])
    if interior != 0:
        rest = shifted - inner * (interior + 1)
        inside = draft.both(inside, draft.compare("eq", rest, 0))
    both = draft.both(predicate, inside)
    found = draft.need([(x, (*index[:d], inner, *index[d + 1 :]), both)])
    if not complete(found):
        return cast("list[Key]", found)
    (element,) = cast("list[Instr]", found)
    return element if inside is None else draft.select(inside, element, draft.constant(pad.value.data, x.dtype))


def _concat(draft: Values, node: Node, index: Index, predicate: Instr | None) -> Instr | list[Key]:
    d = integer(cast(prim.ConcatOp, node.op).dim.data)
    parts: list[tuple[Key, Instr | None]] = []
    start: Dim = 0
    for x in node.operands:
        inner = index[d] + start * -1
        inside = draft.within(inner, x.shape[d])
        key = (x, (*index[:d], inner, *index[d + 1 :]), draft.both(predicate, inside))
        parts.append((key, inside))
        start = start + x.shape[d]
    found = draft.need([k for k, _ in parts])
    if not complete(found):
        return cast("list[Key]", found)
    elements = cast("list[Instr]", found)
    chosen = elements[-1]
    for element, (_, inside) in reversed(list(zip(elements[:-1], parts[:-1], strict=True))):
        chosen = element if inside is None else draft.select(inside, element, chosen)
    return chosen


def gathered(
    draft: Values,
    indices: Sequence[Value],
    dims: tuple[int, ...],
    shape: Shape,
    index: Index,
    predicate: Instr | None,
) -> tuple[list[Expr], tuple[Instr, ...]]:
    """Give the indices that data-dependent positions are, checked against the sizes, and the checks."""
    found = [
        draft.check(draft.value_at(operand, index, predicate), shape[d], d, predicate)
        for operand, d in zip(indices, dims, strict=True)
    ]
    return [expr for expr, _ in found], tuple(check for _, check in found if check is not None)


def complete(found: list[Instr] | list[Key]) -> bool:
    """Tell whether everything that was needed is there."""
    return not found or isinstance(found[0], Instr)


def spread(shape: Shape, dims: tuple[int, ...], at: Sequence[Expr], rest: Sequence[Expr]) -> Index:
    """Put `at` at dims and the rest, in order, elsewhere."""
    others = iter(rest)
    return tuple(at[dims.index(d)] if d in dims else next(others) for d in range(len(shape)))


Handler = Callable[[Values, Node, Index, Instr | None], Instr | list[Key]]

HANDLERS: dict[str, Handler] = {
    prim.ConstOp.name: _const,
    prim.SizeOp.name: _size,
    prim.IotaOp.name: _iota,
    prim.RngOp.name: _rng,
    prim.GatherOp.name: _gather,
    prim.PadOp.name: _pad,
    prim.ConcatOp.name: _concat,
}
"""Form of a node -> how its element at an index is made, or what must be made first."""
