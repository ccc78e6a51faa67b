"""Random numbers in a kernel: words of Philox4x32-10, as `prim.rng` defines them (Salmon, Moraes, Dror, Shaw 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import round_to
from isthmus.codegen.llvm_text import I64, Function, Type, Value
from isthmus.dialects import kernel as k
from isthmus.dialects import prim
from isthmus.dialects.kernel import Expr
from isthmus.dialects.kernel.index import Atom
from isthmus.sizes import exact_quotient

UNIFORM_BITS = {"f32": 24, "f16": 11, "bf16": 8}
ROUNDS = 10
LOW = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
"""What the two words of the key grow by from round to round."""


@dataclass(frozen=True)
class _Window:
    """Slots for what a draw made last: two vectors, from counter `number` on."""

    number: Value
    first: Value
    second: Value


class Draws:
    """The random numbers of a kernel."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._windows: dict[k.RngOp, _Window] = {}

    def bits(self, op: k.RngOp) -> Value:
        """Give 32 random bits as i64."""
        words = self._words(op)
        return self.state.f.cast("zext", words, words.type.with_scalar("i64"))

    def uniform(self, op: k.RngOp) -> Value:
        """Give the top bits of the words as a number in [0, 1)."""
        state, dtype = self.state, ir.dtype_of(op.y)
        f, m = state.f, state.math
        words = self._words(op)
        if dtype == "f64":
            # 53 bits do not fit one exact or-ing into a double's mantissa: two halves do.
            high, low = _exact(state, m.lshr(words, 32)), _exact(state, words & LOW)
            return (high * 2.0**32 + low) * 2.0**-53
        count = UNIFORM_BITS[dtype]
        short = m.lshr(words, 32 - count)
        value = f.cast("sitofp", short, short.type.with_scalar("float")) * 2.0**-count
        return round_to(m, value, dtype)

    def _words(self, op: k.RngOp) -> Value:
        """Give what each lane's number is made of: its word (i32), or the top 53 bits of its two words (i64)."""
        state, served = self.state, _served(op)
        key, position = (cast(Value, state.get(v)) for v in ir.operands_of(op))
        source = cast(Operation, ir.operands_of(op)[1].owner)
        if key.type.lanes == 1 and isinstance(source, k.IndexOp):
            (expr,) = source.map.data
            values = ir.operands_of(source)
            if _lanes_are_a_run(state, expr, values, served):
                with state.vector(1):
                    start = state.evaluate(expr, values)
                return self._run(op, key, start, served, _is_aligned(state, expr, served))
        if max(key.type.lanes, position.type.lanes) > 1:
            key, position = state.splat_value(key), state.splat_value(position)
        return _scattered(state, key, position, served)

    def _run(self, op: k.RngOp, key: Value, start: Value, served: int, aligned: bool) -> Value:
        """Give what the lanes' numbers are made of, of positions from `start` on.

        Two vectors are made at once, more independent work than one. The next vector finds its own, or half of it.
        """
        state, f, more = self.state, self.state.f, self.state.lanes // served
        type_ = Type.of("i32" if served == 4 else "i64", state.lanes)
        window = self._window(op, type_)
        counter, within = _shifted(state, start, served), start & (served - 1)
        _round_keys(state, key, 2 * more)
        number, last = f.load(window.number, I64, 8), f.load(window.second, type_, 64)
        is_last = f.compare("eq", number + more, counter)
        wanted = counter if aligned else f.select(is_last, counter + more, counter)
        missing = f.compare("ne", number, wanted)
        missing = missing & (~is_last if aligned else (~is_last | f.compare("ne", within, 0)))
        with f.when(missing):
            first, second = _two_vectors(state, key, wanted, served)
            f.store(first, window.first, 64)
            f.store(second, window.second, 64)
            f.store(wanted if self._key_is_fixed(op) else f.index(-state.lanes), window.number, 8)
        first, second = f.load(window.first, type_, 64), f.load(window.second, type_, 64)
        low = f.select(is_last, last, first)
        if aligned:
            return low
        high = f.select(is_last, first, second)
        for step in (2, 1) if served == 4 else (1,):
            moved = (_spliced(f, low, high, step), _spliced(f, high, high, step))
            far = f.compare("ne", within & step, 0)
            low, high = (f.select(far, new, old) for new, old in zip(moved, (low, high), strict=True))
        return low

    def _window(self, op: k.RngOp, type_: Type) -> _Window:
        found = self._windows.get(op)
        if found is None:
            f = self.state.f
            found = self._windows[op] = _Window(f.slot(I64, align=8), f.slot(type_), f.slot(type_))
            with f.at_entry():
                f.store(f.index(-self.state.lanes), found.number, 8)
                f.store(f.const(0, type_), found.first, 64)
                f.store(f.const(0, type_), found.second, 64)
        return found

    def _key_is_fixed(self, op: k.RngOp) -> bool:
        """Whether all draws of the op use one key."""
        return self.state.plan.scope_of_value(ir.operands_of(op)[0]) == 0


def _spliced(f: Function, low: Value, high: Value, step: int) -> Value:
    """Give the lanes of two vectors joined that begin with lane `step`."""
    return f.shuffle(low, high, range(step, step + low.type.lanes))


def _shifted(state: State, position: Value, served: int) -> Value:
    """Give the counter of a position."""
    return state.math.lshr(position, served.bit_length() - 1)


def _exact(state: State, word: Value) -> Value:
    """Give an integer below 2^32 as a double, without a 64-bit conversion."""
    double = word.type.with_scalar("double")
    return state.f.bitcast(word | 0x4330000000000000, double) - 2.0**52


