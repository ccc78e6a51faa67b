"""Reference implementations of captured calls: eager itself on references, copies where calls on values would write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import aten
from isthmus.ir import LiteralValue
from isthmus.runtime.interpret_library import call_overload, find_overload
from isthmus.runtime.interpret_table import Frame, Value, evaluates, known, literal_int, tensors

_BY_PLACE = frozenset(("as_strided.default", "as_strided_scatter.default"))
"""On values these count elements in a row-major copy of the operand."""


@evaluates(aten.CallOp)
def call(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """On references exactly eager's call, mutation and aliasing included; on values without both."""
    assert isinstance(op, aten.CallOp)
    with torch.set_grad_enabled(torch.is_grad_enabled() and op.grad):
        if any(isinstance(v.type, TensorType) for v in (*ir.operands_of(op), *op.results)):
            return _call_on_values(op, list(operands), frame)
        given = call_overload(op.overload, op.args, operands, frame)
        return [cast(Value, given[k]) for k in op.present]


def _call_on_values(op: aten.CallOp, operands: list[Value], frame: Frame) -> Sequence[Value]:
    updated = op.updates
    for i in updated:
        operands[i] = cast(Tensor, operands[i]).clone(memory_format=torch.contiguous_format)
    if op.overload in _BY_PLACE:
        shape, strides, offset = op.args[-3:]
        place = _numbers(shape, frame), _numbers(strides, frame), known(cast(ir.Dim, offset or 0), frame)
        return (_at_place(tensors(operands), *place),)
    if find_overload(op.overload).is_view:  # a view of a value is in row-major order, whatever its memory is
        operands = [v.contiguous() if isinstance(v, Tensor) else v for v in operands]
    given = call_overload(op.overload, op.args, operands, frame)
    return [cast(Value, given[k]) for k in op.present] + [operands[i] for i in updated]


def _numbers(dims: LiteralValue, frame: Frame) -> list[int]:
    return [known(d, frame) for d in cast(tuple[ir.Dim, ...], dims)]


def _at_place(operands: Sequence[Tensor], shape: list[int], strides: list[int], offset: int) -> Tensor:
    """Read elements of a row-major copy, or put a second operand there.

    By a view of the copy: torch's derivative of its own as_strided_scatter is wrong.
    """
    whole = operands[0].clone(memory_format=torch.contiguous_format)
    part = whole.as_strided(shape, strides, offset)
    if len(operands) == 1:
        return part
    part.copy_(operands[1])
    return whole


@evaluates(aten.CondOp)
def cond(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """predicate ? then(x..) : else(x..)"""
    predicate, *xs = operands
    return frame.run_region(op.regions[0 if bool(predicate) else 1], xs)


@evaluates(aten.WhileLoopOp)
def while_loop(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """While condition(carried.., x..): carried.. = body(carried.., x..)"""
    carried = literal_int(op, "carried")
    carry, rest = list(operands[:carried]), list(operands[carried:])
    while bool(frame.run_region(op.regions[0], carry + rest)[0]):
        carry = frame.run_region(op.regions[1], carry + rest)
    return carry


@evaluates(aten.ScanOp)
def scan(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """carry.., y.. = combine(carry.., slice of xs.., x..) along dimension 0; y.. stacked."""
    inits, count = literal_int(op, "inits"), literal_int(op, "xs")
    carry, rest = list(operands[:inits]), list(operands[inits + count :])
    xs = tensors(operands[inits : inits + count])
    rows: list[Sequence[Value]] = []
    for t in range(xs[0].shape[0]):
        results = frame.run_region(op.regions[0], carry + [x[t] for x in xs] + rest)
        carry = results[:inits]
        rows.append(results[inits:])
    return carry + _stacked(rows)


@evaluates(aten.MapOp)
def map_(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """body on slices along dimension 0, results stacked."""
    count = literal_int(op, "xs")
    xs, rest = tensors(operands[:count]), list(operands[count:])
    return _stacked([frame.run_region(op.regions[0], [x[t] for x in xs] + rest) for t in range(xs[0].shape[0])])


def _stacked(rows: Sequence[Sequence[Value]]) -> list[Value]:
    return [torch.stack(list(tensors(column))) for column in zip(*rows, strict=True)]
