"""Every elementwise primitive on every dtype of its domain against eager torch, edges first."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_text import PARALLEL, element, function, tensor
from run_kernel import TORCH, compiled

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import PRIM_OPS
from isthmus.dialects.prim.elementwise import BinaryOp, ElementwiseOp

INF, NAN = math.inf, math.nan
FLOATS = [0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 2.5, 1e-40, 1e-45, 1e30, 3e38, 88.0, 104.0, 127.5, 700.0, 745.0]
FLOATS += [1e5, 1e7, 1e-3, 0.999999, 1.000001, 0.7, 10.0, 25.0, 1e300, 5e-324, 1e-310, INF]
INTEGERS = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100, 127, 128, 32767, 32768, 2**31 - 1, 2**31, 2**40, 2**63 - 1]
COMPLEX = [0.0, 1.0, 0.5, 2.0, 3.0, 20.0]

# Where eager is the one that is wrong, or where its own error is beyond a few ulps.
LIMITS = {prim.DigammaOp: 300, prim.LgammaOp: 20}
WRONG_IN_EAGER = {
    prim.DigammaOp: lambda x: x < 0,  # few digits next to the poles
    prim.SinhOp: lambda x: x.abs() > 88,  # overflows early
    prim.CoshOp: lambda x: x.abs() > 88,
    prim.SiluOp: lambda x: x < -700,  # the factor is a denormal
    **dict.fromkeys((prim.NdtrOp, prim.GeluOp, prim.TanhGateOp, prim.GeluTanhOp), lambda x: x < -2),  # loses digits
    prim.NormalDensityOp: lambda x: x.abs() > 3,
    prim.RemOp: lambda a, b: (b.abs() < 1e-30) | (a.abs() > 1e30),  # NaN for huge quotients
}
ELSEWHERE = (prim.ConvertOp, prim.SelectOp, prim.FmaOp, prim.PolygammaOp)
OPS = [c for c in PRIM_OPS if issubclass(c, ElementwiseOp) and c not in ELSEWHERE]


def edges(dtype: str) -> torch.Tensor:
    """Values where functions have kinks, limits and special results, and some random ones."""
    generator = torch.Generator().manual_seed(1)
    if dtype == "i1":
        return torch.tensor([True, False])
    if ir.is_complex(dtype):
        parts = [*COMPLEX, *(-v for v in COMPLEX)]
        grid = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex128)
        more = torch.randn(60, generator=generator, dtype=torch.complex128) * 2
        return torch.cat([grid, more]).to(TORCH[dtype])
    if ir.is_float(dtype):
        special = torch.tensor([*FLOATS, *(-v for v in FLOATS), NAN], dtype=torch.float64)
        more = torch.randn(100, generator=generator, dtype=torch.float64)
        return torch.cat([special, more, more * 20, more.abs().frac()]).to(TORCH[dtype])
    special = torch.tensor([*INTEGERS, *(-v for v in INTEGERS)])
    return torch.cat([special.to(TORCH[dtype]).unique(), torch.arange(-9, 9).to(TORCH[dtype])])


def inputs(cls, dtype: str) -> list[torch.Tensor]:
    """All edges, or all pairs of the first ones."""
    x = edges(dtype)
    if not issubclass(cls, BinaryOp):
        return [x]
    x = x[:60]
    a, b = x.repeat_interleave(len(x)), x.repeat(len(x))
    if cls in (prim.DivOp, prim.RemOp) and ir.is_integer(dtype):  # what eager raises for, or traps on
        fine = (b != 0) if dtype == "u8" else (b != 0) & ((b != -1) | (a > torch.iinfo(a.dtype).min))
        a, b = a[fine], b[fine]
    return [a.contiguous(), b.contiguous()]


def result_dtype(cls, dtype: str) -> str:
    if cls is prim.CmpOp:
        return "i1"
    if cls is prim.ComplexOp:
        return {"f32": "c64", "f64": "c128"}[dtype]
    if cls in (prim.RealOp, prim.ImagOp, prim.AbsOp):
        return {"c64": "f32", "c128": "f64"}.get(dtype, dtype)
    return dtype


def kernel(op: str, operands, result: str, count: int, literals: str = "") -> str:
    loads = "\n".join(
        f"%v{i} = kernel.load {{operand = {i}, map = [d0]}} : {element(d)}" for i, d in enumerate(operands)
    )
    values = ", ".join(f"%v{i}" for i in range(len(operands)))
    body = f"{loads}\n%r = {op} {values} {literals}: {element(result)}\nkernel.store %r {{result = 0, map = [d0]}}"
    types = [tensor([count], d) for d in operands]
    return function(types, [tensor([count], result)], [count], [PARALLEL], body, partitions=2)


def ulps(result: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Distance in units of the last place of the wanted value; infinite where only one is NaN or infinite."""
    if result.dtype.is_complex:
        # a part may be small by cancellation: measure by the unit of the whole number
        unit = spacing(wanted.abs())
        parts = torch.view_as_real(result.to(torch.complex128)) - torch.view_as_real(wanted.to(torch.complex128))
        distance = parts.abs().amax(-1) / unit
        return torch.where(~torch.isfinite(wanted) | (result == wanted), 0.0, distance)
    if not result.dtype.is_floating_point:
        return torch.where(result == wanted, 0.0, INF)
    same = (result == wanted) | (result.isnan() & wanted.isnan())
    distance = (result.double() - wanted.double()).abs() / spacing(wanted.abs())
    return torch.where(same, 0.0, distance.nan_to_num(INF, INF, INF))


