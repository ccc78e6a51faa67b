"""Reads LLVM text of one function as data: blocks of instructions with typed operands."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import numpy as np

FLOATS = {"float": np.float32, "double": np.float64, "half": np.float16}
BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True)
class Kind:
    """A scalar type (`i32`, `float`, `ptr`) and how many lanes of it: 0 for a scalar."""

    scalar: str
    lanes: int = 0

    @property
    def bits(self) -> int:
        if self.scalar == "bfloat":
            return 16
        if self.scalar in FLOATS:
            return 8 * np.dtype(FLOATS[self.scalar]).itemsize
        return 64 if self.scalar.startswith("ptr") else int(self.scalar[1:])

    @property
    def dtype(self):
        """The numpy type of a lane; integers are unsigned and hold their bits alone, bfloat is its bits."""
        if self.scalar in FLOATS:
            return FLOATS[self.scalar]
        if self.scalar == "i1":
            return np.bool_
        return next(t for b, t in BITS.items() if b >= self.bits)

    @property
    def is_float(self) -> bool:
        return self.scalar in FLOATS

    def masked(self, x):
        """Cut integers to their bits."""
        if self.is_float or self.bits in BITS or self.scalar == "i1":
            return x
        return x & x.dtype.type((1 << self.bits) - 1)


@dataclass
class Instruction:
    name: str | None
    op: str
    text: str


@dataclass
class Block:
    name: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Parsed:
    name: str
    arguments: list[tuple[Kind, str]]
    blocks: dict[str, Block]
    shared: dict[str, tuple[int, int]]
    """Shared memory: offset and bytes by name."""
    shared_bytes: int
    constants: dict[str, np.ndarray]
    """Constant memory by name."""


TYPE = r"<\d+ x [\w]+(?: addrspace\(\d+\))?>|ptr addrspace\(\d+\)|\w+"


def kind(text: str) -> Kind:
    """Read a type."""
    found = re.fullmatch(r"<(\d+) x (\w+)>", text)
    if found:
        return Kind(found[2], int(found[1]))
    return Kind("ptr" if text.startswith("ptr") else text)


def split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def typed(text: str) -> tuple[Kind, str]:
    """Read `type [attributes] value`."""
    found = re.match(rf"({TYPE})\s+(.*)$", text)
    assert found, text
    value = found[2]
    while attribute := re.match(r"(noundef|align \d+|nonnull|noalias|readonly|captures\(\w+\))\s+(.*)$", value):
        value = attribute[2]
    return kind(found[1]), value


def scalar_constant(text: str, of: Kind):
    """Read a constant of one lane; None where it is a name."""
    if text in ("poison", "undef", "zeroinitializer", "null"):
        return of.dtype(0)
    if text in ("true", "false"):
        return np.bool_(text == "true")
    if of.is_float:
        if text.startswith("0xH"):
            return np.frombuffer(struct.pack("<H", int(text[3:], 16)), np.float16)[0]
        if text.startswith("0x"):
            return of.dtype(struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0])
        return of.dtype(float(text)) if re.match(r"[-+0-9]", text) else None
    if re.fullmatch(r"-?\d+", text):
        return of.masked(np.array(int(text) & ((1 << 64) - 1), np.uint64).astype(of.dtype))[()]
    return None


def parse(text: str) -> Parsed:
    """Read the one function that a module defines."""
    shared, total = {}, 0
    for found in re.finditer(r"^@(\w+) = internal addrspace\(3\) global \[(\d+) x (\w+)\]", text, re.M):
        size = int(found[2]) * max(1, Kind(found[3]).bits // 8)
        shared[found[1]] = (total, size)
        total += -(-size // 16) * 16
    constants = {}
    for found in re.finditer(r"^@(\w+) = .*?addrspace\(4\) constant \[\d+ x (\w+)\] \[(.*?)\]", text, re.M):
        of = Kind(found[2])
        words = [scalar_constant(word.split()[1], of) for word in split(found[3])]
        constants[found[1]] = np.array(words, of.dtype).view(np.uint64)
    head = re.search(r"^define ptx_kernel void @(\w+)\((.*?)\) [^\n]*\{\n(.*?)^\}", text, re.M | re.S)
    assert head, text
    blocks: dict[str, Block] = {}
    current = None
    for line in head[3].splitlines():
        line = re.sub(r"(, ![\w.]+ !\d+|\s*;.*)+$", "", line).rstrip()
        if not line:
            continue
        label = re.fullmatch(r"([\w.]+):.*", line)
        if label:
            current = blocks[label[1]] = Block(label[1])
            continue
        if current is None:
            current = blocks["entry"] = Block("entry")
        found = re.match(r"\s+(?:%([\w.]+) = )?(?:tail )?(\w+)\s*(.*)$", line)
        assert found, line
        current.instructions.append(Instruction(found[1], found[2], found[3]))
    arguments = [typed(a) for a in split(head[2])]
    return Parsed(head[1], arguments, blocks, shared, total, constants)
