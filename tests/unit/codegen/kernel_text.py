"""Writes functions that hold one fused kernel, as text."""

from __future__ import annotations

from collections.abc import Sequence

PARALLEL, ROW = "parallel", "row"


def element(dtype: str) -> str:
    """How text spells the element type of a dtype."""
    return {"u8": "ui8", "c64": "complex<f32>", "c128": "complex<f64>"}.get(dtype, dtype)


def tensor(shape: Sequence[object], dtype: str = "f32") -> str:
    """The type of a tensor; strings in the shape are symbols or expressions of them."""
    sizes = "".join(f"{d if isinstance(d, int) else '?'}x" for d in shape)
    symbolic = any(isinstance(d, str) for d in shape)
    encoding = f", #isthmus.lit<{literals(shape)}>" if symbolic else ""
    return f"tensor<{sizes}{element(dtype)}{encoding}>"


def literals(values: Sequence[object]) -> str:
    """A list in text; strings are sizes."""
    return f"[{', '.join(f'<{chr(34)}{v}{chr(34)}>' if isinstance(v, str) else str(v) for v in values)}]"


def function(
    arguments: Sequence[str],
    results: Sequence[str],
    sizes: Sequence[object],
    classes: Sequence[str],
    body: str,
    *,
    partitions: object = 3,
    vector: int | None = None,
    more: str = "",
) -> str:
    """A function with one kernel whose operands are the function's arguments."""
    given = ", ".join(f"%x{i}: {t}" for i, t in enumerate(arguments))
    operands = ", ".join(f"%x{i}" for i in range(len(arguments)))
    outs = ", ".join(f"%y{i}" for i in range(len(results)))
    types = ", ".join(results)
    names = ", ".join(f'"{c}"' for c in classes)
    chosen = "" if vector is None else f", vector = {vector}"
    count = literals([partitions])[1:-1]
    space = f"sizes = {literals(sizes)}, classes = [{names}]"
    return f"""func.func @f({given}) -> ({types}) {{
  {outs} = kernel.fused {operands} {{{space}, partitions = {count}{chosen}{more}}} ({{
{body}
  }}) : {types}
  func.return {outs} : {types}
}}"""
