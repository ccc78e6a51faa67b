"""Types of LLVM text, and how constants of them are written."""

from __future__ import annotations

import struct
from typing import ClassVar, Union, final

Number = Union[int, float]  # noqa: UP007


FLOATS = {"double": 64, "float": 32, "half": 16, "bfloat": 16}
"""Float scalars and their bits."""


@final
class Type:
    """A scalar or vector type of LLVM; interned, so `is` compares."""

    __slots__ = ("is_float", "lanes", "scalar", "text")
    scalar: str
    lanes: int
    text: str
    is_float: bool
    _interned: ClassVar[dict[tuple[str, int], Type]] = {}

    @staticmethod
    def of(scalar: str, lanes: int = 1) -> Type:
        """Give the type of `lanes` values of `scalar`; one lane is the scalar itself."""
        found = Type._interned.get((scalar, lanes))
        if found is None:
            found = Type()
            found.scalar, found.lanes = scalar, lanes
            found.text = scalar if lanes == 1 else f"<{lanes} x {scalar}>"
            found.is_float = scalar in FLOATS
            found = Type._interned.setdefault((scalar, lanes), found)
        return found

    @property
    def bits(self) -> int:
        """Bits of one lane; 64 for pointers."""
        if self.is_float:
            return FLOATS[self.scalar]
        return 64 if self.scalar == "ptr" else int(self.scalar[1:])

    @property
    def suffix(self) -> str:
        """How an overloaded intrinsic's name spells the type, e.g. `v8f32`."""
        scalar = "bf16" if self.scalar == "bfloat" else f"{'f' if self.is_float else 'i'}{self.bits}"
        return scalar if self.lanes == 1 else f"v{self.lanes}{scalar}"

    def with_scalar(self, scalar: str) -> Type:
        """Give the type with as many lanes of another scalar."""
        return Type.of(scalar, self.lanes)

    def with_lanes(self, lanes: int) -> Type:
        """Give the type with another number of lanes."""
        return Type.of(self.scalar, lanes)

    def __repr__(self) -> str:
        return self.text


VOID = Type.of("void")


PTR = Type.of("ptr")


I1 = Type.of("i1")


I8 = Type.of("i8")


I32 = Type.of("i32")


I64 = Type.of("i64")


F32 = Type.of("float")


F64 = Type.of("double")


def float_text(value: float, scalar: str) -> str:
    """Spell a float as LLVM wants it: the bits of the double that equals it."""
    if scalar == "float":
        value = float(struct.unpack("<f", struct.pack("<f", _clamped(value)))[0])
    elif scalar == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _clamped(value: float) -> float:
    """Round what is beyond float32 to infinity, as a conversion does, where `struct` would raise."""
    return float("inf") * (1 if value > 0 else -1) if abs(value) >= 3.4028235677973366e38 else value


def integer_text(value: int, type_: Type) -> str:
    """Spell an integer as LLVM wants it."""
    if type_.scalar == "i1":
        return "true" if value & 1 else "false"
    return str(value)


def alignment(type_: Type) -> int:
    """Give the bytes to which one lane is aligned."""
    return max(1, type_.bits // 8)
