"""What both directions of attention share: blocks in scratch memory, masks, partitions.

Everything is computed on blocks that are packed into scratch memory, so strides, tails and booleans end at the copies:
a block has room for whole tiles, and what lies beyond its ends is computed on and never written anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, cast

from isthmus import ir
from isthmus.codegen.cpu.attention_hidden import emit_weighed
from isthmus.codegen.cpu.block_moves import emit_copy, emit_fill, emit_scale, emit_turn, emit_write
from isthmus.codegen.cpu.block_product import Layout, Tile, emit_product
from isthmus.codegen.cpu.counts import Counts
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.cpu.workspace import leave_workspace, take_workspace
from isthmus.codegen.dtypes import MEMORY
from isthmus.codegen.llvm_text import I1, I64, PTR, Function, Module, Type, Value
from isthmus.codegen.vector_math import Math
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target
from isthmus.ir import Shape

STAGGER = 3 * k.LINE
"""Bytes between blocks, so that equal places of two blocks do not fall on the same sets of a cache."""


Score: TypeAlias = Callable[[Value, Value, Value, Value | None], None]
"""What is done with a score: (key, address, score, which queries see the key or None where all do)."""


@dataclass(frozen=True)
class Buffer:
    """An operand or result: where it is, and its strides in elements."""

    pointer: Value
    dtype: str
    shape: Shape
    strides: Shape

    @property
    def is_apart(self) -> bool:
        """Whether log-sums are in two parts."""
        return len(self.shape) == 4

    @property
    def near(self) -> bool:
        """Whether neighbours along the last dim are neighbours in memory."""
        return self.strides[-1] == 1


class Blocks(Counts):
    """A function under construction: `void @name(ptr buffers, ptr sizes, i64 begin, i64 end)`."""

    def __init__(self, module: Module, op: k.StreamOp, target: Target, name: str) -> None:
        dtype = ir.dtype_of(op.inputs[op.query])
        if op.tile is None or op.block_sizes is None:
            raise UnsupportedError("has no tile: schedule has not run", op=op.name)
        if dtype not in ("f32", "f64"):
            raise UnsupportedError(f"has no CPU code for {dtype}", op=op.name, location=ir.source_location(op))
        self.module, self.op, self.name = module, op, name
        self.scalar, self.itemsize = MEMORY[dtype], ir.itemsize(dtype)
        self.tile = Tile(*cast("tuple[int, int, int]", op.tile.data))
        self.lanes = self.tile.lanes
        self.queries, self.keys = cast("tuple[int, int]", op.block_sizes.data)
        self.vector = Type.of(self.scalar, self.lanes)
        self.scale, self.causal = cast(float, op.scale.data), op.causal.data is True
        self.nan_where_empty = op.empty is not None and op.empty.data == "nan"
        self.fill_score = -math.inf if op.fill is None else cast(float, op.fill.data)
        self.weighs_hidden = self.causal and op.hidden is not None and op.hidden.data == "weighed"
        self.fused = target.has("fma")
        f = self.f = Function(module, name, [("buffers", PTR), ("sizes", PTR), ("begin", I64), ("end", I64)])
        buffers, sizes, _, _ = f.arguments
        with f.at_entry():
            symbols = {s: f.load(f.address(sizes, i, "i64"), I64) for i, s in enumerate(op.symbols_)}
            count = len(op.inputs) + len(op.results)
            pointers = [f.load(f.address(buffers, i, "ptr"), PTR) for i in range(count)]
        self.size = SizeValues(f, symbols)
        self.math = Math(f, target)
        self.buffers = [self._buffer(i, pointer) for i, pointer in enumerate(pointers)]
        self.mask = None if op.mask is None else self.buffers[op.mask]
        self.block: dict[str, Value] = {}
        self._memory: Value | None = None
        self._made: dict[object, str] = {}

    def _buffer(self, number: int, pointer: Value) -> Buffer:
        value = (*self.op.inputs, *self.op.results)[number]
        shape, strides, _ = k.seen_of(self.op, number)
        return Buffer(pointer, ir.dtype_of(value), shape, strides)

    def width(self, number: int) -> int:
        """Elements of a row of a buffer in whole vectors. UnsupportedError where it is not known."""
        last = self.buffers[number].shape[3]
        if not isinstance(last, int):
            raise UnsupportedError("has no CPU code for heads of unknown width", op=self.op.name)
        return -(-last // self.lanes) * self.lanes

    # ---- scratch memory and partitions

    def reserve(self, elements: Mapping[str, int]) -> None:
        """Take scratch memory for the whole call: blocks by name."""
        if self.mask is not None:
            elements = {**elements, "allowed": self.queries * self.keys, "mask": self.keys * self.queries}
        if self.weighs_hidden:
            room = max(self.queries, self.keys) * max(self.width(i) for i in range(self.op.query, self.op.query + 3))
            elements = {**elements, "hidden": room, "sums": room, "weights": max(self.queries, self.keys)}
        f, at = self.f, 0
        places: dict[str, int] = {}
        for name, count in elements.items():
            places[name] = at
            at += -(-count * self.itemsize // k.LINE) * k.LINE + STAGGER
        self._memory = take_workspace(f, f.index(at))
        self.block = {name: f.address(self._memory, place, "i8") for name, place in places.items()}

    @contextmanager
    def units(self, count: Value) -> Generator[Value]:
        """Walk the units of the partitions of this call: partition p of P has p·count/P to (p + 1)·count/P."""
        f = self.f
        _, _, begin, end = f.arguments
        parts = self.size(self.op.partitions_ or 1)
        low, high = self.divided(begin * count, parts), self.divided(end * count, parts)
        with f.loop(low, high) as unit:
            yield unit

    def finish(self) -> None:
        """Give the scratch memory back and end the function."""
        assert self._memory is not None
        leave_workspace(self.f, self._memory)
        self.f.finish()

    # ---- numbers

    def in_lanes(self, count: Value) -> Value:
        """Rounded up to whole vectors."""
        return (count + (self.lanes - 1)) & -self.lanes

    def in_tiles(self, count: Value) -> Value:
        """Rounded up to whole tiles of columns."""
        return (count + (self.tile.columns - 1)) & -self.tile.columns

    def scores_of(self, width: int) -> Layout:
        """S[key, query] = Σ over d of K[key, d] · Qᵀ[d, query]."""
        return Layout(width, 1, self.queries, self.queries, "rows" if self.causal else "none")

    def per_query(self, width: int) -> Layout:
        """O[query, d] = Σ over keys of P[key, query] · V[key, d]."""
        bound = "last" if self.causal else "none"
        return Layout(1, self.queries, width, width, bound, width % self.tile.columns != 0)

    def per_key(self, width: int) -> Layout:
        """dV[key, d] = Σ over queries of P[key, query] · G[query, d]."""
        bound = "first" if self.causal else "none"
        return Layout(self.queries, 1, width, width, bound, width % self.tile.columns != 0)

    def most(self, a: Value, b: int) -> Value:
        """The larger one."""
        if a.constant is not None:
            return self.f.index(max(a.constant, b))
        return self.f.intrinsic("smax", a, self.f.index(b))

    # ---- moves

    def _function(self, kind: str, key: object, emit: Callable[[str], None]) -> str:
        """The name of a function of the module, emitted when it is first wanted."""
        name = self._made.get((kind, key))
        if name is None:
            name = self._made[kind, key] = f"{self.name}_{kind}{len(self._made)}"
            emit(name)
        return name

    def place(self, buffer: Buffer, at: Sequence[Value]) -> Value:
        """The address of an element, given by its first indices."""
        total = self.f.index(0)
        for index, stride in zip(at, buffer.strides, strict=False):
            total = total + index * self.size(stride)
        return self.f.address(buffer.pointer, total, MEMORY[buffer.dtype] if buffer.dtype != "i1" else "i8")

    def copy(self, number: int, at: Sequence[Value], rows: Value, block: str, columns: Value | None = None) -> None:
        """Rows of a buffer into a block; all columns unless a number is given."""
        buffer = self.buffers[number]
        pitch = self.width(number) if columns is None else self.keys
        flags = buffer.dtype == "i1"
        key = (buffer.near, flags, pitch)
        name = self._function(
            "copy",
            key,
            lambda n: emit_copy(self.module, n, self.scalar, self.lanes, pitch, near=buffer.near, flags=flags),
        )
        row, column = (self.size(s) for s in buffer.strides[2:])
        wide = self.size(buffer.shape[3]) if columns is None else columns
        self.f.call_void(name, self.place(buffer, at), row, column, rows, wide, self.block[block])

    def copy_row(self, number: int, at: Sequence[Value], count: Value, block: str) -> None:
        """Neighbours along the last dim of a buffer [B, H, L] into a block."""
        buffer = self.buffers[number]
        key = (buffer.near, False, 0)
        name = self._function(
            "copy", key, lambda n: emit_copy(self.module, n, self.scalar, self.lanes, 0, near=buffer.near, flags=False)
        )
        column, one = self.size(buffer.strides[-1]), self.f.index(1)
        self.f.call_void(name, self.place(buffer, at), one, column, one, count, self.block[block])

    def turn(self, block: str, rows: Value, columns: Value | int, pitch: int, out: str, scale: float = 1.0) -> None:
        """A block on its side: rows of `pitch` elements become columns, `queries` elements apart."""
        name = self._function(
            "turn",
            (pitch, scale),
            lambda n: emit_turn(self.module, n, self.scalar, self.lanes, pitch, self.queries, scale),
        )
        self.f.call_void(name, self.block[block], rows, self.f.index(columns), self.block[out])

    def scaled(self, block: str, factors: str, rows: Value, width: int) -> None:
        """Row i of a block times factor i."""
        name = self._function("scale", width, lambda n: emit_scale(self.module, n, self.scalar, self.lanes, width))
        self.f.call_void(name, self.block[block], self.block[factors], rows, self.f.index(width))

    def fill(self, block: str, elements: Value | int, value: float) -> None:
        """One number everywhere, in whole vectors."""
        name = self._function("fill", value, lambda n: emit_fill(self.module, n, self.scalar, self.lanes, value))
        self.f.call_void(name, self.block[block], self.f.index(elements))

    def write(self, block: str, number: int, at: Sequence[Value], rows: Value, adds: Value | None = None) -> None:
        """Rows of a block into a buffer, added to what is there where `adds` holds."""
        buffer, pitch = self.buffers[number], self.width(number)
        row, column = (self.size(s) for s in buffer.strides[2:])
        self._write(block, buffer, at, (row, column), (rows, self.size(buffer.shape[3])), pitch, adds)

    def write_row(self, block: str, number: int, at: Sequence[Value], count: Value) -> None:
        """A block into neighbours along the last dim of a buffer [B, H, L]."""
        buffer, one = self.buffers[number], self.f.index(1)
        self._write(block, buffer, at, (one, self.size(buffer.strides[-1])), (one, count), 0, None)

    def _write(
        self,
        block: str,
        buffer: Buffer,
        at: Sequence[Value],
        steps: tuple[Value, Value],
        extents: tuple[Value, Value],
        pitch: int,
        adds: Value | None,
    ) -> None:
        name = self._function(
            "write",
            (pitch, buffer.near),
            lambda n: emit_write(self.module, n, self.scalar, self.lanes, pitch, near=buffer.near),
        )
        adds = self.f.const(0, I1) if adds is None else adds
        self.f.call_void(name, self.block[block], self.place(buffer, at), *steps, *extents, adds)

    def weigh(self, number: int, at: Sequence[Value], rows: Value, step: int, out: str | None = None) -> None:
        """Add the rows of a buffer, times 0 and their weight, to "sums"; each row of `out` gets the sums before it.

        `step` is 1 for rows from the first up, -1 from the last down.
        """
        buffer, width, spreads = self.buffers[number], self.width(number), out is not None
        x, pitch = self.place(buffer, at), self.size(buffer.strides[2])
        if not buffer.near or buffer.shape[3] != width:
            self.copy(number, at, rows, "hidden")
            x, pitch = self.block["hidden"], self.f.index(width)
        name = self._function(
            "weigh",
            (width, spreads),
            lambda n: emit_weighed(self.module, n, self.scalar, self.lanes, width, spreads=spreads),
        )
        ends = self.block["sums"], self.block[out or "sums"]
        self.f.call_void(name, x, pitch, self.block["weights"], rows, self.f.index(step), *ends)

    def weigh_later(self, number: int, at: Sequence[Value], out: str, rows: Value) -> None:
        """Add to each row of a block of queries, from position at[2] on, what later rows of an operand are worth."""
        f, (batch, head, first) = self.f, at
        length = self.size(self.buffers[number].shape[2])
        self.fill("sums", self.width(number), 0.0)
        self.fill("weights", self.keys, 0.0)
        with f.loop(first + self.keys, length, self.keys) as start:
            self.weigh(number, (batch, head, start), self.least(length - start, self.keys), -1)
        self.weigh(number, at, rows, -1, out)

    def product(
        self, layout: Layout, parts: tuple[str, str, str], extents: Sequence[Value | int], offset: Value, begins: Value
    ) -> None:
        """c = a·b, or c + a·b; the blocks' names are parts, the rows, columns and steps are extents."""
        name = self._function(
            "product",
            layout,
            lambda n: emit_product(self.module, n, self.scalar, self.tile, layout, fused=self.fused),
        )
        blocks = (self.block[part] for part in parts)
        self.f.call_void(name, *blocks, *(self.f.index(e) for e in extents), offset, begins)

    # ---- scores: S[key, query]

    def copy_mask(self, at: Sequence[Value], start: Value, queries: Value, keys: Value) -> None:
        """The part of the mask for a block of queries and of keys, turned as scores are."""
        assert self.op.mask is not None and self.mask is not None
        self.copy(self.op.mask, (*at, start), queries, "allowed", keys)
        self.turn("allowed", self.in_lanes(queries), self.in_lanes(keys), self.keys, "mask")

    def score(self, block: str, key: Value, query: Value) -> Value:
        """The address of scores of a key."""
        at = self.f.address(self.block[block], key * self.queries, self.scalar)
        return self.f.address(at, query, self.scalar)

    def last_key(self, query: Value, keys: Value, offset: Value) -> Value:
        """How many keys of the block a vector of queries may see."""
        return self.least(keys, query + self.lanes + offset) if self.causal else keys

    def each_score(self, query: Value, end: Value, offset: Value, do: Score) -> None:
        """Call `do(key, address, score, seen)` for the keys of a vector of queries, the score masked.

        `seen`: which queries are not before the key, None where all of them.
        """
        f = self.f
        if not self.causal:
            with f.loop(0, end) as key:
                at = self.score("s", key, query)
                do(key, at, self._masked(f.load(at, self.vector), key, query), None)
            return
        seen = self.most(self.least(end, query + offset + 1), 0)  # by all queries of the vector
        lanes = f.lanes(range(self.lanes), "i64")
        for low, high, inside in ((f.index(0), seen, True), (seen, end, False)):
            with f.loop(low, high) as key:
                at = self.score("s", key, query)
                x = self._masked(f.load(at, self.vector), key, query)
                allowed: Value | None = None
                if not inside:
                    allowed = f.compare("sle", f.splat(key - query - offset, self.lanes), lanes)
                    x = f.select(allowed, x, -math.inf)
                do(key, at, x, allowed)

    def _masked(self, x: Value, key: Value, query: Value) -> Value:
        if self.mask is None:
            return x
        m = self.f.load(self.score("mask", key, query), self.vector)
        if self.mask.dtype == "i1":
            return self.f.select(self.f.compare("une", m, 0.0), x, self.fill_score)
        return x + m

    @property
    def alters(self) -> bool:
        """Whether scores are not what products give."""
        return self.causal or self.mask is not None

    def clear_beyond(self, end: Value, keys: Value, query: Value, *blocks: str) -> None:
        """Zeros for keys that a tile of the products may still read: not seen by any query of the vector."""
        if not self.causal:
            return
        f, zero = self.f, self.f.const(0.0, self.vector)
        start = self.most(end, 0)
        with f.loop(start, self.least(keys, start + self.tile.rows)) as key:
            for block in blocks:
                f.store(zero, self.score(block, key, query))
