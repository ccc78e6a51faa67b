"""Writes functions that hold one contraction, as text."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_text import literals, tensor


def contraction(
    arguments: Sequence[str],
    results: Sequence[str],
    sizes: Sequence[object],
    body: str,
    *,
    grid: Sequence[object] = (1, 1, 1),
    tile: Sequence[int] = (6, 2, 8),
    block: Sequence[int] = (12, 16, 32),
    partitions: object = None,
    more: str = "",
) -> str:
    """A function with one kernel.contract whose operands are the function's arguments; dims are batch, m, n, k."""
    given = ", ".join(f"%x{i}: {t}" for i, t in enumerate(arguments))
    operands = ", ".join(f"%x{i}" for i in range(len(arguments)))
    outs, types = ", ".join(f"%y{i}" for i in range(len(results))), ", ".join(results)
    classes = ", ".join(['"batch"'] * (len(sizes) - 3) + ['"m"', '"n"', '"k"'])
    count = 1
    for part in grid:
        count = count * part if partitions is None else partitions
    space = f"sizes = {literals(sizes)}, classes = [{classes}], partitions = {literals([count])[1:-1]}"
    space += f", grid = {literals(grid)}, tile = {list(tile)}, block = {list(block)}{more}"
    return f"""func.func @f({given}) -> ({types}) {{
  {outs} = kernel.contract {operands} {{{space}}} ({{
{body}
  }}) : {types}
  func.return {outs} : {types}
}}"""


def product(m: object, n: object, k: object, layout: str = "NN", dtype: str = "f32", **more: object) -> str:
    """y = a·b, each factor as it lies (N) or transposed (T)."""
    a, b = layout
    body = f"""
    %a = kernel.load {{operand = 0, map = [{"d0, d2" if a == "N" else "d2, d0"}]}} : {dtype}
    %b = kernel.load {{operand = 1, map = [{"d2, d1" if b == "N" else "d1, d2"}]}} : {dtype}
    %y = kernel.dot %a, %b {{dims = [2]}} : {dtype}
    kernel.store %y {{result = 0, map = [d0, d1]}}"""
    shapes = [[m, k] if a == "N" else [k, m], [k, n] if b == "N" else [n, k]]
    if dtype == "f64":
        more = {"tile": (6, 2, 4), **more}
    return contraction([tensor(s, dtype) for s in shapes], [tensor([m, n], dtype)], [m, n, k], body, **more)


AROUND = """
    %x = kernel.load {operand = 0, map = [d0, d2]} : f32
    %mean = kernel.load {operand = 1, map = [d0]} : f32
    %xc = prim.sub %x, %mean : f32
    %w = kernel.load {operand = 2, map = [d1, d2]} : f32
    %s = kernel.load {operand = 3, map = [d2]} : f32
    %wb = prim.mul %w, %s : f32
    %wt = prim.tanh %wb : f32
    %y = kernel.dot %xc, %wt {dims = [2]} : f32
    %bias = kernel.load {operand = 4, map = [d1]} : f32
    %z = prim.add %y, %bias : f32
    %e = prim.erf %z : f32
    %r = kernel.load {operand = 5, map = [d0, d1]} : f32
    %o = prim.add %e, %r : f32
    kernel.store %z {result = 0, map = [d0, d1]}
    kernel.store %o {result = 1, map = [d0, d1]}
    kernel.accumulate %o {result = 2, map = [d1], kind = "add"}"""


def around(m: object, n: object, k: object, **more: object) -> str:
    """erf((x - mean)·tanh(w·s)ᵀ + bias) + r: two results and the sums of the columns in four parts."""
    operands = [[m, k], [m], [n, k], [k], [n], [m, n]]
    results = [tensor([m, n]), tensor([m, n]), tensor([4, n])]
    return contraction([tensor(s) for s in operands], results, [m, n, k], AROUND, **more)
