"""Decisions about contractions: tiles for the vector registers, blocks for the caches, a grid for the threads.

Before:
    %y = kernel.contract %x, %w {sizes = [1024, 1024, 256], classes = ["m", "n", "k"]} ({...})
After: ... partitions = 16, grid = [1, 4, 4], tile = [6, 2, 8], block = [132, 256, 1024] ...
"""

from __future__ import annotations

from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.dialects.kernel.factors import factor_of
from isthmus.ir import Literal
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.prices import CPU, Prices
from isthmus.passes.analysis.products import Form, Product, Side
from isthmus.sizes import Dim, Size, size_max, size_min

TILES = {512: (14, 2), 256: (6, 2), 128: (6, 2)}
"""Bits of a vector -> rows and vectors of a tile: rows · vectors + vectors + 1 registers, of 32 or 16."""

LYING = {512: (6, 4), 256: (6, 2), 128: (6, 2)}
"""The same for tiles whose rows of A are read as they lie: each has a pointer of its own."""

DOTS = {512: (6, 4), 256: (3, 4), 128: (3, 4)}
"""The same for tiles whose vectors run along k -> rows and columns: rows · columns + rows + 1 registers."""

DEEPEST_DOTS = 4 << 10
"""Bytes of a row that such a tile walks before its sums are added up."""

BLOCK_BYTES = 144 << 10
"""A packed block of A stays in the second cache."""

SUMS_BYTES = 288 << 10
"""So do, together, a packed block of A and its sums where an epilogue reads them."""

PANEL_BYTES = 32 << 10
"""A packed panel of B stays in the first cache, all but the end of it."""

WIDTH_BYTES = 2 << 20
"""A packed block of B stays in the last cache."""

PARTS_PER_CORE = 2
MOST_PARTS = 64
FEWEST_SUMS, MOST_SUMS, ROWS_PER_SUM = 4, 16, 256


def schedule_contraction(op: kernel.ContractOp, tile_bits: int, cores: int, prices: Prices = CPU) -> None:
    """Write tile, block, grid and partitions of a contraction."""
    form = _form(op, tile_bits, prices)
    tile = _tile(op, tile_bits, form)
    columns = tile[1] if form.dots else tile[1] * tile[2]
    grid = _grid(op, (tile[0], columns), _parts(op, cores), form.direct, prices)
    partitions = grid[0] * grid[1] * grid[2]
    set_ = op.properties.__setitem__
    set_("tile", Literal.of(tile))
    set_("block", Literal.of(_block(op, (tile[0], columns, tile[2]), grid, form)))
    set_("grid", Literal.of(grid))
    if form.direct:
        set_("direct", Literal.of(form.direct))
    set_("partitions", Literal.of(partitions))
    if isinstance(partitions, Size):
        set_("symbols", Literal.of(tuple(sorted(partitions.symbols().union(op.symbols_)))))


def _tile(op: kernel.ContractOp, tile_bits: int, form: Form) -> tuple[int, int, int]:
    table = DOTS if form.dots else LYING if "a" in form.direct else TILES
    rows, vectors = table[tile_bits]
    return rows, vectors, tile_bits // (8 * ir.itemsize(op.sums))


