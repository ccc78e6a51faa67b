"""A matrix that is too large to exist at once is computed, used and forgotten some rows at a time.

Before (logits of 8192 rows, their loss and its gradient):
    %z = prim.dot %h, %w ... : tensor<8192x50304xbf16>
    ...
    %dh = prim.dot %dz, %w ... : tensor<8192x4096xbf16>
    %dw = prim.dot %dz, %h {contract_a = [0], contract_b = [0], ...} : tensor<50304x4096xbf16>
After, for each of 8 pieces of 1024 rows, one after the other:
    %h0 = prim.slice %h {dim = 0, start = 0, limit = 1024, stride = 1} : tensor<1024x4096xbf16>
    %z0 = prim.dot %h0, %w ... : tensor<1024x50304xbf16>
    ...
    %dh0 = prim.dot %dz0, %w ... : tensor<1024x4096xbf16>
    %part = prim.dot %dz0, %h0 ... : tensor<50304x4096xbf16>
    %dw1 = prim.add %part, %dw0 {accumulates = true} : tensor<50304x4096xbf16>      (the product adds to what is there)
and %dh = prim.concat %dh0, ... A sum over rows is added up in the order of the pieces, rounded after each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.base import integer, ints, literals_of
from isthmus.ir import Literal, Shape
from isthmus.passes.analysis.pieces import ACCUMULATES, DEEP, LARGE, PIECE, is_large_product, piece_of
from isthmus.passes.memory.chunk_region import RowRegion, region_of, row_index
from isthmus.passes.memory.flatten_rows import flatten_rows
from isthmus.passes.memory.turn_dots import turn_dots

FEWEST_ROWS = 128
"""A product of fewer rows leaves a machine idle."""


@dataclass(frozen=True)
class ChunkRowsPass(ModulePass):
    """Needs: elementary primitives. Leaves: products of at least `least` bytes, of rows of `deep` numbers or
    more, in pieces of at most `most`."""

    name = "chunk-rows"

    least: int = LARGE
    most: int = LARGE
    """Of half as many bytes, sums over rows wait for the memory that they add to: on an H200 0.15 ms a piece."""
    deep: int = DEEP

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Cut what can be cut, in every function."""
        for func in ir.functions(op).values():
            chunk_rows(func, self.least, self.most, self.deep)


def chunk_rows(func: FuncOp, least: int, most: int, deep: int, first: int = 0) -> None:
    """Cut the first product of a function whose result is large and used row by row; then the next.

    `first` is the number of its first piece.
    """
    if first == 0 and any(is_large_product(op, least, deep) for op in func.body.block.ops):
        flatten_rows(func.body.block, least)
        turn_dots(func.body.block, least=0)
    ops = list(func.body.block.ops)
    for op in ops:
        if isinstance(op, prim.DotOp) and is_large_product(op, least, deep) and piece_of(op) is None:
            region = region_of(op, ops)
            count = None if region is None else _pieces(region.rows, cast(int, ir.nbytes(op.y)), most)
            if region is not None and count is not None:
                _Chunks(func, region, count, first).write()
                chunk_rows(func, least, most, deep, first + count)
                return


