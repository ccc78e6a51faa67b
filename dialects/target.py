"""Facts about the machine that code is generated for: plain data, filled by the runtime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caches:
    """Sizes in bytes of the data caches that one core sees; 0 where there is none."""

    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 0


@dataclass(frozen=True)
class Target:
    """One CPU: what LLVM must be told about it and what a schedule needs to know.

    `features` is LLVM's feature string (`+avx2,-avx512f,...`), `vector_bits` the widest vector
    that arithmetic on floats should use, `cores` the physical cores that may work at once.
    """

    triple: str
    layout: str
    cpu: str
    features: str
    vector_bits: int = 128
    cores: int = 1
    caches: Caches = Caches()

    def has(self, feature: str) -> bool:
        """Whether the CPU has a feature, by LLVM's name for it, e.g. `avx512bf16`."""
        return f"+{feature}" in self.features.split(",")

    @property
    def key(self) -> str:
        """What two machines must share to run each other's code, as text for cache keys."""
        return "|".join((self.triple, self.cpu, self.features, str(self.vector_bits)))


PROCESSORS = 128
"""Multiprocessors that a large GPU has at least."""


def side_by_side(partitions: object) -> int:
    """Give how many blocks a multiprocessor should have room for, of a kernel of so many that walk many rows each.

    Two, so that one computes while the other one reads; more where all then run at once.
    """
    return min(4, max(2, partitions // PROCESSORS)) if isinstance(partitions, int) else 2
