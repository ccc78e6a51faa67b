"""Huge angles: x mod π/2 from the digits of 2/π that matter (Payne and Hanek 1983), where there is no C library."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I64, PTR, Value
from isthmus.codegen.vector_math.core import Math

TWO_OVER_PI = (
    *(0x0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561),
    *(0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41),
    *(0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7),
    *(0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB),
)
"""Words of 64 bits, the first before the point: 2/π = Σ wₖ·2^-64k."""
PI_2_HIGH, PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17
LARGEST = 1.7976931348623157e308


def near_angle(m: Math, x: Value, farthest: float) -> tuple[Value, Value]:
    """Give y and j (i64) with x ≡ y + j·π/2 mod 2π, |y| <= π/4 where |x| > farthest; x and 0 elsewhere. For f64."""
    f, size = m.f, m.fabs(x)
    far = f.compare("ogt", size, farthest) & f.compare("ole", size, LARGEST)
    numbers = x.type.with_scalar("i64")
    angle, turns = f.slot(x.type), f.slot(numbers)
    f.store(x, angle, 64)
    f.store(f.const(0, numbers), turns, 64)
    with f.when(m.any(far)):
        y, j = f.poison(x.type), f.poison(numbers)
        safe = f.select(far, x, 2.0**22)
        for lane in range(x.type.lanes):
            one, turn = _reduced(m, f.extract(safe, lane))
            y, j = (one, turn) if x.type.lanes == 1 else (f.insert(y, one, lane), f.insert(j, turn, lane))
        f.store(f.select(far, y, x), angle, 64)
        f.store(f.select(far, j, 0), turns, 64)
    return f.load(angle, x.type, 64), f.load(turns, numbers, 64)


def _reduced(m: Math, x: Value) -> tuple[Value, Value]:
    """One finite number above 2^20: x = n·2^e, and 192 bits of 2/π from the first whose product is below 4."""
    f, bits = m.f, m.bits(x)
    e = (m.lshr(bits, 52) & 0x7FF) - 1075
    n = (bits & ((1 << 52) - 1)) | (1 << 52)
    start = e + 62
    words = [_word(m, m.lshr(start, 6) + k) for k in range(4)]
    shift = start & 63
    w = [f.call("llvm.fshl.i64", I64, words[k], words[k + 1], shift) for k in range(3)]
    # n·w mod 2^192, an integer of 2^-190: its two highest words
    low, carried = n * w[1], _high(m, n, w[2])
    middle = low + carried
    carry = f.cast("zext", f.compare("ult", middle, carried), I64)
    high = n * w[0] + _high(m, n, w[1]) + carry
    fraction = f.call("llvm.fshl.i64", I64, high, middle, f.index(2))  # signed: from -½ to ½
    j = m.lshr(high, 62) + m.lshr(fraction, 63)
    double = x.type
    first = f.cast("sitofp", fraction & -4096, double) * 2.0**-64
    rest = f.cast("sitofp", fraction & 4095, double) * 2.0**-64
    rest = m.mla(f.cast("sitofp", m.lshr(middle << 2, 1), double), 2.0**-127, rest)
    s, error = m.two_sum(first, rest)
    p, below = m.two_product(s, m.const(PI_2_HIGH, s))
    y = p + (m.mla(s, PI_2_LOW, below) + error * PI_2_HIGH)
    negative = f.compare("slt", bits, 0)
    return f.select(negative, -y, y), f.select(negative, -j, j)


def _high(m: Math, a: Value, b: Value) -> Value:
    """The upper 64 bits of a product."""
    return m.f.call("llvm.nvvm.mulhi.ull", I64, a, b)


def _word(m: Math, number: Value) -> Value:
    f = m.f
    words = ", ".join(f"i64 {w}" for w in TWO_OVER_PI)
    name = "@two_over_pi"
    f.module.constant(name, f"internal addrspace(4) constant [{len(TWO_OVER_PI)} x i64] [{words}], align 8")
    table = Value(f, f"addrspacecast (ptr addrspace(4) {name} to ptr)", PTR)
    return f.load(f.address(table, number, "i64"), I64)
