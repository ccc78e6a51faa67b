"""Torch's argument values as literals: dtypes, layouts, devices and memory formats by their names."""

from __future__ import annotations

import torch

from isthmus.diagnostics import UnsupportedError
from isthmus.ir import LiteralValue

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.complex64: "c64",
    torch.complex128: "c128",
}

DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}

_NAMED = (torch.layout, torch.memory_format)


def dtype_name(dtype: torch.dtype) -> str:
    """Give our name of a dtype; UnsupportedError for those without one (float8, quantized, unsigned but uint8)."""
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        raise UnsupportedError(f"{dtype} has no compiled form", cure="cast to a supported dtype before the region")
    return name


def encode_plain(value: object) -> LiteralValue:
    """Give the literal of a value that holds no tensor and no symbolic size; UnsupportedError for others."""
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, _NAMED):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.Generator):
        raise UnsupportedError(
            "an explicit torch.Generator cannot be compiled", cure="use the default generator (torch.manual_seed)"
        )
    raise UnsupportedError(f"an argument of type {type(value).__name__} cannot be compiled")
