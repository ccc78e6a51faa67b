"""What contractions of a kind of machine can do: which products, what may be computed on the way in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING, cast

from isthmus import ir
from isthmus.dialects.kernel import constant
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.graph import Value
from isthmus.passes.fusion.instructions import Instr, Refused
from isthmus.sizes import Dim

if TYPE_CHECKING:
    from isthmus.passes.fusion.draft import Draft
    from isthmus.passes.fusion.emit import Strides

ROWS, COLUMNS, PROCESSORS = 128, (256, 192, 128), 132
"""Rows of a GPU's tiles, the columns that they may have, and how many are computed at once."""
LONG, ENOUGH = 1024, 0.75
"""Over more terms than this, so much of the processors' time must be used: the library splits such sums, measured."""
MOST_BUFFERS = 5
"""Tensors that an epilogue reads and writes, numbers apart: each is a stream of its own beside the product's. An
optimizer's update of a weight has six; in the epilogue of its gradient it was measured slower on CPUs and GPUs."""
PIECE_BYTES = 16
"""What is copied at once: rows of factors begin at multiples of it."""


@dataclass(frozen=True)
class Ability:
    """What a contraction can do."""

    dtypes: tuple[str, ...]
    """Those of the product."""
    prologues: bool
    """Whether factors may be computed; else they are read as they lie, in whole pieces of 16 bytes."""
    alone: bool
    """Whether a product with nothing around it is worth a kernel."""
    rows_per_sum: int | None = None
    """Rows whose sums make a partial result, where that is fixed; sums are then in f32."""
    fills: bool = False
    """Whether long products must have enough tiles for the machine: nobody adds up parts of a sum over k."""

    @staticmethod
    def of(target: str, *, tf32: bool = False) -> Ability:
        """Give that of a `cpu` or a `gpu`, whose tensor cores multiply and whose tiles have 128 rows.

        `tf32`: there they may multiply f32 too, in TF32.
        """
        if target == "gpu":
            dtypes = ("bf16", "f16", "f32") if tf32 else ("bf16", "f16")
            return Ability(dtypes, prologues=False, alone=True, rows_per_sum=ROWS, fills=True)
        return Ability(("f32", "f64", "bf16", "f16"), prologues=True, alone=False)

    def require(self, draft: Draft, classes: Mapping[int, str], strides: Strides) -> None:
        """Refused where a draft does more; `classes`: batch, m, n or k by dim."""
        if not self.prologues:
            (dot,) = (i for i in draft.instrs if i.kind == "dot")
            for factor, own in zip(dot.args, ("m", "n"), strict=True):
                own_dims, k_dims = ({d for d, c in classes.items() if c == class_} for class_ in (own, "k"))
                _require_pieces(factor, own_dims, k_dims, strides)
        _require_few(draft)
        if self.rows_per_sum is not None:
            self._require_parts(draft, classes)
        if self.fills:
            batch, m, n, k = (
                prod(cost.numeric(draft.sizes[d]) for d, c in classes.items() if c == class_)
                for class_ in ("batch", "m", "n", "k")
            )
            if k > LONG and max(_filled(batch, m, n, width) for width in COLUMNS) < ENOUGH:
                raise Refused("its tiles would leave processors idle over a long sum")

    def _require_parts(self, draft: Draft, classes: Mapping[int, str]) -> None:
        sizes = draft.sizes
        rows, batch = ([sizes[d] for d, c in classes.items() if c == class_] for class_ in ("m", "batch"))
        for sink in draft.sinks:
            if sink.kind != "accumulate":
                continue
            leading = sink.value.shape[0]
            known = all(isinstance(s, int) for s in (*rows, *batch, leading))
            assert self.rows_per_sum is not None
            if not known or sink.value.dtype != "f32":
                raise Refused("its rows are summed in an unknown number of parts, or not in f32")
            parts = -(-prod(cast("list[int]", rows)) // self.rows_per_sum) * prod(cast("list[int]", batch))
            if parts > cast(int, leading):
                raise Refused("its rows are summed in fewer parts than it has tiles")


def _require_few(draft: Draft) -> None:
    (dot,) = (i for i in draft.instrs if i.kind == "dot")
    loads = [i for i in draft.instrs if i.kind == "load" and i not in dot.args]
    read = {value for value, *_ in (cast("tuple[Value, Index, bool]", i.data) for i in loads) if value.shape}
    if len(read) + len(draft.sinks) > MOST_BUFFERS:
        raise Refused(f"its epilogue would read and write more than {MOST_BUFFERS} tensors")


def _filled(batch: int, m: int, n: int, columns: int) -> float:
    """The part of the processors' time in which tiles of so many columns are computed."""
    tiles = batch * -(-m // ROWS) * -(-n // columns)
    rounds = -(-tiles // PROCESSORS)
    return batch * m * n / (ROWS * columns * PROCESSORS * rounds)


def _require_pieces(factor: Instr, own: set[int], k: set[int], strides: Strides) -> None:
    """A factor is read as it lies: neighbours along one of its dims, everything else at multiples of 16 bytes.

    f32 has neighbours along k: tensor cores take it no other way.
    """
    if factor.kind != "load":
        raise Refused("a factor is computed")
    value, index, guarded = cast("tuple[Value, Index, bool]", factor.data)
    position = constant(0)
    for expr, stride in zip(index, strides(value), strict=True):
        position = position + expr * stride
    if guarded or not position.is_affine() or position.values() or not own | k <= position.dims():
        raise Refused("a factor is no plain matrix")
    steps = [c for _, c in position.terms]
    near, piece = [c for c in steps if c == 1], PIECE_BYTES // ir.itemsize(value.dtype)
    if len(near) != 1 or any(_factor(c) % piece for c in (*steps, position.constant) if c != 1):
        raise Refused("rows of a factor begin at no multiples of 16 bytes")
    if value.dtype == "f32" and not any(position.coefficient(d) == 1 for d in k):
        raise Refused("neighbours of a factor in f32 are not those of the sum")


def _factor(dim: Dim) -> int:
    """The largest number that is known to divide a size."""
    if isinstance(dim, int):
        return abs(dim)
    return gcd(*(coefficient for _, coefficient in dim.terms))
