"""Running combinations along the lanes of a vector: what came before joins each vector once.

Four lanes take two steps, s = x ⊕ (x a lane earlier), then s ⊕ (s two lanes earlier); the carry meets their total, so
that of each vector one combination waits for the vector before.
"""

from __future__ import annotations

from typing import cast

from isthmus.codegen.cpu import reductions
from isthmus.codegen.cpu.memory import choose
from isthmus.codegen.cpu.reductions import Combiner
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import Operand, constant
from isthmus.codegen.llvm_text import Value

LONGEST = 8
"""Lanes that are combined before the carry: products of so many f32 neither overflow nor lose digits in f64."""


def along_lanes(state: State, kind: str, dtype: str, x: Value, carry: Value, *, reverse: bool) -> tuple[Value, Value]:
    """Give the running combination of lanes after `carry`, from the last lane on when `reverse`, and the next carry."""
    f, lanes = state.f, x.type.lanes
    if state.mask is not None:  # lanes beyond the row
        x = cast(Value, choose(state, state.mask, x, state.splat(_identity(state, kind, dtype))))
    block = min(lanes, LONGEST)
    starts = range(0, lanes, block)
    parts: dict[int, Value] = {}
    for start in reversed(starts) if reverse else starts:
        part = x if block == lanes else f.shuffle(x, None, range(start, start + block))
        parts[start], carry = _block(state, kind, dtype, part, carry, reverse=reverse)
    joined = [parts[start] for start in starts]
    while len(joined) > 1:
        pairs = zip(joined[::2], joined[1::2], strict=True)
        joined = [f.shuffle(a, b, range(2 * a.type.lanes)) for a, b in pairs]
    return joined[0], carry


def _block(state: State, kind: str, dtype: str, x: Value, carry: Value, *, reverse: bool) -> tuple[Value, Value]:
    f, lanes, combine = state.f, x.type.lanes, Combiner(state, kind, dtype)
    nothing = f.splat(cast(Value, _identity(state, kind, dtype)), lanes)
    distance = 1
    while distance < lanes:
        earlier = range(distance, lanes + distance) if reverse else range(-distance, lanes - distance)
        moved = f.shuffle(x, nothing, [n if 0 <= n < lanes else lanes for n in earlier])
        x = cast(Value, combine(x, moved))
        distance *= 2
    total = f.extract(x, 0 if reverse else lanes - 1)
    return cast(Value, combine(x, f.splat(carry, lanes))), cast(Value, combine(total, carry))


def _identity(state: State, kind: str, dtype: str) -> Operand:
    return constant(state.math, reductions.identity(kind, dtype), dtype)
