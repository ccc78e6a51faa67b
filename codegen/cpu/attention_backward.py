"""Attention without a matrix of scores, backward: keys in blocks, and for each the queries that see them.

Weights are computed again from the log-sums. With S[key, query] as forward, for a block of keys and one of queries

    P = e^(S - lse);  dV += P G;  D = P·(V Gᵀ - δ)·scale;  dK += D Q;  dQ += Dᵀ K

where δ = Σ g·o per query. dK and dV of a block stay in scratch memory until all queries of all heads that share the
key have passed, dQ is added to block by block of keys, in order: sums do not depend on threads.
"""

from __future__ import annotations

import math

from isthmus.codegen.cpu.attention_blocks import Blocks
from isthmus.codegen.cpu.block_product import Layout
from isthmus.codegen.llvm_text import I1, Module, Value
from isthmus.codegen.vector_math import UNARY
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target

G, Q, K, V, DELTA, LSE = range(6)
"""Numbers of the operands; a mask may follow, then dq, dk, dv."""


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
        with self.units(batch * key_heads) as unit:
            key_head, b = self.split(unit, key_heads)
            with self.f.loop(0, self.most(length, 1), keys) as start:
                self._keys((b, key_head, start), self.least(length - start, keys), groups)
        self.finish()

    def _keys(self, at: tuple[Value, Value, Value], steps: Value, groups: Value) -> None:
        """A block of keys against all of its queries."""
        f, (b, key_head, start) = self.f, at
        count = self.size(self.buffers[Q].shape[2])
        self.copy(K, at, steps, "k")
        self.copy(V, at, steps, "v")
        self.fill("dk", self.keys * self.width(Q), 0.0)
        self.fill("dv", self.keys * self.width(V), 0.0)
        low = self.divided(start, self.queries) * self.queries if self.causal else f.index(0)
        with f.loop(key_head * groups, (key_head + 1) * groups) as head:
            with f.loop(low, count, self.queries) as first:
                self._queries((b, head, first), start, self.least(count - first, self.queries), steps)
        results = len(self.op.inputs)
        self.write("dk", results + 1, at, steps)
        self.write("dv", results + 2, at, steps)

    def _queries(self, at: tuple[Value, Value, Value], start: Value, count: Value, steps: Value) -> None:
        """A block of queries against a block of keys."""
        f, (_, _, first), queries = self.f, at, self.queries
        wide, tall = self.width(Q), self.width(V)
        columns, offset = self.in_lanes(count), first - start
        yes, no = f.const(1, I1), f.const(0, I1)
        rows, last, past = ("rows", "last", "first") if self.causal else ("none", "none", "none")
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
        e, d = (self.size(self.buffers[i].shape[3]) for i in (Q, V))
        self.product(Layout(wide, 1, queries, queries, rows), ("k", "qt", "s"), (steps, columns, e), offset, yes)
        self.product(Layout(tall, 1, queries, queries, rows), ("v", "gt", "d"), (steps, columns, d), offset, yes)
        if self.mask is not None:
            self.copy_mask(at, start, count, steps)
        self._weights(columns, steps, offset)
        self.product(Layout(queries, 1, tall, tall, past), ("s", "g", "dv"), (steps, tall, count), offset, no)
        self.product(Layout(queries, 1, wide, wide, past), ("d", "q", "dk"), (steps, wide, count), offset, no)
        self.product(Layout(1, queries, wide, wide, last), ("d", "k", "dq"), (count, wide, steps), offset, yes)
        self.write("dq", len(self.op.inputs), at, count, f.compare("ne", start, 0))

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
                key: Value, at: Value, x: Value, c: Value = c, sums: tuple[Value, ...] = (top, lse, delta)
            ) -> None:
                top, lse, delta = sums
                p = exp(self.math, (x - top if self.buffers[LSE].is_apart else x) - lse)
                f.store(p, at)
                d_at = self.score("d", key, c)
                d = p * (f.load(d_at, self.vector) - delta) * self.scale
                if self.mask is not None and self.mask.dtype == "i1":  # what is not allowed is no part of a score
                    allowed = f.load(self.score("mask", key, c), self.vector)
                    d = f.select(f.compare("une", allowed, 0.0), d, zero)
                f.store(d, d_at)

            self.each_score(c, end, offset, weighted)
            self.clear_beyond(end, keys, c, "s", "d")
