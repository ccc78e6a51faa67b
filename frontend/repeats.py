"""A piece of a program that is the same for other tensors is run and recorded once, and then written down again.

An optimizer updates a hundred parameters of a dozen shapes, element by element: it is traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from xdsl.ir import Attribute, Block, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import aten
from isthmus.frontend.active import active_recorder
from isthmus.frontend.operators import is_elementwise
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.torch_private import without_torch_function
from isthmus.ir import Shape


@dataclass(frozen=True)
class _Piece:
    """What was recorded: `before` and `after` are the values that the tensors of the piece were and became."""

    before: tuple[SSAValue, ...]
    ops: tuple[Operation, ...]
    after: tuple[SSAValue, ...]

    def stands_alone(self, shared: Sequence[SSAValue]) -> bool:
        """Whether the ops read nothing but the piece's tensors, what all pieces share and what they make."""
        known = {*self.before, *shared}
        for op in self.ops:
            if op.regions or not known.issuperset(ir.operands_of(op)):
                return False
            known.update(op.results)
        return known.issuperset(self.after)

    def is_elementwise(self, shape: Shape) -> bool:
        """Whether it is the same for tensors of another shape: each value has this one, row-major, or is a number."""
        calls = all(isinstance(op, aten.CallOp) and is_elementwise(op.overload) for op in self.ops)
        read = {v for op in self.ops for v in (*ir.operands_of(op), *op.results)}
        return calls and all(not aten.facts_of(v).shape or _shape_of([v]) == shape for v in read)


class Repeats:
    """The pieces of one trace."""

    def __init__(self) -> None:
        self._pieces: dict[Hashable, _Piece] = {}

    def run(
        self, piece: Callable[[], object], tensors: Sequence[Tensor], shared: Sequence[Tensor], key: Hashable
    ) -> None:
        """Run what works on these tensors, in place; beside them it reads `shared`, the same for all of a key.

        Outside of a trace, and where sizes are symbols, it is just run.
        """
        recorder = active_recorder()
        if recorder is None:
            piece()
            return
        with without_torch_function():
            fakes = [recorder.fake_of(t) for t in tensors]
            before = tuple(map(recorder.value_of, fakes))
            facts = tuple(map(_facts, fakes))
        if None in facts:
            piece()
            return
        alike = tuple(map(before.index, before))
        shape = _shape_of(before)
        kinds = tuple((t.dtype, t.device, t.requires_grad, t.is_leaf) for t in fakes)
        general, full = (key, alike, torch.is_grad_enabled(), kinds), (key, alike, torch.is_grad_enabled(), facts)
        known = self._pieces.get(general if shape else full) or self._pieces.get(full)
        if known is not None:
            _write_again(recorder, known, fakes, before)
            return
        block, last = recorder.scope.block, recorder.scope.block.last_op
        piece()
        with without_torch_function():
            after = tuple(map(recorder.value_of, fakes))
            others = tuple(map(recorder.value_of, shared))
        made = _Piece(before, tuple(_after(block, last)), after)
        if made.stands_alone(others):
            self._pieces[general if shape and made.is_elementwise(shape) else full] = made


def _facts(t: Tensor) -> Hashable:
    """What the ops on a tensor depend on; None where a size is a symbol."""
    numbers = *t.shape, *t.stride(), t.storage_offset()
    if any(type(n) is not int for n in numbers):
        return None
    return t.dim(), numbers, t.dtype, t.device, t.requires_grad, t.is_leaf


def _shape_of(values: Sequence[SSAValue]) -> Shape | None:
    """The shape of all these row-major tensors, which have elements; None where there is no such."""
    shapes: set[Shape] = set()
    for value in values:
        shape, _, strides, offset = aten.facts_of(value)
        if 0 in shape or offset or strides != ir.contiguous_strides(shape):
            return None
        shapes.add(shape)
    return shapes.pop() if len(shapes) == 1 else None


def _after(block: Block, last: Operation | None) -> list[Operation]:
    found: list[Operation] = []
    op = block.first_op if last is None else last.next_op
    while op is not None:
        found.append(op)
        op = op.next_op
    return found


def _write_again(recorder: Recorder, piece: _Piece, fakes: Sequence[Tensor], before: Sequence[SSAValue]) -> None:
    values: dict[SSAValue, SSAValue] = dict(zip(piece.before, before, strict=True))
    types: Mapping[Attribute, Attribute] = {}
    if (shape := _shape_of(before)) and (then := _shape_of(piece.before)) and shape != then:
        types = _reshaped(piece, then, shape)
    block = recorder.scope.block
    for op in piece.ops:
        operands = [values.get(v, v) for v in ir.operands_of(op)]  # what has no entry is shared: it stays
        results = [types.get(r.type, r.type) for r in op.results]
        made = ir.create_op(
            type(op), operands, results, op.properties, location=op.location, attributes=op.attributes, into=block
        )
        for old, new in zip(op.results, made.results, strict=True):
            new.name_hint = old.name_hint
            values[old] = new
    for tensor, value in zip(fakes, piece.after, strict=True):
        recorder.define(tensor, values[value])


def _reshaped(piece: _Piece, then: Shape, now: Shape) -> Mapping[Attribute, Attribute]:
    """The types of a piece's values of one shape, with another shape."""
    made = {r.type: aten.facts_of(r) for op in piece.ops for r in op.results}
    return {t: aten.ref(now, facts.dtype) for t, facts in made.items() if facts.shape == then}