def spacing(x: torch.Tensor) -> torch.Tensor:
    following = torch.nextafter(x, torch.full_like(x, INF)).double()
    return (following - x.double()).nan_to_num(INF).clamp_min(5e-324)


CASES = [(cls, dtype) for cls in OPS for dtype in TORCH if dtype in cls.DOMAIN]


@pytest.mark.parametrize("cls,dtype", CASES, ids=lambda v: v if isinstance(v, str) else v.name)
def test_equals_eager(cls, dtype):
    predicates = ("eq", "ne", "lt", "le", "gt", "ge")[: 2 if ir.is_complex(dtype) else 6]
    literals = [f'{{predicate = "{p}"}} ' for p in predicates] if cls is prim.CmpOp else [""]
    given = inputs(cls, dtype)
    limit = {"f32": 4, "f64": 5, "bf16": 1, "f16": 1, "c64": 99, "c128": 99}.get(dtype, 0)
    limit = max(limit, LIMITS.get(cls, 0)) if dtype in ("f32", "f64") else limit
    for literal in literals:
        text = kernel(cls.name, [dtype] * len(given), result_dtype(cls, dtype), len(given[0]), literal)
        for vector in (None, 0):
            c = compiled(text, vector=vector)
            result, wanted = c(*given)[0], c.interpreted(*given)[0]
            error = ulps(result, wanted)
            if cls in WRONG_IN_EAGER and ir.is_float(dtype):
                error[WRONG_IN_EAGER[cls](*given)] = 0
            if dtype.startswith("c") and cls in (prim.PowOp, prim.RsqrtOp):
                error[given[0] == 0] = 0  # eager disagrees with itself there
            worst = int(error.argmax())
            seen = [x[worst].item() for x in given]
            assert error[worst] <= limit, (seen, result[worst].item(), wanted[worst].item(), float(error[worst]))


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("vector", [None, 0])
def test_convert(source, vector):
    x = edges(source)
    for target in TORCH:
        if ir.is_complex(source) and not ir.is_complex(target):
            continue
        c = compiled(kernel("prim.convert", [source], target, len(x)), vector=vector)
        result, wanted = c(x)[0], x.to(TORCH[target])
        if ir.is_float(source) and target == "u8":  # beyond i32 eager's own paths disagree
            result, wanted = result[x.abs() < 2**31], wanted[x.abs() < 2**31]
        assert torch.equal(result.isnan(), wanted.isnan()) if result.dtype.is_floating_point else True
        assert torch.equal(result.nan_to_num(), wanted.nan_to_num()) if not ir.is_complex(target) else True


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("vector", [None, 0])
def test_fma_rounds_once(dtype, vector):
    a = torch.randn(300, dtype=torch.float64).to(TORCH[dtype])
    b, c = a.flip(0).contiguous(), a.roll(7)
    result = compiled(kernel("prim.fma", [dtype] * 3, dtype, 300), vector=vector)(a, b, c)[0]
    if dtype == "f64":
        plain = a * b + c
        assert not torch.equal(result, plain) and torch.allclose(result, plain)
        return
    assert torch.equal(result, (a.double() * b.double() + c.double()).float().to(TORCH[dtype]))


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("vector", [None, 0])
def test_select(dtype, vector):
    a, b = edges(dtype), edges(dtype).flip(0).contiguous()
    p = torch.arange(len(a)) % 3 == 0
    result = compiled(kernel("prim.select", ["i1", dtype, dtype], dtype, len(a)), vector=vector)(p, a, b)[0]
    wanted = torch.where(p, a, b)
    assert torch.equal(torch.nan_to_num(result, 7.0), torch.nan_to_num(wanted, 7.0))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_narrow_float_survives_a_round_trip(dtype):
    """All 65536 patterns, denormals included; NaNs stay NaNs."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(TORCH[dtype])
    for vector in (None, 0):
        (y,) = compiled(kernel("prim.neg", [dtype], dtype, 65536), vector=vector)(x)
        assert torch.equal(y.isnan(), x.isnan())
        fine = ~x.isnan()
        assert torch.equal(y[fine].view(torch.int16), (-x)[fine].view(torch.int16))
