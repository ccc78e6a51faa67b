"""What an index check compares: enough to tell that two checks, of any kernels, find the same numbers wrong."""

from __future__ import annotations

from typing import TypeAlias, cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel.body import CheckOp, LoadOp
from isthmus.dialects.kernel.facts import linear_map
from isthmus.dialects.kernel.ops import LoopNest, ReshapeOp

Checked: TypeAlias = tuple[object, ...]
"""What is compared with what: the tensor that an index is read from, the expression down to that, and the bound."""


def checked(op: LoopNest, check: CheckOp) -> tuple[Checked, bool] | None:
    """Say what a check compares, and whether for each element of the tensor; None where that is not one load."""
    found = checked_part(op, check)
    if found is None:
        return None
    (root, *_), part = found
    return found[0], part == (0, ir.numel(root))


def checked_part(op: LoopNest, check: CheckOp) -> tuple[tuple[SSAValue, object, object], tuple[int, int] | None] | None:
    """As `checked`, with the first element and the one after the last, where all from that to this are compared."""
    found = _expression(op, ir.operands_of(check)[0])
    if found is None or len(found[1]) != 1:
        return None
    text, loads = found
    (load,) = loads
    source = op.inputs[cast(int, load.operand.data)]
    always = len(ir.operands_of(check)) == 1 and not ir.operands_of(load)
    return (_root(source), text, check.bound.data), _covered(op, load) if always else None


def _expression(op: LoopNest, value: SSAValue) -> tuple[object, list[LoadOp]] | None:
    """How a value is computed from loads; None where it depends on the place in the kernel's space too."""
    maker = cast(Operation, value.owner)
    if isinstance(maker, LoadOp):
        return "load", [maker]
    if not isinstance(maker, prim.PrimOp):
        return None
    loads: list[LoadOp] = []
    parts: list[object] = [maker.name, tuple(sorted((k, str(v)) for k, v in maker.properties.items()))]
    for operand in ir.operands_of(maker):
        inner = _expression(op, operand)
        if inner is None:
            return None
        parts.append(inner[0])
        loads.extend(x for x in inner[1] if x not in loads)
    return tuple(parts), loads


def _root(value: SSAValue) -> SSAValue:
    """The value whose bytes these are."""
    while isinstance(value.owner, ReshapeOp):
        value = ir.operands_of(value.owner)[0]
    return value


def _covered(op: LoopNest, load: LoadOp) -> tuple[int, int] | None:
    """The first element and the one after the last that a load reads, all between too: dims count like digits."""
    (position,) = linear_map(op, load).data
    start = position.constant
    if not isinstance(start, int):
        return None
    sizes, reached = op.sizes_, 1
    digits: list[tuple[int, int]] = []
    for (kind, dim, _), step in position.terms:
        if kind != "d" or not isinstance(step, int):
            return None
        digits.append((step, cast(int, dim)))
    for step, dim in sorted(digits):
        size = sizes[dim]
        if step != reached or not isinstance(size, int):
            return None
        reached = step * size
    return start, start + reached