def _block(
    op: kernel.ContractOp, tile: tuple[int, int, int], grid: tuple[Dim, Dim, Dim], form: Form
) -> tuple[int, int, int]:
    """Rows, steps of k and columns of a block; `tile`: rows, columns, lanes."""
    itemsize = ir.itemsize(op.sums)
    rows, columns, lanes = tile
    m, n, k = (op.sizes_[d] for d in op.mnk)
    deepest = DEEPEST_DOTS // itemsize if form.dots else PANEL_BYTES // (columns * itemsize)
    depth = _even(k, deepest, max(8, lanes)) if isinstance(k, int) else deepest
    part = -(-cost.numeric(m) // cost.numeric(grid[1]))
    width = _even(cost.numeric(n), WIDTH_BYTES // (depth * itemsize), columns)
    most = BLOCK_BYTES // (depth * itemsize)
    if not _is_plain(op):
        most = min(most, SUMS_BYTES // ((depth + width) * itemsize))
    return _even(part, max(rows, most), rows), depth, width


def _form(op: kernel.ContractOp, tile_bits: int, prices: Prices) -> Form:
    """The way of making a product that costs least; both factors are packed where sizes are not known."""
    product = product_of(op, prices)
    rows, vectors = TILES[tile_bits]
    lanes = tile_bits // (8 * ir.itemsize(op.sums))
    found = product.best((rows, vectors * lanes), DOTS[tile_bits]) if product is not None else None
    packed = Form((), False, 0.0)
    if found is None or found.dots or "b" not in found.direct:
        return found or packed
    _, vectors, _ = _tile(op, tile_bits, found)
    return packed if cost.numeric(op.sizes_[op.mnk[1]]) % (vectors * lanes) else found


def product_of(op: kernel.ContractOp, prices: Prices) -> Product | None:
    """Describe a contraction to the model of costs; None where sizes are not known."""
    m, n, k = (op.sizes_[d] for d in op.mnk)
    count = cost.product(tuple(op.sizes_[d] for d in op.batch))
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(count, int)):
        return None
    a, b = (_side(op, value, own, prices) for value, own in zip((op.dot.a, op.dot.b), op.mnk[:2], strict=True))
    return Product(m, n, k, a, b, count, ir.is_half(ir.dtype_of(op.dot.y)), prices)


def prices_of(op: kernel.ContractOp) -> tuple[float, float] | None:
    """Give what a scheduled contraction and a library call cost by the model; None where sizes are not known."""
    product = product_of(op, Prices.of(op))
    if product is None or op.tile is None:
        return None
    rows, vectors, lanes = cast("tuple[int, int, int]", op.tile.data)
    forms = product.forms((rows, vectors * lanes), (rows, vectors))
    found = [form.cost for form in forms if form.direct == op.direct_]
    return (found[0], product.library) if found else None


def _side(op: kernel.ContractOp, value: SSAValue, own: int, prices: Prices) -> Side:
    factor = factor_of(op, value, own)
    if factor is None:
        return Side(True, 0, _work(value, prices))
    lies = isinstance(factor.stride, int) and not ir.is_half(ir.dtype_of(value))  # which is widened while packed
    stride = cost.numeric(factor.stride) * ir.itemsize(ir.dtype_of(value))
    return Side(factor.turned, stride, None if lies else 0.0)


def _is_plain(op: kernel.ContractOp) -> bool:
    """Whether the sums are all there is to write."""
    return all(isinstance(use.operation, kernel.StoreOp) for use in op.dot.y.uses) and len(op.results) == 1


def _even(extent: int, most: int, multiple: int) -> int:
    """Pieces of at most about `most`, all of nearly the same size, in whole multiples."""
    pieces = max(1, _quotient(extent, most))
    return max(1, _quotient(_quotient(extent, pieces), multiple)) * multiple


def _quotient(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def _parts(op: kernel.ContractOp, cores: int) -> int:
    """How many partitions are wanted at most; their number shows in sums over rows, which no machine may change."""
    if not any(isinstance(o, kernel.AccumulateOp) for o in op.block.ops):
        return min(MOST_PARTS, PARTS_PER_CORE * cores)
    *batch, m, _, _ = op.sizes_
    rows = cost.numeric(m) * cost.numeric(cost.product(tuple(batch)))
    return max(FEWEST_SUMS, min(MOST_SUMS, rows // ROWS_PER_SUM))


def _grid(
    op: kernel.ContractOp, tile: tuple[int, int], parts: int, direct: tuple[str, ...], prices: Prices
) -> tuple[Dim, Dim, Dim]:
    """Cut batch first, then rows and columns so that what is packed several times is cheap to pack."""
    m, n, k = (cost.numeric(op.sizes_[d]) for d in op.mnk)
    batch: Dim = cost.product(tuple(op.sizes_[d] for d in op.batch))
    count = cost.numeric(batch)
    flops = 2.0 * count * m * n * k
    wanted = max(1, min(parts, int(flops / prices.part_flops)))
    most = _most_rows(op)
    if 2 * count > wanted:
        cap = min(most, wanted)
        outer = min(count, cap) if isinstance(batch, int) else size_max(1, size_min(batch, cap))
        return outer, 1, 1
    price_a, price_b = (
        prices.panel_read if name in direct else prices.pack + prices.panel_addition * _work(v, prices)
        for name, v in (("a", op.dot.a), ("b", op.dot.b))
    )
    # where a part of the columns is walked rows have gaps
    gaps = prices.flops_per_byte * m * n * _epilogue_bytes(op)
    best: tuple[float, tuple[int, int]] = (float("inf"), (1, 1))
    parts = 1 << (max(1, wanted // count).bit_length() - 1)
    for down in (1 << d for d in range(parts.bit_length()) if count << d <= most):
        across = parts // down
        fits = down * tile[0] <= max(m, tile[0]) and across * tile[1] <= max(n, tile[1])
        extra = price_a * m * k * across + price_b * n * k * down + (gaps if across > 1 else 0.0)
        if fits and extra < best[0]:
            best = extra, (down, across)
    down, across = best[1]
    return batch if isinstance(batch, int) else 1, down, across


def _most_rows(op: kernel.ContractOp) -> int:
    """Row parts may not be more than the partial results of sums over rows."""
    sums = [o for o in op.block.ops if isinstance(o, kernel.AccumulateOp)]
    leading = [ir.shape_of(kernel.result_of(op, o))[0] for o in sums]
    return min((s if isinstance(s, int) else 1 for s in leading), default=MOST_PARTS)


def _epilogue_bytes(op: kernel.ContractOp) -> int:
    """Bytes of an element that the epilogue moves beyond the product."""
    after = [o for o in op.block.ops if isinstance(o, (kernel.LoadOp, kernel.StoreOp))]
    wide = [o for o in after if frozenset(op.mnk[:2]) <= cast(kernel.Map, o.properties["map"]).dims()]
    return max(0, len(wide) - 1) * ir.itemsize(ir.dtype_of(op.dot.y))


def _work(value: SSAValue, prices: Prices) -> float:
    """What computing an element of a factor costs, in additions."""
    total, seen = 0.0, set[Operation]()
    stack = [cast(Operation, value.owner)]
    while stack:
        inner = stack.pop()
        if inner not in seen:
            seen.add(inner)
            total += prices.additions(inner)
            stack += [cast(Operation, v.owner) for v in ir.operands_of(inner)]
    return total
