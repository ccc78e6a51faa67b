"""The decisions about one contraction, as schedule has written them, and the function that makes its sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from isthmus import ir
from isthmus.codegen.cpu.contract_dots import DotTile, dots_name, emit_dots
from isthmus.codegen.cpu.contract_pairs import multiplies_pairs
from isthmus.codegen.cpu.contract_tile import Tile, block_name, emit_block
from isthmus.codegen.dtypes import REGISTER
from isthmus.codegen.llvm_text import Module
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel.factors import factor_of
from isthmus.dialects.target import Target
from isthmus.sizes import Dim


@dataclass(frozen=True)
class Blocking:
    """A tile has `mr` rows of `nv` vectors of `lanes` elements; where vectors run along k (`dots`), `nv` columns.

    `direct`: the factors that are read as they lie.
    """

    mr: int
    nv: int
    lanes: int
    mc: int
    kc: int
    nc: int
    grid: tuple[Dim, Dim, Dim]
    direct: tuple[str, ...] = ()
    dots: bool = False

    @property
    def nr(self) -> int:
        """Columns of a tile."""
        return self.nv if self.dots else self.nv * self.lanes

    @staticmethod
    def of(kernel: k.ContractOp) -> Blocking:
        """Read the attributes; UnsupportedError where schedule has not run."""
        if kernel.tile is None or kernel.block_sizes is None or kernel.grid is None:
            raise UnsupportedError("has no tile: schedule has not run", op=kernel.name)
        tile = cast("tuple[int, int, int]", kernel.tile.data)
        block = cast("tuple[int, int, int]", kernel.block_sizes.data)
        grid, direct = cast("tuple[Dim, Dim, Dim]", kernel.grid.data), kernel.direct_
        found = Blocking(*tile, *block, grid, direct, _runs_along_k(kernel, direct))
        if block[0] % found.mr or block[2] % found.nr:
            raise UnsupportedError("has blocks that are no whole tiles", op=kernel.name)
        return found

    def tile(self, kernel: k.ContractOp, target: Target) -> Tile | DotTile:
        """Give the tile; UnsupportedError for dtypes without tiles."""
        dtype = ir.dtype_of(kernel.dot.y)
        if kernel.sums not in ("f32", "f64"):
            place = ir.source_location(kernel)
            raise UnsupportedError(f"has no CPU code for {dtype}", op=kernel.dot.name, location=place)
        if ir.is_half(dtype) and self.direct:
            raise UnsupportedError("has a factor that cannot be read as it lies", op=kernel.name)
        scalar, fused = REGISTER[dtype], target.has("fma")
        if self.dots:
            return DotTile(scalar, self.mr, self.nv, self.lanes, fused)
        pairs = dtype == "bf16" and multiplies_pairs(target, self.lanes)
        return Tile(scalar, self.mr, self.nv, self.lanes, fused, "a" in self.direct, "b" in self.direct, pairs)


def _runs_along_k(kernel: k.ContractOp, direct: tuple[str, ...]) -> bool:
    """Whether what is read as it lies are two factors whose rows of memory run along k.

    UnsupportedError where a factor cannot be read as the schedule says.
    """
    m, n, _ = kernel.mnk
    for name, value, own in (("a", kernel.dot.a, m), ("b", kernel.dot.b, n)):
        factor = factor_of(kernel, value, own)
        if name in direct and (factor is None or (name == "a" and not factor.turned)):
            raise UnsupportedError("has a factor that cannot be read as it lies", op=kernel.name)
    b = factor_of(kernel, kernel.dot.b, n)
    if "b" not in direct or b is None or not b.turned:
        return False
    if "a" not in direct:
        raise UnsupportedError("has a factor that cannot be read as it lies", op=kernel.name)
    return True


def block_of(tile: Tile | DotTile) -> tuple[str, Callable[[Module], None]]:
    """Name of the function that makes a block of sums, and what writes it."""
    if isinstance(tile, DotTile):
        return dots_name(tile), partial(emit_dots, tile=tile)
    return block_name(tile), partial(emit_block, tile=tile)
