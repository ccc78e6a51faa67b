"""Numbers at the edges, and tables of functions that are compared with eager bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import isthmus

nan, inf = float("nan"), float("inf")
EDGES = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 1e-40, -1e-40, 1e30, -1e30]
INTEGERS = {
    torch.int64: [0, 1, -1, 2, -2, 3, -3, 7, -7, 2**62, -(2**62), 2**63 - 1, -(2**63), 100, -100, 255, 63],
    torch.int32: [0, 1, -1, 2, -2, 3, -3, 7, -7, 2**30, -(2**30), 2**31 - 1, -(2**31), 100, -100, 255, 31],
    torch.int16: [0, 1, -1, 2, -2, 3, -3, 7, -7, 2**14, -(2**14), 2**15 - 1, -(2**15), 100, -100, 255, 15],
    torch.int8: [0, 1, -1, 2, -2, 3, -3, 7, -7, 64, -64, 127, -128, 100, -100, 31, 15],
    torch.uint8: [0, 1, 2, 3, 7, 15, 31, 63, 64, 100, 127, 128, 129, 200, 254, 255],
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Table = dict[str, Callable[..., Tensor]]


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Equal dtype, shape and elements: NaN equals NaN, 0 does not equal -0."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if not got.is_floating_point():
        return torch.equal(got, want)
    both = got.isnan() & want.isnan()
    return bool((both | ((got == want) & (torch.signbit(got) == torch.signbit(want)))).all())


def check(table: Table, *arguments: Tensor, tolerance: float = 0.0) -> None:
    """Compile all of a table as one program and compare each result with eager's."""
    functions = list(table.values())
    compiled = isthmus.compile(lambda *a: tuple(f(*a) for f in functions), fullgraph=True)
    got = compiled(*arguments)
    assert isthmus.last_call_native()
    wrong: list[str] = []
    for (name, function), mine in zip(table.items(), got, strict=True):
        want = function(*arguments)
        if same_bits(mine, want):
            continue
        if tolerance and torch.allclose(mine, want, rtol=tolerance, atol=1e-38, equal_nan=True):
            continue
        wrong.append(f"{name}: {mine.dtype} {mine.tolist()}\n  eager {want.dtype} {want.tolist()}")
    assert not wrong, "\n".join(wrong)


def pairs(values: list[float] | list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    one = torch.tensor(values, dtype=dtype)
    return one.repeat_interleave(len(values)), one.repeat(len(values))


BINARY: Table = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": lambda a, b: torch.fmax(a, b) + 0.0,  # of 0 and -0 eager gives either
    "fmin": lambda a, b: torch.fmin(a, b) + 0.0,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "copysign": torch.copysign,
    "logical_and": torch.logical_and,
    "logical_xor": torch.logical_xor,
    "where": lambda a, b: torch.where(a < b, a, b),
    "clamp": lambda a, b: a.clamp(min=b) + 0.0,
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
}
REMAINDERS: Table = {"remainder": torch.remainder, "fmod": torch.fmod}
