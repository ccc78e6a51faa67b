"""Functions that GPU code has instead of a C library, against mpmath: huge angles, remainders of huge quotients."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from kernel_text import PARALLEL, function, tensor
from run_grid import on_grid
from run_kernel import TORCH
from test_elementwise import kernel

from isthmus.codegen.vector_math.gamma_zeros import LOG_GAMMA_ZEROS
from isthmus.ir import Literal
from isthmus.passes.memory.schedule_gpu import schedule

# 6381956970095103·2^797 is the double that is nearest to a multiple of π/2.
ANGLES = [1.7e6, 5e6, 1e7, 1e9, 1e15, 3.3e22, 7e30, 2e37, 1e80, 3e200, 1.7e308, math.ldexp(6381956970095103, 797)]


def run(op: str, dtype: str, *inputs: torch.Tensor) -> torch.Tensor:
    c = on_grid(kernel(op, [dtype] * len(inputs), dtype, len(inputs[0])))
    schedule(c.kernel)
    return c(*inputs)[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles(name, dtype):
    torch.manual_seed(0)
    x = torch.tensor([*ANGLES, *(-a for a in ANGLES), math.inf, -math.inf, math.nan], dtype=torch.float64)
    x = torch.cat([x, torch.randn(100, dtype=torch.float64) * 1e8]).to(TORCH[dtype])
    digits = {"f32": 24, "f64": 53}[dtype]
    with mpmath.workprec(1400):
        for given, result in zip(x.tolist(), run(f"prim.{name}", dtype, x).tolist(), strict=True):
            if not math.isfinite(given):
                assert math.isnan(result)
                continue
            wanted = getattr(mpmath, name)(mpmath.mpf(given))
            assert abs(result - wanted) <= abs(wanted) * mpmath.mpf(2) ** (2 - digits), given


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_log_gamma(dtype):
    """Without the C library: also next to the zeros, those below -2 included."""
    torch.manual_seed(0)
    x = torch.cat([torch.rand(200) * 5, 1 + torch.randn(40) * 1e-3, 2 + torch.randn(40) * 1e-3, torch.rand(200) * -8])
    zeros = torch.tensor([high for high, _ in LOG_GAMMA_ZEROS[:12]], dtype=torch.float64)
    x = torch.cat(
        [x.double(), zeros, torch.tensor([0.0, -3.0, math.inf, -math.inf, math.nan, 1e-40, 1e18, 700.25])]
    ).to(TORCH[dtype])
    digits = {"f32": 24, "f64": 53}[dtype]
    for given, result in zip(x.tolist(), run("prim.lgamma", dtype, x).tolist(), strict=True):
        if not math.isfinite(given) or given in (0.0, -3.0):
            assert math.isnan(result) if math.isnan(given) else result == math.inf
            continue
        with mpmath.workprec(200):
            wanted = mpmath.loggamma(given).real if given > 0 else mpmath.log(abs(mpmath.gamma(given)))
            error = abs(result - wanted)
        unit = mpmath.mpf(2) ** (1 - digits)
        assert error <= 2 * unit * abs(wanted), given


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_remainders_are_exact(dtype):
    torch.manual_seed(0)
    limits = torch.finfo(TORCH[dtype])
    special = [0.0, -0.0, 1.0, 3.0, 0.1, 7.5, math.inf, -math.inf, math.nan, limits.max, -limits.max, limits.tiny]
    special += [limits.tiny / 4, -limits.smallest_normal * 0.75, 1e10, 2.0**24 + 1, limits.max / 3]
    x = torch.tensor(special, dtype=torch.float64).to(TORCH[dtype])
    a, b = torch.cartesian_prod(x, x).unbind(1)
    more = torch.randn(2, 200, dtype=torch.float64) * 2.0 ** torch.randint(-100, 100, (2, 200))
    more = torch.cat([more, more.round()], 1).to(TORCH[dtype])  # whole quotients too
    a, b = torch.cat([a, more[0]]).contiguous(), torch.cat([b, more[1]]).contiguous()
    for x, y, result in zip(a.tolist(), b.tolist(), run("prim.rem", dtype, a, b).tolist(), strict=True):
        invalid = not math.isfinite(x) or math.isnan(y) or y == 0
        wanted = math.nan if invalid else math.fmod(x, y)
        assert result == wanted or (math.isnan(result) and math.isnan(wanted)), (x, y)
        assert math.isnan(result) or math.copysign(1, result) == math.copysign(1, wanted)


def ndtr(x: torch.Tensor) -> torch.Tensor:
    return torch.special.erfc(x * -math.sqrt(0.5)) / 2


def tanh_gate(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


GATED = {
    "silu": lambda x: x * torch.sigmoid(x),
    "ndtr": ndtr,
    "gelu": lambda x: x * ndtr(x),
    "normal_density": lambda x: torch.exp(x * x / -2) / math.sqrt(2 * math.pi),
    "tanh_gate": tanh_gate,
    "gelu_tanh": lambda x: x * tanh_gate(x),
}


def wanted_of(name: str, x: torch.Tensor) -> torch.Tensor:
    """The function in float64."""
    return (GATED.get(name) or getattr(torch, {"logistic": "sigmoid"}.get(name, name)))(x.double())


@pytest.mark.parametrize("name", ["exp", "exp2", "logistic", "tanh", "erf", *GATED])
def test_exponentials_by_the_special_unit(name):
    torch.manual_seed(0)
    special = [0.0, -0.0, 1e-40, 1e-8, 88.0, 88.72, 88.7229, 89.0, 1e30, -87.3, -87.4, -103.0, -104.5, -1e30]
    x = torch.tensor([*special, 128.0, 127.5, -149.0, -151.0, math.inf, -math.inf, math.nan])
    x = torch.cat([x, torch.randn(1000) * 10, torch.randn(500) * 50])
    (result,) = (run(f"prim.{name}", "f32", x),)
    wanted = wanted_of(name, x)
    error = (result.double() - wanted).abs()
    fine = error <= wanted.abs() * 2.0**-21.5 + 2.0**-149 * (100 if name in GATED else 1)  # x times a denormal
    assert (fine | (result.isnan() & wanted.isnan()) | (result.double() == wanted.float().double())).all()


@pytest.mark.parametrize("d", [3.0, -7e-3, 1e-40, 3e-39, 3e38, math.inf, 0.0, -0.0, math.nan, 1.9999999])
def test_division_by_one_number_rounds_correctly(d):
    torch.manual_seed(0)
    body = """
    %n = kernel.load {operand = 0, map = [d0]} : f32
    %d = kernel.load {operand = 1, map = []} : f32
    %q = prim.div %n, %d : f32
    kernel.store %q {result = 0, map = [d0]}"""
    n = torch.cat([torch.randn(500), torch.randn(100) * 1e-38, torch.randn(100) * 1e38])
    n[:6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45])
    c = on_grid(function([tensor([len(n)]), tensor([])], [tensor([len(n)])], [len(n)], [PARALLEL], body))
    schedule(c.kernel)
    (q,) = c(n, torch.tensor(d))
    wanted = n / torch.tensor(d)
    assert torch.equal(q.isnan(), wanted.isnan())
    unit = (wanted.abs() * 2.0**-23).clamp_min(2.0**-149)
    tiny = (n.abs() < 2.0**-100) & ((q - wanted).abs() <= unit)
    tiny |= (wanted.abs() < 2.0**-126) & ((q - wanted).abs() <= 2.0**-149)
    assert (tiny | q.isnan() | (q == wanted)).all()
    assert torch.equal(q.signbit()[~q.isnan()], wanted.signbit()[~q.isnan()])


@pytest.mark.parametrize("name", ["exp", "logistic", "tanh", "erf", *GATED])
def test_few_digits_are_enough_on_the_way_to_half_precision(name):
    """The form of few digits, seen in f32: far below half a unit of half precision, also where results are small."""
    torch.manual_seed(0)
    small = [s * 10.0**-e for e in range(12) for s in (1.0, -1.9)]
    x = torch.tensor(
        [*small, 0.0199, 0.0201, 3.0, -5.0, 20.0, -20.0, 200.0, -200.0, 0.0, math.inf, -math.inf, math.nan]
    )
    x = torch.cat([x, 3 * torch.randn(1000)])
    c = on_grid(kernel(f"prim.{name}", ["f32"], "f32", len(x)))
    schedule(c.kernel)
    (inner,) = (o for o in c.kernel.block.ops if o.name == f"prim.{name}")
    inner.attributes["accuracy"] = Literal.of("half")
    (result,) = c(x)
    wanted = wanted_of(name, x)
    error = (result.double() - wanted).abs()
    bound = wanted.abs() * 2.0**-14 + 1e-37
    assert (error <= bound)[wanted.float().isfinite()].all()
    assert torch.equal(result.isnan(), wanted.isnan()) and torch.equal(result.isinf(), wanted.float().isinf())
