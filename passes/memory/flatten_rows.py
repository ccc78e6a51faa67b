"""Large products of rows that have several dims (a head of [batch, time, features]) are made of rows in one dim.

Before:
    %z = prim.dot %h, %w {contract_a = [2], contract_b = [1], ...} : tensor<8x1024x50304xbf16>
    %c = prim.convert %z : tensor<8x1024x50304xf32>
    %r = prim.reshape %c : tensor<8192x50304xf32>
    ...
    %dz = prim.reshape %d : tensor<8x1024x50304xf32>
    %dw = prim.dot %dz, %h {contract_a = [0, 1], contract_b = [0, 1], ...} : tensor<50304x768xf32>
After:
    %h2 = prim.reshape %h : tensor<8192x768xbf16>
    %z = prim.dot %h2, %w {contract_a = [1], contract_b = [1], ...} : tensor<8192x50304xbf16>
    %r = prim.convert %z : tensor<8192x50304xf32>
    ...
    %dw = prim.dot %d, %h2 {contract_a = [0], contract_b = [0], ...} : tensor<50304x768xf32>
"""

from __future__ import annotations

import math
from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.base import ints, literals_of
from isthmus.ir import Shape

_REPLACED = (prim.ReshapeOp, prim.DotOp, prim.ElementwiseOp, prim.ReduceOp, prim.BroadcastOp)


def flatten_rows(block: Block, least: int) -> None:
    """Merge the leading dims of large products and of what is computed from them element by element."""
    merging = _Merging(least)
    for op in list(block.ops):
        merging.visit(op)
    for op in reversed(list(block.ops)):
        if isinstance(op, _REPLACED) and not any(r.first_use for r in op.results):
            op.detach()
            op.erase()


def _merged(shape: Shape) -> Shape | None:
    """Rows in one dim; None where they are, or where sizes are not known."""
    if len(shape) < 3 or not all(isinstance(n, int) for n in shape):
        return None
    return math.prod(cast("tuple[int, ...]", shape[:-1])), shape[-1]


