"""A primitive on inputs, beside what torch computes: what rules are compared by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.dialects.prim import PrimOp
from tests.unit.passes.autodiff.oracle import Build, Function

F64 = torch.float64


@dataclass(frozen=True)
class Sample:
    """A primitive on inputs. `function` None: the interpreter is torch's to differentiate."""

    cls: type[PrimOp]
    name: str
    build: Build
    inputs: tuple[Tensor, ...]
    function: Function | None = None
    orders: int = 3


def numbers(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    g = torch.Generator().manual_seed(seed + 31 * math.prod(shape))
    real = torch.rand(shape, generator=g, dtype=F64) * (high - low) + low
    if dtype.is_complex:
        imaginary = torch.rand(shape, generator=g, dtype=F64) * (high - low) + low
        return torch.complex(real, imaginary).to(dtype)
    return real.to(dtype)
