"""Attention without a matrix of scores, forward: for a block of queries, keys pass block by block.

Scores are held turned, S[key, query], so that what a softmax wants of a row (its maximum, its sum) is had by vectors of
queries, key after key. With m the maximum so far of each query and z the sum so far of e^(s - m), a block of keys does

    S = K Qᵀ·scale, masked;  m' = max(m, max S);  P = e^(S - m');  z = z·e^(m - m') + Σ P;  O = O·e^(m - m') + Pᵀ V

and the end is o = O / z, lse = m + ln z (Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et
al., "FlashAttention", 2022).
"""

from __future__ import annotations

import math

from isthmus.codegen.cpu.attention_blocks import Blocks
from isthmus.codegen.llvm_text import I1, Module, Value
from isthmus.codegen.vector_math import UNARY
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target


def emit_attention(module: Module, op: k.AttentionOp, target: Target, name: str) -> str:
    """Add the functions of an attention kernel to a module and give the name of the one to call.

    `void @name(ptr buffers, ptr sizes, i64 begin, i64 end)` computes partitions begin <= p < end, each a run of blocks
    of queries. Raises UnsupportedError for dtypes without tiles and heads of unknown width.
    """
    _Forward(module, op, target, name).emit()
    return name


class _Forward(Blocks):
    """Writes the function. Buffers: q, k, v, (mask), o, lse."""

    def emit(self) -> None:
        """Write it."""
        q, keys = self.buffers[:2]
        wide, tall = self.width(0), self.width(2)
        heads, length = self.size(q.shape[1]), self.size(q.shape[2])
        groups = self.divided(heads, self.size(keys.shape[1]))
        blocks = self.divided(length + (self.queries - 1), self.queries)
        rows = {"top": self.queries, "total": self.queries, "factor": self.queries}
        factors = {"q": self.queries * wide, "qt": wide * self.queries, "k": self.keys * wide, "v": self.keys * tall}
        self.reserve({**factors, "s": self.keys * self.queries, "o": self.queries * tall, **rows})
        with self.units(self.size(q.shape[0]) * heads * blocks) as unit:
            block, rest = self.split(unit, blocks)
            head, b = self.split(rest, heads)
            first = block * self.queries
            self._block((b, head, first), self.divided(head, groups), self.least(length - first, self.queries))
        self.finish()

    def _block(self, at: tuple[Value, Value, Value], key_head: Value, count: Value) -> None:
        """A block of queries against all of its keys."""
        f, (b, _, first) = self.f, at
        wide, tall = self.width(0), self.width(2)
        columns, length = self.in_tiles(count), self.size(self.buffers[1].shape[2])
        self.copy(0, at, count, "q")
        self.turn("q", columns, wide, wide, "qt", self.scale)
        self.fill("top", self.queries, -math.inf)
        self.fill("total", self.queries, 0.0)
        end = self.least(length, first + count) if self.causal else length
        with f.loop(0, self.most(end, 1), self.keys) as start:  # once where there are no keys
            steps, offset = self.least(end - start, self.keys), first - start
            self.copy(1, (b, key_head, start), steps, "k")
            self.copy(2, (b, key_head, start), steps, "v")
            extents = (steps, columns, self.size(self.buffers[0].shape[3]))
            self.product(self.scores_of(wide), ("k", "qt", "s"), extents, offset, f.const(1, I1))
            if self.mask is not None:
                self.copy_mask(at, start, count, steps)
            begins = f.compare("eq", start, 0)
            self._softmax(columns, steps, offset)
            with f.when(~begins):
                self.scaled("o", "factor", count, tall)
            self.product(self.per_query(tall), ("s", "v", "o"), (count, tall, steps), offset, begins)
        self._end((b, key_head), at, count, columns)

    def _softmax(self, columns: Value, keys: Value, offset: Value) -> None:
        """Scores of a block become weights; maxima, sums and the factor for what was before follow."""
        f, exp = self.f, UNARY["exp"]
        held = f.slot(self.vector)

        def raised(key: Value, at: Value, x: Value, seen: Value | None) -> None:
            if self.alters:
                f.store(x, at)
            top = f.load(held, self.vector, 64)
            f.store(f.select(f.compare("ogt", x, top), x, top), held, 64)

        with f.loop(0, columns, self.lanes) as c:
            end = self.last_key(c, keys, offset)
            top_at, total_at = (f.address(self.block[b], c, self.scalar) for b in ("top", "total"))
            before = f.load(top_at, self.vector)
            f.store(before, held, 64)
            self.each_score(c, end, offset, raised)
            top = f.load(held, self.vector, 64)
            f.store(top, top_at)
            finite = f.select(f.compare("oeq", top, -math.inf), f.const(0.0, self.vector), top)
            factor = exp(self.math, before - finite)
            f.store(factor, f.address(self.block["factor"], c, self.scalar))
            f.store(f.load(total_at, self.vector) * factor, held, 64)
            with f.loop(0, end) as key:
                at = self.score("s", key, c)
                p = exp(self.math, f.load(at, self.vector) - finite)
                f.store(p, at)
                f.store(f.load(held, self.vector, 64) + p, held, 64)
            f.store(f.load(held, self.vector, 64), total_at)
            self.clear_beyond(end, keys, c, "s")

    def _end(self, keys: tuple[Value, Value], at: tuple[Value, Value, Value], count: Value, columns: Value) -> None:
        """o = O / z, lse = m + ln z."""
        f, results = self.f, len(self.op.inputs)
        apart = self.buffers[results + 1].is_apart
        with f.loop(0, columns, self.lanes) as c:
            total = f.load(f.address(self.block["total"], c, self.scalar), self.vector)
            factor = f.const(1.0, self.vector) / total
            if not self.nan_where_empty:
                empty = f.compare("oeq", total, 0.0)
                factor = f.select(empty, f.const(0.0, self.vector), factor)
            f.store(factor, f.address(self.block["factor"], c, self.scalar))
            top_at, total_at = (f.address(self.block[b], c, self.scalar) for b in ("top", "total"))
            top, rest = f.load(top_at, self.vector), UNARY["log"](self.math, total)
            if apart:
                nothing = f.compare("oeq", top, -math.inf)
                f.store(f.select(nothing, f.const(0.0, self.vector), top), top_at)
                f.store(rest, total_at)
            else:
                f.store(top + rest, top_at)
        self.scaled("o", "factor", count, self.width(2))
        if self.weighs_hidden:
            self.weigh_later(2, (*keys, at[2]), "o", count)
        self.write("o", results, at, count)
        if apart:
            self.write_row("top", results + 1, (f.index(0), *at), count)
            self.write_row("total", results + 1, (f.index(1), *at), count)
        else:
            self.write_row("top", results + 1, at, count)