class _Merging:
    """A walk over a block, with the values whose rows are known in one dim."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.merged: dict[SSAValue, SSAValue] = {}

    def visit(self, op: Operation) -> None:
        """Replace an op where its rows can be merged."""
        if isinstance(op, prim.ReshapeOp):
            self._reshape(op)
        elif isinstance(op, prim.DotOp):
            self._dot(op)
        elif any(v in self.merged for v in op.operands):
            if isinstance(op, prim.ElementwiseOp):
                self._elementwise(op)
            elif isinstance(op, prim.ReduceOp):
                self._reduce(op)
            elif isinstance(op, prim.BroadcastOp):
                self._broadcast(op)

    def _is_large(self, *values: SSAValue) -> bool:
        return any(isinstance(size := ir.nbytes(v), int) and size >= self.least for v in values)

    def _reshape(self, op: prim.ReshapeOp) -> None:
        x, shape = op.x, ir.shape_of(op.y)
        if _merged(shape) == ir.shape_of(x) and self._is_large(x):
            self.merged[op.y] = x
        elif x in self.merged:
            source = self.merged[x]
            if ir.shape_of(source) == shape:
                op.y.replace_all_uses_with(source)
            else:
                op.operands[0] = source

    def _has_rows(self, value: SSAValue) -> bool:
        """Whether `_rows` can be asked: sizes are known, and the value is no number of each row."""
        shape = _merged(ir.shape_of(value))
        return shape is not None and (value not in self.merged or ir.shape_of(self.merged[value]) == shape)

    def _rows(self, e: Emitter, value: SSAValue) -> SSAValue:
        """A value with its rows in one dim."""
        shape = _merged(ir.shape_of(value))
        assert shape is not None
        return self.merged[value] if value in self.merged else e.reshape(value, shape)

    def _dot(self, op: prim.DotOp) -> None:
        """Rows times a matrix, or a sum over rows of both."""
        a, b = ints(op.contract_a.data), ints(op.contract_b.data)
        rank = len(ir.shape_of(op.a))
        leading = tuple(range(rank - 1))
        if ints(op.batch_a.data) or not self._has_rows(op.a) or not self._is_large(op.a, op.b, op.y):
            return
        e = Emitter(Block())
        e.location = op.location
        if a == (rank - 1,) and len(ir.shape_of(op.b)) == 2:
            self._put(op, e, e.dot(self._rows(e, op.a), op.b, ((1,), b)))
        elif a == b == leading and len(ir.shape_of(op.b)) == rank and self._has_rows(op.b):
            self._put(op, e, e.dot(self._rows(e, op.a), self._rows(e, op.b), ((0,), (0,))))

    def _elementwise(self, op: prim.ElementwiseOp) -> None:
        shape = ir.shape_of(next(self.merged[v] for v in op.operands if v in self.merged))
        if len(op.results) != 1 or not all([self._is_in(v, shape) for v in op.operands]):
            return
        e = Emitter(Block())
        e.location = op.location
        operands = [self._operand(e, v, shape) for v in op.operands]
        types = [ir.tensor(shape, ir.dtype_of(op.results[0]))] if op.EXPLICIT else None
        self._put(op, e, e.op(type(op), operands, literals_of(op), types).results[0])

    def _reduce(self, op: prim.ReduceOp) -> None:
        """Along rows, or over all of them."""
        x, dims, rank = self.merged[op.x], ints(op.dims.data), len(ir.shape_of(op.x))
        over = {(rank - 1,): 1, tuple(range(rank - 1)): 0}.get(dims)
        if over is not None and len(ir.shape_of(x)) == 2:
            e = Emitter(Block())
            e.location = op.location
            self._put(op, e, e.reduce(cast(str, op.kind.data), x, (over,)))

    def _broadcast(self, op: prim.BroadcastOp) -> None:
        """A number of each row, to all of the row."""
        x, shape = self.merged[op.x], _merged(ir.shape_of(op.y))
        leading = tuple(range(len(ir.shape_of(op.y)) - 1))
        if shape is not None and len(ir.shape_of(x)) == 1 and ints(op.dims.data) == leading:
            e = Emitter(Block())
            e.location = op.location
            self._put(op, e, e.broadcast(x, shape, (0,)))

    def _is_in(self, value: SSAValue, shape: Shape) -> bool:
        """Whether an elementwise op can read a value in rows of one dim: it has them, or is the same for all rows."""
        owner, last = value.owner, len(ir.shape_of(value)) - 1
        if value in self.merged:
            return ir.shape_of(self.merged[value]) == shape
        repeated = isinstance(owner, prim.BroadcastOp) and ints(owner.dims.data) in ((), (last,)) and len(shape) == 2
        return repeated or isinstance(owner, prim.ConstOp)

    def _operand(self, e: Emitter, value: SSAValue, shape: Shape) -> SSAValue:
        """A value of which `_is_in` holds, in that shape."""
        owner = value.owner
        if value in self.merged:
            return self.merged[value]
        if isinstance(owner, prim.ConstOp):
            return e.const(owner.value.data, shape, ir.dtype_of(value))
        assert isinstance(owner, prim.BroadcastOp)
        return e.broadcast(owner.x, shape, tuple(1 for _ in ints(owner.dims.data)))

    def _put(self, op: Operation, e: Emitter, made: SSAValue) -> None:
        """Put what was made in an op's place; others get it in the shape that they know."""
        (old,) = op.results
        if ir.shape_of(made) == ir.shape_of(old):
            e.put_before(op)
            old.replace_all_uses_with(made)
            return
        again = e.reshape(made, ir.shape_of(old))
        e.put_before(op)
        old.replace_all_uses_with(again)
        self.merged[again] = made
