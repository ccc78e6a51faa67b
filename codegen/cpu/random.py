"""Random numbers in a kernel: Philox4x32-10 of a key and a counter, as `prim.rng` defines it."""

from __future__ import annotations

from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import round_to
from isthmus.codegen.llvm_text import Value

UNIFORM_BITS = {"f32": 24, "f16": 11, "bf16": 8}
LOW = 0xFFFFFFFF


def philox(state: State, key: Value, counter: Value) -> tuple[Value, Value]:
    """Give the first two words, as i64 below 2^32 (Salmon, Moraes, Dror, Shaw 2011)."""
    m = state.math
    k0, k1 = key & LOW, m.lshr(key, 32)
    zero = state.f.const(0, counter.type)
    c = [counter & LOW, m.lshr(counter, 32), zero, zero]
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [
            m.lshr(second, 32) ^ c[1] ^ k0,
            second & LOW,
            m.lshr(first, 32) ^ c[3] ^ k1,
            first & LOW,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c[0], c[1]


def uniform(state: State, key: Value, counter: Value, dtype: str) -> Value:
    """Give the top bits of the words as a number in [0, 1)."""
    f, m = state.f, state.math
    first, second = philox(state, key, counter)
    if dtype == "f64":
        bits = (first << 21) | m.lshr(second, 11)
        # 53 bits do not fit one exact or-ing into a double's mantissa: two halves do.
        high = _exact(state, m.lshr(bits, 32))
        low = _exact(state, bits & LOW)
        return (high * 2.0**32 + low) * 2.0**-53
    count = UNIFORM_BITS[dtype]
    short = f.cast("trunc", m.lshr(first, 32 - count), first.type.with_scalar("i32"))
    value = f.cast("sitofp", short, first.type.with_scalar("float")) * 2.0**-count
    return round_to(m, value, dtype)


def _exact(state: State, word: Value) -> Value:
    """Give an integer below 2^32 as a double, without a 64-bit conversion."""
    double = word.type.with_scalar("double")
    return state.f.bitcast(word | 0x4330000000000000, double) - 2.0**52
