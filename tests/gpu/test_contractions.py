"""Products of our own on a GPU, against float64: layouts, edges, batches, and what is computed around them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import isthmus


def compiled(function: Callable[..., object]) -> Callable[..., object]:
    return isthmus.compile(function, dynamic=False, options={"contractions": "own"})


def close(found: Tensor, wanted: Tensor, error: float = 2.0**-7) -> None:
    """Equal up to a rounding or two of the whole's size."""
    assert not found.isnan().any()
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found.double(), wanted.double(), rtol=error, atol=error * scale / 4)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


LAYOUTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "NT": lambda a, b: a @ b.mT,
    "NN": lambda a, b: a @ b,
    "TN": lambda a, b: a.mT @ b,
    "TT": lambda a, b: a.mT @ b.mT,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m,n,k", [(128, 64, 64), (1000, 1096, 328), (4096, 768, 2304), (264, 40, 8200)])
def test_layouts_and_edges(m: int, n: int, k: int, layout: str, dtype: torch.dtype) -> None:
    a = normal(*((m, k) if layout[0] == "N" else (k, m)), dtype=dtype)
    b = normal(*((k, n) if layout[1] == "N" else (n, k)), dtype=dtype)
    product = LAYOUTS[layout]
    found = compiled(product)(a, b)
    assert isinstance(found, Tensor)
    close(found, product(a.double(), b.double()), 2.0**-7 if dtype is torch.bfloat16 else 2.0**-10)


def test_batches() -> None:
    a, b = normal(6, 4, 200, 72), normal(6, 4, 72, 136)
    found = compiled(lambda a, b: a @ b)(a, b)
    assert isinstance(found, Tensor)
    close(found, a.double() @ b.double())


@pytest.mark.parametrize("m,n,k", [(1000, 1096, 328), (8192, 768, 256), (512, 3072, 1024)])
def test_epilogues(m: int, n: int, k: int) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        z = F.linear(x, w) + b
        y = F.gelu(z, approximate="tanh")
        return z, y, y + r, y.float().sum(0)

    given = [normal(m, k) / k**0.5, normal(n, k), normal(n), normal(m, n)]
    wanted, eager = function(*(t.double() for t in given)), function(*given)
    found = compiled(function)(*given)
    assert isinstance(found, tuple)
    for one, other, exact in zip(found, eager, wanted, strict=True):
        assert float((one - exact).norm()) <= 1.1 * float((other - exact).norm()) + 1e-6 * float(exact.norm())


def test_a_step_of_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
    model = model.to("cuda", torch.bfloat16)
    x = normal(2048, 256)
    exact = copy.deepcopy(model).double()
    run = isthmus.compile(model, dynamic=False, options={"contractions": "own"})
    (run(x).float() ** 2).mean().backward()
    (exact(x.double()) ** 2).mean().backward()
    gradients = [[p.grad.double() for p in m.parameters() if p.grad is not None] for m in (model, exact)]
    for found, wanted in zip(*gradients, strict=True):
        assert float((found - wanted).norm() / wanted.norm()) < 2e-2


def test_buffers_at_odd_addresses() -> None:
    a, b = normal(128 * 64 + 1)[1:].view(128, 64), normal(64, 64)
    found = compiled(lambda a, b: a @ b)(a, b)
    assert isinstance(found, Tensor)
    close(found, a.double() @ b.double())


@pytest.fixture
def tf32() -> Generator[None]:
    """Products of f32 in TF32, as torch's setting allows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m,n,k", [(128, 64, 64), (1000, 1096, 328), (4096, 768, 2304), (264, 40, 8200), (77, 130, 33)])
def test_tf32_is_as_exact_as_the_librarys(m: int, n: int, k: int, layout: str) -> None:
    a = normal(*((m, k) if layout[0] == "N" else (k, m)), dtype=torch.float32)
    b = normal(*((k, n) if layout[1] == "N" else (n, k)), dtype=torch.float32)
    product = LAYOUTS[layout]
    exact, eager = product(a.double(), b.double()), product(a, b)
    found = compiled(product)(a, b)
    assert isinstance(found, Tensor)
    allowed = max(float((eager - exact).norm()), 3e-4 * float(exact.norm()))  # small ones the library multiplies in f32
    assert float((found - exact).norm()) <= 1.1 * allowed


@pytest.mark.usefixtures("tf32")
def test_tf32_with_an_epilogue_and_its_gradients_follow_the_setting() -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b))

    given = [normal(1024, 512, dtype=torch.float32), normal(768, 512, dtype=torch.float32), normal(768).float()]
    run = compiled(function)

    def errors() -> list[float]:
        results: list[list[Tensor]] = []
        for f, dtype in ((run, torch.float32), (function, torch.float64)):
            leaves = [t.to(dtype).requires_grad_() for t in given]
            y = f(*leaves)
            assert isinstance(y, Tensor)
            results.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
        return [float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]

    assert all(1e-5 < e < 1e-3 for e in errors()[:3])
    torch.set_float32_matmul_precision("highest")
    assert all(e < 2e-6 for e in errors())
