"""Programs of one library call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isthmus.ir import literal_text
from isthmus.runtime.call import NativeProgram

Native = Callable[..., NativeProgram]

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "c64": torch.complex64,
}


def type_of(tensor: Tensor) -> str:
    names = {dtype: name for name, dtype in DTYPES.items()} | {torch.bool: "i1"}
    element = {"c64": "complex<f32>"}.get(names[tensor.dtype], names[tensor.dtype])
    return f"tensor<{''.join(f'{n}x' for n in tensor.shape)}{element}>"


def extern(
    symbol: str,
    args: object,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    views: object = None,
    handle: bool = False,
    location: str = "",
) -> str:
    """A function that makes one library call; strides of the inputs are written on the arguments."""
    arguments = [
        f"%a{k}: {type_of(t)} {{isthmus.strides = #isthmus.lit<{list(t.stride())}>}}" for k, t in enumerate(inputs)
    ]
    results = ", ".join(type_of(t) for t in outputs)
    names = ", ".join(f"%r{k}" for k in range(len(outputs)))
    kind = "handle" if handle else "output"
    places = [(kind, k) for k in range(len(outputs))]
    seen = f", views = {literal_text(views)}" if views is not None else ""
    operands = ", ".join(f"%a{k}" for k in range(len(inputs)))
    return f"""
func.func @main({", ".join(arguments)}) -> ({results}) {{
  {names} = kernel.extern {operands} {{symbol = "{symbol}", args = {literal_text(args)},
      places = {literal_text(tuple(places))}{seen}}} : {results} {location}
  func.return {names} : {results}
}}
"""


def library_operand(index: int) -> object:
    from isthmus.ir import Operand

    return Operand(index)
