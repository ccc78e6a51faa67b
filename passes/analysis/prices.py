"""What moving, computing, launching and calling cost: the one list of prices that all passes decide by.

A program carries its list: a function's attribute `isthmus.prices = [["launch_bytes", 16384], ...]` names what differs
from the list of the target that it is compiled for. So a decision is a function of the program's text, whoever made it.

Units: a *byte* is the time in which one thread moves a byte of memory, an *addition* the time of one element in a
vector's addition, a *flop* the time of a floating-point operation of a product at full speed. Limits (registers, sets
of caches, what code generation can express) are no prices and stand where they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from isthmus import ir
from isthmus.diagnostics import IRError, nearest
from isthmus.dialects import prim
from isthmus.ir import Literal

PRICES = "isthmus.prices"
"""Function attribute: `[[name, price], ...]` that differ from the target's list; functions as `prim.exp`."""


@dataclass(frozen=True)
class Prices:
    """The list; its defaults are those of a CPU, measured on the machine that the kernels were written on (Zen 3)."""

    # ---- kernels that move memory

    launch_bytes: int = 8 << 10
    """A launch, in bytes."""
    partition_bytes: int = 128 << 10
    """Work that is worth a partition of its own, in bytes."""
    additions_per_byte: float = 8.0
    """Additions of a kernel's body in the time of a byte."""
    narrow_walk: float = 2.5
    """A byte in a walk down columns by vectors of 64 bytes, in bytes."""

    past_caches: int = 32 << 20
    """A kernel that moves so many bytes leaves nothing in the last cache that a later one could find: its largest
    result goes past the caches."""

    join_bytes: int = 1 << 20
    """Pieces that are worth a place in what they are put together to, in bytes of all: fewer stay in a cache, and one
    kernel copies all of them."""
    turn_bytes: int = 1 << 20
    """Products that are worth turning: a copy of fewer bytes stays in a cache."""
    late_bytes: int = 1 << 25
    """On a GPU: bytes that kernels move in the time that one more launch takes, with some to spare."""
    pick_bytes: int = 1 << 24
    """On a GPU: bytes of memory that are worth one more launch."""

    # ---- computing again, or keeping; in additions

    cheap: float = 4.0
    """A value that costs no more than this, and reads no more bytes than it has, gets no buffer."""
    dear: float = 8.0
    """A value that costs this much is not computed once for every element that it is repeated for."""
    keep: float = 8.0
    """A row value is kept for later walks where computing it again costs this much."""
    long_body: float = 8.0
    """A body that costs this much is unrolled half as often."""
    long_chain: float = 10.0
    """A pointwise kernel whose values wait for one another for so long works on two vectors at once: what a processor
    looks ahead is less than the way through one."""
    wide_body: float = 1.6
    """Not where all work is so many times that of the longest chain: one vector has enough to do, two spill."""
    longest_function: float = 22.0
    """Functions that cost this much have branches and tables of their own."""
    stage: float = 17.0
    """The longest chain of a stage: a function or two, of which a processor sees several points at once."""
    first_used: float = 2.0
    """In stages, what costs so much at most is computed where it is used first."""
    functions: tuple[tuple[str, float], ...] = ()
    """Classes of primitives whose price is not the one that they state (`COST`): name, price of an element."""

    # ---- forward and backward

    again_reads: float = 2.25
    """Computing a value again may read so many times its own bytes: two tensors of its size and some small ones.
    Without a limit a deep sum would be computed from all its terms again and again."""
    early_bytes: int = 1 << 14
    """A gradient begins in forward where that keeps so many bytes fewer: less stays in a cache, and one more kernel
    costs more than that."""
    early_part: float = 0.875
    """And where no more than this part of the bytes is left, for a product with the tangent at the end."""

    # ---- reductions; the number of partial results shows in the bits of sums, so that no measurement changes it

    column_bytes: int = 64 << 10
    """Below so many elements' bytes a reduction down columns is one kernel."""
    longest_sum: int = 1 << 14
    """A reduction of up to so many elements of a row is one kernel."""
    rows_together: int = 8
    """So many rows count as one."""
    busy_rows: int = 8
    """So many rows keep everybody busy, however long they are."""
    sum_bytes: int = 128 << 10
    """Bytes that are worth a partial result."""
    most_sums: int = 16
    rows_per_sum: int = 32
    """Rows of one partial result, at least."""
    narrow_sums: int = 0
    """Rows of up to so many elements have twice as many partial results: more of them are read at a time."""

    # ---- products, in flops

    flops: float = 100e9
    """Full speed of one core, operations a second; no decision depends on it, `explain` gives times by it."""
    flops_per_byte: float = 5.0
    """Flops in the time of a byte."""
    pack: float = 12.0
    """Packing an element that lies along its panel."""
    pack_turned: float = 20.0
    """Packing one that lies across."""
    panel_addition: float = 6.0
    """An addition of a prologue: short vectors wait for each other."""
    panel_read: float = 2.0
    """Reading an element of a factor that is not packed, for one more part of the grid."""
    near: float = 0.05
    """Reading an element of B as it lies for one more tile, where a panel's lines stay in the first cache: rows of
    memory that are a power of two apart share few sets."""
    away: float = 0.5
    """In the second cache."""
    far: float = 8.0
    """Beyond."""
    apart: float = 0.3
    """The same for A, of which a tile has few rows."""
    alike: float = 1.7
    """Where its rows fall on the same set of the first cache."""
    per_result: float = 10.0
    """Writing an element, and starting and ending its tile."""
    per_dot: float = 130.0
    """Adding up the lanes of an element whose vectors run along k."""
    per_block: float = 20e3
    """Walking the blocks."""
    rare_form: float = 100e3
    """What a form that few products have must gain, a microsecond, to be worth the time that compiling it takes."""
    pace: float = 1.04
    """Time of a tile's inner loop over that of its arithmetic alone."""
    part_flops: float = 2e6
    """A partition of a product is worth about so many, some 20 us: below two of them threads gain nothing."""
    epilogue_addition: float = 16.0
    """On a GPU: an addition of the epilogue, of an element, in terms of k of one column."""

    # ---- the library

    library_call: float = 150e3
    """A call, in flops."""
    library_pace: float = 1.1
    """Its inner loop over the arithmetic alone."""
    library_pack: float = 12.0
    """Packing an element, in flops."""
    library_half: float = 2.0
    """Its inner loop in half precision over that in f32. Measured without instructions for it: 1.6 to 10 where rows of
    A lie across k or those of B along it, f16 15, up to 90 elsewhere. With them both forms are faster alike."""
    large_product: int = 1 << 24
    """Multiplications from which a kernel of ours multiplies no slower than the library: measured."""
    small_loss: float = 0.05
    """The part of its time that a smaller product of unknown size loses: more of it is packing."""
    alone_gain: float = 0.97
    """A product with nothing around it is a kernel of ours where that costs less than so much of the library's call."""
    prologue_bytes: float = 0.6
    """What an addition costs more, in bytes, where panels are packed: measured, short vectors wait for each other."""
    guarded_load: float = 4.0
    """What an element that is read under a condition costs, in additions."""

    @cached_property
    def _functions(self) -> Mapping[str, float]:
        return dict(self.functions)

    def additions(self, op: Operation, other: float = 1.0) -> float:
        """Give what an element of a primitive costs, in additions; `other` for what is none."""
        return self.additions_of(type(op)) if isinstance(op, prim.PrimOp) else other

    def additions_of(self, cls: type[prim.PrimOp]) -> float:
        """Give what an element of a class of primitives costs, in additions."""
        return self._functions.get(cls.name, cls.COST) if self.functions else cls.COST

    @property
    def differences(self) -> tuple[tuple[str, float], ...]:
        """What differs from a CPU's list, as the attribute has it."""
        own = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "functions"]
        return (*(entry for entry in own if entry[1] != getattr(CPU, entry[0])), *self.functions)

    def attach(self, func: FuncOp) -> None:
        """Write the list on a function; the default of a CPU leaves no trace."""
        func.attributes.pop(PRICES, None)
        if self.differences:
            func.attributes[PRICES] = Literal.of(self.differences)

    @staticmethod
    def of(op: Operation | None, target: str = "cpu") -> Prices:
        """Give the list of a function, or of the one around an op. IRError where it names what has no price."""
        while op is not None and not isinstance(op, FuncOp):
            op = op.parent_op()
        entries = None if op is None else ir.literal(op, PRICES)
        return DEFAULTS[target] if entries is None else listed(cast("tuple[tuple[str, float], ...]", entries), target)


