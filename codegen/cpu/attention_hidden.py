"""What keys beyond a causal triangle are worth with the weight 0: nothing, or NaN where they are NaN or infinite.

A softmax that is written out multiplies every value by its weight, 0 beyond the triangle. Blocks there are never
multiplied; what is left of them are sums of 0·x over the rows on the other side of the diagonal, a row's worth of work
where a product has as many as a block has rows.
"""

from __future__ import annotations

from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type

CHAINS = 4
"""Vectors of a row whose sums are made at once: as many additions as the processor has under way."""


def emit_weighed(module: Module, name: str, scalar: str, lanes: int, width: int, *, spreads: bool) -> None:
    """Write `void @name(ptr x, i64 pitch, ptr weights, i64 rows, i64 step, ptr sums, ptr out)`.

    For the rows i of x, `pitch` elements apart, from the first up where `step` is 1, from the last down where it is -1:
    row i of the block `out` is added the sums so far where it `spreads` them, then the sums 0·weights[i]·x[i]. In whole
    vectors of `width` elements.
    """
    numbers = [("pitch", I64), ("weights", PTR), ("rows", I64), ("step", I64), ("sums", PTR), ("out", PTR)]
    f = Function(module, name, [("x", PTR), *numbers], linkage="internal")
    x, pitch, weights, rows, step, sums, out = f.arguments
    vector, chains = Type.of(scalar, lanes), CHAINS if width % (CHAINS * lanes) == 0 else 1
    last = f.select(f.compare("sgt", step, 0), f.index(0), rows - 1)
    with f.loop(0, width, chains * lanes) as j:
        places = [f.address(sums, j + c * lanes, scalar) for c in range(chains)]
        held = [f.slot(vector) for _ in places]
        for place, slot in zip(places, held, strict=True):
            f.store(f.load(place, vector), slot, 64)
        with f.loop(0, rows) as n:
            i = last + n * step
            weight = f.splat(f.load(f.address(weights, i, scalar), Type.of(scalar)) * 0.0, lanes)
            row = f.address(f.address(x, i * pitch, scalar), j, scalar)
            to = f.address(f.address(out, i * width, scalar), j, scalar)
            for c, slot in enumerate(held):
                total = f.load(slot, vector, 64)
                if spreads:
                    at = f.address(to, c * lanes, scalar)
                    f.store(f.load(at, vector) + total, at)
                f.store(total + f.load(f.address(row, c * lanes, scalar), vector) * weight, slot, 64)
        for place, slot in zip(places, held, strict=True):
            f.store(f.load(slot, vector, 64), place)
    f.finish()
