"""Index checks that cannot be the first to fail: an earlier kernel of the function checks all of the same numbers.

    %y = kernel.fused %table, %i ...    checks %i against 50304: each element
    %g = kernel.fused %dy, %i ...       checks %i against 50304: some, all or none of them, after %y

Whoever waits for errors needs not wait for the second.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim

Checked: TypeAlias = tuple[object, ...]
"""What is compared with what: the expression of the index down to the tensor that it is read from, and the bound."""


def rechecks(launches: list[Operation]) -> set[Operation]:
    """Give the kernels that can fail only where an earlier one of these has failed; they run in this order."""
    known: set[Checked] = set()
    found: set[Operation] = set()
    for op in launches:
        if not isinstance(op, kernel.LoopNest) or not kernel.can_fail(op):
            continue
        made = [_checked(op, check) for check in kernel.checks(op)]
        if not _divides(op) and all(m is not None and m[0] in known for m in made):
            found.add(op)
            continue
        known.update(m[0] for m in made if m is not None and m[1])
    return found


def _divides(op: kernel.LoopNest) -> bool:
    """Whether integers are divided: by zero perhaps."""
    divisions = [inner for inner in op.block.ops if isinstance(inner, (prim.DivOp, prim.RemOp))]
    return any(ir.is_integer(ir.dtype_of(inner.results[0])) for inner in divisions)


def _checked(op: kernel.LoopNest, check: kernel.CheckOp) -> tuple[Checked, bool] | None:
    """What a check compares, and whether it does so for each element of the tensor; None where that is not one load."""
    found = _expression(op, ir.operands_of(check)[0])
    if found is None or len(found[1]) != 1:
        return None
    text, loads = found
    (load,) = loads
    source = op.inputs[cast(int, load.operand.data)]
    everywhere = len(ir.operands_of(check)) == 1 and not ir.operands_of(load) and _covers(op, load, source)
    return (_root(source), text, check.bound.data), everywhere


def _expression(op: kernel.LoopNest, value: SSAValue) -> tuple[object, list[kernel.LoadOp]] | None:
    """How a value is computed from loads; None where it depends on the place in the kernel's space too."""
    maker = cast(Operation, value.owner)
    if isinstance(maker, kernel.LoadOp):
        return "load", [maker]
    if not isinstance(maker, prim.PrimOp):
        return None
    loads: list[kernel.LoadOp] = []
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
    while isinstance(value.owner, kernel.ReshapeOp):
        value = ir.operands_of(value.owner)[0]
    return value


def _covers(op: kernel.LoopNest, load: kernel.LoadOp, source: SSAValue) -> bool:
    """Whether a load reads each element of its operand: its position counts through the dims like digits."""
    (position,) = kernel.linear_map(op, load).data
    if position.constant != 0:
        return False
    sizes, reached = op.sizes_, 1
    digits: list[tuple[int, int]] = []
    for (kind, dim, _), step in position.terms:
        if kind != "d" or not isinstance(step, int):
            return False
        digits.append((step, cast(int, dim)))
    for step, dim in sorted(digits):
        size = sizes[dim]
        if step != reached or not isinstance(size, int):
            return False
        reached = step * size
    return reached == ir.numel(source)