CPU = Prices()

GPU = replace(
    CPU,
    longest_sum=1 << 15,
    rows_together=1,
    busy_rows=64,
    sum_bytes=4 << 10,
    most_sums=256,
    rows_per_sum=8,
    narrow_sums=2560,
)
"""Blocks are many there and start in a microsecond."""

DEFAULTS = {"cpu": CPU, "gpu": GPU}
"""Target -> its list."""


@lru_cache(maxsize=64)
def listed(entries: tuple[tuple[str, float], ...], target: str = "cpu") -> Prices:
    """Give a target's list with other prices in it: fields, and primitives by name. IRError for any other name."""
    kinds = {f.name: type(getattr(CPU, f.name)) for f in fields(Prices) if f.name != "functions"}
    own = {name: kinds[name](price) for name, price in entries if name in kinds}
    functions = tuple((name, float(price)) for name, price in entries if name not in kinds)
    for name, _ in functions:
        if name not in _primitives():
            raise IRError(f"there is no price '{name}'{nearest(name, [*kinds, *_primitives()])}")
    return replace(DEFAULTS[target], functions=functions, **own)


@lru_cache(maxsize=1)
def _primitives() -> frozenset[str]:
    return frozenset(str(op.name) for op in prim.PRIM.operations if issubclass(op, prim.PrimOp))