def _pieces(rows: int, size: int, most: int) -> int | None:
    """Give the fewest equal pieces of rows that are small enough, None where there are none worth a product."""
    for count in range(max(2, -(-size // most)), rows // FEWEST_ROWS + 1):
        if rows % count == 0:
            return count
    return None


class _Chunks:
    """A function on its way from whole rows to pieces."""

    def __init__(self, func: FuncOp, region: RowRegion, count: int, first: int) -> None:
        self.func, self.region, self.count, self.first = func, region, count, first
        self.rows = region.rows // count
        block = func.body.block
        func.body.detach_block(block)
        self.source = block
        self.block = Block(arg_types=[a.type for a in block.args])
        self.e = Emitter(self.block)
        self.values: dict[SSAValue, SSAValue] = {}
        for old, new in zip(block.args, self.block.args, strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new
        func.body.add_block(self.block)

    def write(self) -> None:
        """Copy the function: first what does not wait for the region, then its pieces, then the rest."""
        inside = set(self.region.ops)
        waiting: list[Operation] = []
        for op in self.source.ops:
            if op not in inside:
                if isinstance(op, ReturnOp) or not all(v in self.values for v in ir.operands_of(op)):
                    waiting.append(op)
                else:
                    self._copy(op)
        self._write_pieces()
        for op in waiting:
            self._copy(op)
        _erase_unused(self.block)

    def _copy(self, op: Operation) -> None:
        operands = [self.values[v] for v in ir.operands_of(op)]
        if isinstance(op, ReturnOp):
            self.block.add_op(ir.create_op(ReturnOp, operands, ()))
            return
        assert isinstance(op, prim.PrimOp)
        made = self.e.copy(op, operands)
        self.values.update(zip(op.results, made, strict=True))

    # ---- pieces

    def _write_pieces(self) -> None:
        region = self.region
        parts: dict[SSAValue, list[SSAValue]] = {v: [] for v in region.outputs}
        totals: dict[SSAValue, SSAValue] = {}
        for number in range(self.count):
            piece, last = _Piece(self, number), self.block.last_op
            for op in region.ops:
                piece.write(op, totals)
            self._mark(last, self.first + number)
            for value, found in parts.items():
                found.append(piece.own[value])
        for value, found in parts.items():
            self.values[value] = self.e.concat(found, region.dims[value])
        self.values.update(totals)

    def _mark(self, last: Operation | None, piece: int) -> None:
        """Write on all that was made since which piece it belongs to; what is made from literals has none."""
        made = self.block.first_op if last is None else last.next_op
        while made is not None:
            if not isinstance(made, prim.SourceOp):
                made.attributes[PIECE] = Literal.of(piece)
            made = made.next_op


class _Piece:
    """The region for some of the rows."""

    def __init__(self, chunks: _Chunks, number: int) -> None:
        self.chunks, self.e, self.region = chunks, chunks.e, chunks.region
        self.start, self.rows = number * chunks.rows, chunks.rows
        self.own: dict[SSAValue, SSAValue] = {}
        self._cut: dict[tuple[SSAValue, int], SSAValue] = {}

    def write(self, op: Operation, totals: dict[SSAValue, SSAValue]) -> None:
        """Make an op of the region for these rows; sums are added to `totals`."""
        assert isinstance(op, prim.PrimOp)
        self.e.location = op.location
        operands = self._operands(op)
        if op.results[0] in self.region.sums:
            part = self.e.op(type(op), operands, literals_of(op)).results[0]
            before = totals.get(op.results[0])
            totals[op.results[0]] = part if before is None else self._added(op, part, before)
            return
        made = self._made(op, operands, self.region.dims[op.results[0]])
        self.own.update(zip(op.results, made, strict=True))

    def _added(self, op: Operation, part: SSAValue, before: SSAValue) -> SSAValue:
        total = self.e.add(part, before)
        if isinstance(op, prim.DotOp):
            cast(Operation, total.owner).attributes[ACCUMULATES] = Literal.of(True)
        return total

    def _made(self, op: prim.PrimOp, operands: list[SSAValue], dim: int) -> Sequence[SSAValue]:
        """Make an op again on pieces, of results whose rows are in a dim."""
        types = [ir.tensor(self._shape(r, dim), ir.dtype_of(r)) for r in op.results] if op.EXPLICIT else None
        return self.e.op(type(op), operands, literals_of(op), types).results

    def _operands(self, op: prim.PrimOp) -> list[SSAValue]:
        dims = self.region.dims
        given = ir.operands_of(op)
        if isinstance(op, prim.DotOp):
            return self._of_dot(op)
        if isinstance(op, prim.GatherOp):
            own = row_index(op, dims)
            indices = [
                self.e.iota((self.rows, *ir.shape_of(v)[1:]), 0) if k == own else self.cut(v, 0)
                for k, v in enumerate(op.indices)
            ]
            return [self.own[op.x], *indices]
        at = next((dims[r] for r in op.results if r in dims), 0)
        return [self.own[v] if v in dims else self.cut(v, at) for v in given]

    def _of_dot(self, op: prim.DotOp) -> list[SSAValue]:
        """Pieces of what has the rows, and of what is contracted with them or (of the first product) gives them."""
        dims, found = self.region.dims, list[SSAValue]()
        pairs = list(zip(ints(op.contract_a.data), ints(op.contract_b.data), strict=True))
        for value, other, mine in ((op.a, op.b, 0), (op.b, op.a, 1)):
            if value in dims:
                found.append(self.own[value])
                continue
            along = [pair[mine] for pair in pairs if other in dims and pair[1 - mine] == dims[other]]
            first = op is self.region.ops[0] and mine == 0
            found.append(self.cut(value, along[0] if along else 0) if along or first else self.chunks.values[value])
        return found

    def cut(self, value: SSAValue, dim: int) -> SSAValue:
        """Give these rows of a value from outside; what is made on the way to it is made for these rows alone."""
        found = self._cut.get((value, dim))
        if found is None:
            found = self._cut[value, dim] = self._new_cut(value, dim)
        return found

    def _new_cut(self, value: SSAValue, dim: int) -> SSAValue:
        e, op, dtype = self.e, value.owner, ir.dtype_of(value)
        shape = self._shape(value, dim)
        if isinstance(op, prim.ConstOp):
            return e.const(op.value.data, shape, dtype)
        if isinstance(op, prim.IotaOp):
            along = integer(op.dim.data)
            made = e.iota(shape, along, dtype)
            return made if along != dim else e.add(made, e.const(self.start, shape, dtype))
        if isinstance(op, prim.BroadcastOp):
            dims = ints(op.dims.data)
            inner = self.chunks.values.get(op.x)
            if dim in dims:
                inner = self.cut(op.x, dims.index(dim))
            assert inner is not None
            return e.broadcast(inner, shape, dims)
        if isinstance(op, prim.ElementwiseOp) and len(shape) > 1:
            return self._made(op, [self.cut(v, dim) for v in op.operands], dim)[0]
        return e.slice(self.chunks.values[value], dim, self.start, self.start + self.rows)

    def _shape(self, value: SSAValue, dim: int) -> Shape:
        shape = ir.shape_of(value)
        return (*shape[:dim], self.rows, *shape[dim + 1 :])


def _erase_unused(block: Block) -> None:
    """Take out what was made for whole rows and that only pieces use."""
    for op in reversed(list(block.ops)):
        pure = isinstance(op, prim.PrimOp) and not isinstance(op, (prim.OpaqueOp, prim.ControlOp))
        if pure and not any(r.first_use for r in op.results):
            op.detach()
            op.erase()