def _served(op: k.RngOp) -> int:
    """Give how many numbers of the draw a counter serves."""
    return prim.elements_of_a_counter(ir.dtype_of(op.y))


# ---- neighbouring numbers


def _lanes_are_a_run(state: State, position: Expr, values: Sequence[SSAValue], served: int) -> bool:
    """Tell whether the lanes are neighbours, as many as fill whole counters."""
    vector, lanes = state.plan.vector, state.lanes
    if vector is None or lanes == 1 or lanes % served or position.coefficient(vector) != 1:
        return False
    if any(cast(Value, state.get(v)).type.lanes > 1 for v in values):
        return False
    return vector not in without_vector(position, vector).dims()


def _is_aligned(state: State, position: Expr, served: int) -> bool:
    """Tell whether every run of lanes provably begins with the first number of a counter."""
    vector = state.plan.vector
    if vector is None or state.plan.vector_is_parallel:  # a partition may begin anywhere
        return False
    others = without_vector(position, vector)
    return all(exact_quotient(c, served) is not None for c in (others.constant, *(c for _, c in others.terms)))


def without_vector(position: Expr, vector: int) -> Expr:
    """Give the position without the vector dim."""

    def is_other(atom: Atom) -> bool:
        return atom[:2] != ("d", vector)

    return position.part(is_other) + position.constant


def _two_vectors(state: State, key: Value, counter: Value, served: int) -> tuple[Value, Value]:
    """Give two vectors of what numbers are made of, of neighbouring counters: one lane computes one counter."""
    f, m = state.f, state.math
    width = 2 * state.lanes // served
    schedule = _round_keys(state, key, width)
    # Lane n has the counter that puts its words where interleaving even and odd lanes wants them.
    order = [lane // 2 + lane % 2 * width // 2 for lane in range(width)]
    counters = f.splat(counter, width) + f.lanes(order, "i64")
    zero = f.const(0, counters.type)
    c = [counters, m.lshr(counters, 32), zero, zero]
    for n in range(ROUNDS):  # high halves may be anything
        first = (c[0] & LOW) * MULTIPLIERS[0]
        second = (c[2] & LOW) * MULTIPLIERS[1]
        k0, k1 = schedule[2 * n : 2 * n + 2]
        c = [m.lshr(second, 32) ^ (c[1] ^ k0), second, m.lshr(first, 32) ^ (c[3] ^ k1), first]
    if served == 2:
        even, odd = (((c[n] & LOW) << 21) | m.lshr(c[n + 1] & LOW, 11) for n in (0, 2))
    else:
        even, odd = ((c[n] & LOW) | (c[n + 1] << 32) for n in (0, 2))
    halves = [[lane // 2 * 2 + half + lane % 2 * width for lane in range(width)] for half in (0, 1)]
    made = [f.shuffle(even, odd, lanes) for lanes in halves]
    type_ = Type.of("i32" if served == 4 else "i64", state.lanes)
    return f.bitcast(made[0], type_), f.bitcast(made[1], type_)


def prepare(state: State, key: SSAValue) -> None:
    """Make the round keys of every draw that uses a key, here, outside the loops that draw."""
    value = cast(Value, state.get(key))
    lanes = state.plan.lanes
    if value.type.lanes > 1:
        return
    for use in key.uses:
        if isinstance(use.operation, k.RngOp):
            served = _served(use.operation)
            if lanes > 1 and lanes % served == 0:
                _round_keys(state, value, 2 * lanes // served)


def _round_keys(state: State, key: Value, width: int) -> list[Value]:
    """Give the two words of the key of each round, splatted: made once, where they are first asked for."""

    def made(n: int, half: int) -> Value:
        word = key if half == 0 else state.math.lshr(key, 32)
        return state.f.splat((word + n * WEYL[half]) & LOW, width)

    return [
        state.shared(f"philox {n} {half} {width} {key.name}", lambda n=n, half=half: made(n, half))
        for n in range(ROUNDS)
        for half in (0, 1)
    ]


# ---- any numbers


def _scattered(state: State, key: Value, position: Value, served: int) -> Value:
    """Give what the numbers of any positions are made of: each lane has a counter of its own."""
    f, m = state.f, state.math
    w = philox(state, key, _shifted(state, position, served))
    odd, upper = (f.compare("ne", position & bit, 0) for bit in (1, 2))
    if served == 2:
        return (f.select(odd, w[2], w[0]) << 21) | m.lshr(f.select(odd, w[3], w[1]), 11)
    word = f.select(upper, f.select(odd, w[3], w[2]), f.select(odd, w[1], w[0]))
    return f.cast("trunc", word, word.type.with_scalar("i32"))


def philox(state: State, key: Value, counter: Value) -> list[Value]:
    """Give the four words of each lane's counter, as i64 below 2^32."""
    m = state.math
    keys = [key & LOW, m.lshr(key, 32)]
    zero = state.f.const(0, counter.type)
    c = [counter & LOW, m.lshr(counter, 32), zero, zero]
    for _ in range(ROUNDS):
        first, second = c[0] * MULTIPLIERS[0], c[2] * MULTIPLIERS[1]
        c = [m.lshr(second, 32) ^ c[1] ^ keys[0], second & LOW, m.lshr(first, 32) ^ c[3] ^ keys[1], first & LOW]
        keys = [(word + step) & LOW for word, step in zip(keys, WEYL, strict=True)]
    return c
