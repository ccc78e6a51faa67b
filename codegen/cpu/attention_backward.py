"""Attention without a matrix of scores, backward: keys in blocks, and for each the queries that see them.

Weights are computed again from the log-sums. With S[key, query] as forward, for a block of keys and one of queries

    P = e^(S - lse);  dV += P G;  D = P·(V Gᵀ - δ)·scale;  dK += D Q;  dQ += Dᵀ K

where δ = Σ g·o per query. dK and dV of a block stay in scratch memory until all queries of all heads that share the
key have passed, dQ is added to block by block of keys, in order: sums do not depend on threads. Where there are few
heads, `split` makes blocks of keys (dK, dV) and blocks of queries (dQ) units of their own: P and D are then computed
twice, and every sum has the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from isthmus.codegen.cpu.attention_blocks import Blocks
from isthmus.codegen.llvm_text import I1, Module, Value
from isthmus.codegen.vector_math import UNARY
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target

G, Q, K, V, DELTA, LSE = range(6)
"""Numbers of the operands; a mask may follow, then dq, dk, dv."""

Place: TypeAlias = tuple[Value, Value, Value]
"""Batch, head, and the first position of a block."""

Meet: TypeAlias = Callable[[Place, Value, Value, Value], None]
"""(queries' place, first key, number of queries, number of keys)"""


def emit_attention_bwd(module: Module, op: k.AttentionBwdOp, target: Target, name: str) -> str:
    """Add the functions of a kernel of attention's derivative to a module and give the name of the one to call.

    `void @name(ptr buffers, ptr sizes, i64 begin, i64 end)` computes partitions begin <= p < end, each a run of heads
    of k. Raises UnsupportedError for dtypes without tiles and heads of unknown width.
    """
    _Backward(module, op, target, name).emit()
    return name


class _Backward(Blocks):
    """Writes the function."""

    def emit(self) -> None:
        """Write it."""
        wide, tall, queries, keys = self.width(Q), self.width(V), self.queries, self.keys
        batch, key_heads, length, _ = (self.size(d) for d in self.buffers[K].shape)
        groups = self.divided(self.size(self.buffers[Q].shape[1]), key_heads)
        self.reserve(
            {
                **{"q": queries * wide, "qt": wide * queries, "g": queries * tall, "gt": tall * queries},
                **{"k": keys * wide, "v": keys * tall, "dk": keys * wide, "dv": keys * tall},
                **{"s": keys * queries, "d": keys * queries, "dq": queries * wide},
                **{"top": queries, "lse": queries, "delta": queries},
            }
        )
        self.groups = groups
        heads, count = (self.size(n) for n in self.buffers[Q].shape[1:3])
        if not isinstance(self.op, k.AttentionBwdOp) or self.op.split is None:
            with self.units(batch * key_heads) as unit:
                key_head, b = self.split(unit, key_heads)
                with self.f.loop(0, self.most(length, 1), keys) as start:
                    self._keys((b, key_head, start), groups, self._both)
            self.finish()
            return
        blocks, own = (self.divided(n + (size - 1), size) for n, size in ((length, keys), (count, queries)))
        first = batch * key_heads * blocks
        with self.units(first + batch * heads * own) as unit:
            of_keys = self.f.compare("slt", unit, first)
            with self.f.when(of_keys):
                block, rest = self.split(unit, blocks)
                key_head, b = self.split(rest, key_heads)
                self._keys((b, key_head, block * keys), groups, self._for_keys)
            with self.f.when(~of_keys):
                block, rest = self.split(unit - first, own)
                head, b = self.split(rest, heads)
                self._queries((b, head, block * queries), self.divided(head, groups))
        self.finish()

    # ---- a block of keys with all of its queries, and a block of queries with all of its keys

    def _keys(self, at: Place, groups: Value, meet: Meet) -> None:
        """dK and dV of a block of keys; `meet` is called for each block of queries."""
        f, (b, key_head, start) = self.f, at
        count = self.size(self.buffers[Q].shape[2])
        steps = self.least(self.size(self.buffers[K].shape[2]) - start, self.keys)
        self._pack_keys(at, steps)
        self.fill("dk", self.keys * self.width(Q), 0.0)
        self.fill("dv", self.keys * self.width(V), 0.0)
        low = self.divided(start, self.queries) * self.queries if self.causal else f.index(0)
        with f.loop(key_head * groups, (key_head + 1) * groups) as head:
            with f.loop(low, count, self.queries) as first:
                here = (b, head, first)
                inside = self.least(count - first, self.queries)
                self._pack_queries(here, inside)
                meet(here, start, inside, steps)
            if self.weighs_hidden:
                self._weigh_earlier(Q, "dk", (b, head, start), steps)
                self._weigh_earlier(G, "dv", (b, head, start), steps)
        results = len(self.op.inputs)
        self.write("dk", results + 1, at, steps)
        self.write("dv", results + 2, at, steps)

    def _queries(self, at: Place, key_head: Value) -> None:
        """dQ of a block of queries."""
        f, (b, _, first) = self.f, at
        length = self.size(self.buffers[K].shape[2])
        count = self.least(self.size(self.buffers[Q].shape[2]) - first, self.queries)
        self._pack_queries(at, count)
        end = self.least(length, first + count) if self.causal else length
        with f.loop(0, self.most(end, 1), self.keys) as start:
            steps = self.least(end - start, self.keys)
            self._pack_keys((b, key_head, start), steps)
            self._meet(at, start, count, steps)
            self._to_queries(first - start, count, steps, f.compare("eq", start, 0))
        if self.weighs_hidden:
            self.weigh_later(K, (b, key_head, first), "dq", count)
        self.write("dq", len(self.op.inputs), at, count)

    def _weigh_earlier(self, number: int, out: str, at: Place, rows: Value) -> None:
        """Add to each row j of a block of keys what earlier rows of q, or of g by e^(s - lse), are worth."""
        f, (b, head, start) = self.f, at
        self.fill("sums", self.width(number), 0.0)
        self.fill("weights", self.queries, 0.0)

        def weigh(first: Value, count: Value, out: str | None) -> None:
            if number == G:
                place = (f.index(1), b, head, first) if self.buffers[LSE].is_apart else (b, head, first)
                self.copy_row(LSE, place, count, "weights")
            self.weigh(number, (b, head, first), count, 1, out)

        with f.loop(0, start, self.queries) as first:
            weigh(first, f.index(self.queries), None)
        weigh(start, rows, out)

    def _pack_keys(self, at: Place, steps: Value) -> None:
        self.copy(K, at, steps, "k")
        self.copy(V, at, steps, "v")

    def _pack_queries(self, at: Place, count: Value) -> None:
        f, wide, tall, columns = self.f, self.width(Q), self.width(V), self.in_tiles(count)
        self.copy(Q, at, count, "q")
        self.turn("q", columns, wide, wide, "qt", self.scale)
        self.copy(G, at, count, "g")
        self.turn("g", columns, tall, tall, "gt")
        if self.buffers[LSE].is_apart:
            self.copy_row(LSE, (f.index(0), *at), count, "top")
            self.copy_row(LSE, (f.index(1), *at), count, "lse")
        else:
            self.copy_row(LSE, at, count, "lse")
        self.copy_row(DELTA, at, count, "delta")

    # ---- packed blocks that meet

    def _both(self, at: Place, start: Value, count: Value, steps: Value) -> None:
        """All three gradients; dQ is added to what blocks of keys before gave."""
        f, offset = self.f, at[2] - start
        self._for_keys(at, start, count, steps)
        self._to_queries(offset, count, steps, f.const(1, I1))
        if self.weighs_hidden:
            with f.when(f.compare("eq", offset, 0)):
                self.weigh_later(K, (at[0], self.divided(at[1], self.groups), start), "dq", count)
        self.write("dq", len(self.op.inputs), at, count, f.compare("ne", start, 0))

    def _for_keys(self, at: Place, start: Value, count: Value, steps: Value) -> None:
        """dV += P G and dK += D Q."""
        wide, tall, offset, no = self.width(Q), self.width(V), at[2] - start, self.f.const(0, I1)
        self._meet(at, start, count, steps)
        self.product(self.per_key(tall), ("s", "g", "dv"), (steps, tall, count), offset, no)
        self.product(self.per_key(wide), ("d", "q", "dk"), (steps, wide, count), offset, no)

    def _to_queries(self, offset: Value, count: Value, steps: Value, begins: Value) -> None:
        """dQ = Dᵀ K, or what it was and that."""
        wide = self.width(Q)
        self.product(self.per_query(wide), ("d", "k", "dq"), (count, wide, steps), offset, begins)

    def _meet(self, at: Place, start: Value, count: Value, steps: Value) -> None:
        """P and D."""
        columns, offset, yes = self.in_tiles(count), at[2] - start, self.f.const(1, I1)
        e, d = (self.size(self.buffers[i].shape[3]) for i in (Q, V))
        self.product(self.scores_of(self.width(Q)), ("k", "qt", "s"), (steps, columns, e), offset, yes)
        self.product(self.scores_of(self.width(V)), ("v", "gt", "d"), (steps, columns, d), offset, yes)
        if self.mask is not None:
            self.copy_mask(at, start, count, steps)
        self._weights(columns, steps, offset)

    def _weights(self, columns: Value, keys: Value, offset: Value) -> None:
        """P in place of S, and D in place of V Gᵀ."""
        f, exp = self.f, UNARY["exp"]
        zero = f.const(0.0, self.vector)
        with f.loop(0, columns, self.lanes) as c:
            top, lse, delta = (
                f.load(f.address(self.block[b], c, self.scalar), self.vector) for b in ("top", "lse", "delta")
            )
            if not self.nan_where_empty:
                lse = f.select(f.compare("oeq", lse, -math.inf), zero, lse)
            end = self.last_key(c, keys, offset)

            def weighted(
                key: Value,
                at: Value,
                x: Value,
                seen: Value | None,
                c: Value = c,
                sums: tuple[Value, ...] = (top, lse, delta),
            ) -> None:
                top, lse, delta = sums
                p = exp(self.math, (x - top if self.buffers[LSE].is_apart else x) - lse)
                f.store(p, at)
                d_at = self.score("d", key, c)
                d = p * (f.load(d_at, self.vector) - delta) * self.scale
                if self.mask is not None and self.mask.dtype == "i1":  # what is not allowed is no part of a score
                    allowed = f.load(self.score("mask", key, c), self.vector)
                    d = f.select(f.compare("une", allowed, 0.0), d, zero)
                f.store(d if seen is None else f.select(seen, d, zero), d_at)

            self.each_score(c, end, offset, weighted)
            self.clear_beyond(end, keys, c, "s", "d")
