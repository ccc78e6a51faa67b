"""A piece of a program that is the same for other tensors is run and recorded once, and then written down again.

An optimizer updates a hundred parameters of a dozen shapes: it is traced a dozen times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.frontend.active import active_recorder
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.torch_private import without_torch_function


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
        full = key, alike, facts, torch.is_grad_enabled()
        known = self._pieces.get(full)
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
            self._pieces[full] = made


def _facts(t: Tensor) -> Hashable:
    """What the ops on a tensor depend on; None where a size is a symbol."""
    numbers = *t.shape, *t.stride(), t.storage_offset()
    if any(type(n) is not int for n in numbers):
        return None
    return t.dim(), numbers, t.dtype, t.device, t.requires_grad, t.is_leaf


def _after(block: Block, last: Operation | None) -> list[Operation]:
    found: list[Operation] = []
    op = block.first_op if last is None else last.next_op
    while op is not None:
        found.append(op)
        op = op.next_op
    return found


def _write_again(recorder: Recorder, piece: _Piece, fakes: Sequence[Tensor], before: Sequence[SSAValue]) -> None:
    values: dict[SSAValue, SSAValue] = dict(zip(piece.before, before, strict=True))
    for op in piece.ops:
        recorder.emit(op.clone(values))  # what has no entry is shared: it stays
    for tensor, value in zip(fakes, piece.after, strict=True):
        recorder.define(tensor, values[value])
