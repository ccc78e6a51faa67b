"""`isthmus.compile` on tensors of a GPU, against eager in float64 there."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isthmus

DEVICE = "cuda"


def check(function: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Values and gradients of a function of float tensors."""
    x = [torch.randn(s, device=DEVICE, dtype=dtype, requires_grad=True) for s in shapes]
    exact = [t.detach().double().requires_grad_() for t in x]
    y, want = isthmus.compile(function, fullgraph=True)(*x), function(*exact)
    g = torch.randn(y.shape, device=DEVICE, dtype=dtype)
    y.backward(g)
    want.backward(g.double())
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    assert y.device == x[0].device
    pairs = [(y, want), *((a.grad, b.grad) for a, b in zip(x, exact, strict=True))]
    for found, expected in pairs:
        assert found is not None and expected is not None and found.dtype == dtype
        error = (found.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp_min(1e-30)
        assert error < tolerance, float(error)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x, w, b: F.gelu(x * w + b) + x, ((300, 1000), (1000,), (1000,))),
    "odd sizes": (lambda x, w: torch.tanh(x) * w.sigmoid(), ((37, 131), (131,))),
    "softmax": (lambda x: torch.softmax(x, -1), ((64, 1000),)),
    "softmax of columns": (lambda x: torch.softmax(x, 0), ((100, 33),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (512,), w, b), ((100, 512), (512,), (512,))),
    "sum": (lambda x: (x * x).sum(), ((1000, 777),)),
    "column sums": (lambda x: x.exp().sum(0), ((500, 300),)),
    "product": (lambda x, w, b: torch.relu(F.linear(x, w, b)), ((33, 64), (128, 64), (128,))),
    "batched product": (lambda a, b: a @ b.transpose(-1, -2), ((4, 3, 16, 8), (4, 3, 20, 8))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 3, 32, 16), (2, 3, 32, 16), (2, 3, 32, 16)),
    ),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1).relu(), ((2, 3, 12, 12), (5, 3, 3, 3))),
    "transposed": (lambda x: (x.t() * 2).contiguous().cos(), ((100, 60),)),
    "concatenation": (lambda x, y: torch.cat([x, y], 1).sin(), ((10, 20), (10, 12))),
    "running sum": (lambda x: x.cumsum(1) * 2, ((20, 50),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, shapes = FUNCTIONS[name]
    if dtype == torch.bfloat16 and name in ("running sum", "sum", "softmax of columns"):
        pytest.skip("the error of bfloat16 sums is eager's own")
    check(function, *shapes, dtype=dtype)


def test_cross_entropy_and_its_index_error() -> None:
    function = isthmus.compile(F.cross_entropy, fullgraph=True)
    x = torch.randn(50, 1000, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 1000, (50,), device=DEVICE)
    function(x, target).backward()
    exact = x.detach().double().requires_grad_()
    F.cross_entropy(exact, target).backward()
    torch.testing.assert_close(x.grad, exact.grad.float())  # type: ignore[union-attr]
    with pytest.raises(IndexError):
        function(x, target + 1000)
    function(x, target)


def test_random_numbers_come_from_the_devices_generator() -> None:
    function = isthmus.compile(lambda x: F.dropout(x, 0.3), fullgraph=True)
    x = torch.ones(1000, 100, device=DEVICE)
    torch.cuda.manual_seed(3)
    first, second = function(x), function(x)
    torch.cuda.manual_seed(3)
    assert torch.equal(function(x), first) and not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.3) < 0.01


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)).to(DEVICE)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_training_with_torchs_optimizer(mode: str | None) -> None:
    first = model()
    second = copy.deepcopy(first)
    compiled = isthmus.compile(first, fullgraph=True, mode=mode)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (first, second)]
    for _ in range(6):
        x, y = torch.randn(32, 64, device=DEVICE), torch.randint(0, 10, (32,), device=DEVICE)
        losses = [F.cross_entropy(m(x), y) for m in (compiled, second)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_whole_steps(mode: str | None) -> None:
    first = model()
    second = copy.deepcopy(first)

    def loss_of(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(m(x), y)

    step = isthmus.train_step(first, loss_of, torch.optim.AdamW(first.parameters(), lr=1e-3), mode=mode)
    optimizer = torch.optim.AdamW(second.parameters(), lr=1e-3)
    for _ in range(6):
        x, y = torch.randn(32, 64, device=DEVICE), torch.randn(32, 10, device=DEVICE)
        optimizer.zero_grad()
        loss = loss_of(second, x, y)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, y), loss.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_results_of_graphs_stay_what_they_were() -> None:
    function = isthmus.compile(lambda x: (x * 2, x.sum()), fullgraph=True, mode="reduce-overhead")
    x = torch.randn(1000, 1000, device=DEVICE)
    kept = [(function(x + k), x + k) for k in range(8)]
    for (doubled, total), given in kept:
        assert torch.equal(doubled, given * 2)
        torch.testing.assert_close(total, given.sum(), rtol=1e-4, atol=1e-2)


def test_graphs_read_what_is_there_now() -> None:
    """Inputs at other places, in another layout, at the same place with other content; gradients that are kept."""
    m = model()
    compiled = isthmus.compile(m, fullgraph=True, dynamic=False, mode="reduce-overhead")
    fixed = torch.randn(32, 64, device=DEVICE)
    for k in range(12):
        x = fixed.normal_() if k % 3 else torch.randn(64, 32, device=DEVICE).t()
        m.zero_grad(set_to_none=k % 2 == 0)
        compiled(x).square().sum().backward()
        exact = copy.deepcopy(m).double()
        exact.zero_grad()
        exact(x.double()).square().sum().backward()
        for a, b in zip(m.parameters(), exact.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            assert (a.grad.double() - b.grad).norm() < 1e-4 * b.grad.norm()


@pytest.mark.row("R1")
def test_each_set_of_shapes_has_a_graph_and_its_memory_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_LOGS", "cuda_graphs")
    function = isthmus.compile(
        lambda x, w: torch.softmax(x @ w, -1), dynamic=True, fullgraph=True, mode="reduce-overhead"
    )
    w = torch.randn(64, 512, device=DEVICE)
    for n in (300, 500, 300):
        for _ in range(4):
            x = torch.randn(n, 64, device=DEVICE)
            torch.testing.assert_close(function(x, w), torch.softmax(x @ w, -1), rtol=1e-4, atol=1e-6)
    told = capsys.readouterr().err
    assert told.count("captured, ") >= 2 and "MiB held for replays" in told
    monkeypatch.delenv("ISTHMUS_LOGS")


@pytest.mark.row("R1")
def test_what_cannot_be_captured_is_told_and_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_LOGS", "cuda_graphs")
    function = isthmus.compile(lambda x: torch.linalg.eigvalsh(x @ x.t()) + 1, fullgraph=True, mode="reduce-overhead")
    x = torch.randn(8, 8, device=DEVICE)
    for _ in range(4):
        torch.testing.assert_close(function(x), torch.linalg.eigvalsh(x @ x.t()) + 1, rtol=1e-3, atol=1e-3)
    told = capsys.readouterr().err
    assert "captured, " in told or "runs without a graph" in told
    monkeypatch.delenv("ISTHMUS_LOGS")


def test_an_index_out_of_range_in_a_replayed_step_is_an_error_of_that_call() -> None:
    table = nn.Embedding(50, 16, device=DEVICE)

    def loss_of(m: nn.Module, i: Tensor) -> Tensor:
        return m(i).square().sum()

    step = isthmus.train_step(table, loss_of, torch.optim.SGD(table.parameters(), lr=1e-3))
    good, bad = torch.arange(20, device=DEVICE), torch.full((20,), 50, device=DEVICE)
    for _ in range(4):
        step(good)
    with pytest.raises(IndexError, match="index 50 is out of bounds for dimension 0 with size 50"):
        step(bad)
    before = table.weight.detach().clone()
    want = before[good].square().sum()
    torch.testing.assert_close(step(good), want)
    assert not torch.equal(table.weight, before)


def test_another_stream() -> None:
    function = isthmus.compile(lambda x: (x * 2).softmax(-1), fullgraph=True)
    x = torch.randn(2000, 1000, device=DEVICE)
    function(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = [function(x + k) for k in range(20)]
    stream.synchronize()
    for k, found in enumerate(y):
        torch.testing.assert_close(found, ((x + k) * 2).softmax(-1))


def test_threads() -> None:
    function = isthmus.compile(lambda x: (x * 2).softmax(-1).sum(0), fullgraph=True)
    x = torch.randn(200, 100, device=DEVICE)
    want, wrong = function(x), list[int]()

    def work() -> None:
        for _ in range(50):
            if not torch.equal(function(x), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_sizes_that_change() -> None:
    function = isthmus.compile(lambda x, w: torch.softmax(x @ w, -1).mean(0), fullgraph=True, dynamic=True)
    w = torch.randn(16, 40, device=DEVICE)
    for n in (3, 9, 1000, 2):
        x = torch.randn(n, 16, device=DEVICE)
        torch.testing.assert_close(function(x, w), torch.softmax(x @ w, -1).mean(0), rtol=1e-4, atol=1e-6)


def test_views_at_odd_addresses() -> None:
    function = isthmus.compile(lambda x: x.exp() + 1, fullgraph=True)
    whole = torch.randn(10001, device=DEVICE)
    for start in (0, 1, 2, 3, 1):
        x = whole[start : start + 5000]
        torch.testing.assert_close(function(x), x.exp() + 1)


def test_numbers_of_the_host_join() -> None:
    function = isthmus.compile(lambda x, a: x * a + 1, fullgraph=True)
    x, a = torch.randn(100, device=DEVICE), torch.tensor(3.0)
    torch.testing.assert_close(function(x, a), x * 3 + 1)


def test_several_devices_in_one_program_are_refused() -> None:
    x = torch.randn(4, device=DEVICE)
    with pytest.raises(isthmus.CompileError, match="several devices"):
        isthmus.compile(lambda t: t.cpu() + 1, fullgraph=True)(x)
    torch.testing.assert_close(isthmus.compile(lambda t: t.cpu() + 1)(x), x.cpu() + 1)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_no_memory_is_lost(mode: str | None) -> None:
    m = model()
    compiled = isthmus.compile(m, fullgraph=True, mode=mode)
    x = torch.randn(64, 64, device=DEVICE)

    def step() -> None:
        compiled(x).square().mean().backward()
        m.zero_grad(set_to_none=True)

    for _ in range(12):  # until no graph finds an argument somewhere else
        step()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        step()
    assert torch.cuda.memory_allocated() == before
    isthmus.reset()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_each_device_runs_its_own() -> None:
    function = isthmus.compile(lambda x: x.softmax(-1) * 2, fullgraph=True)
    for index in (0, 1, 0):
        x = torch.randn(100, 100, device=f"cuda:{index}")
        y = function(x)
        assert y.device == x.device
        torch.testing.assert_close(y, x.softmax(-1) * 2)


def test_a_loss_with_its_gradient_is_one_pass() -> None:
    """Logits are read once, whatever the rows that are ignored; also where the row fits no registers."""

    def step(z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(z.float(), t)
        return loss.detach(), torch.autograd.grad(loss, z)[0]

    for classes in (1000, 50304):
        z = torch.randn(64, classes, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        t = torch.randint(0, classes, (64,), device=DEVICE)
        t[::7] = -100
        loss, gradient = isthmus.compile(step, capture="trace")(z, t)
        exact = step(z.detach().double().requires_grad_(), t)[1]
        assert abs(float(loss) - float(F.cross_entropy(z.detach().double(), t))) < 1e-4
        assert (gradient.double() - exact).norm() < 4e-3 * exact.norm()


def test_logits_are_made_in_pieces_of_the_size_that_is_asked_for() -> None:
    def step(h: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(F.linear(h, w).float(), t)
        return loss.detach(), *torch.autograd.grad(loss, (h, w))

    h = torch.randn(4096, 256, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(40000, 256, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    t = torch.randint(0, 40000, (4096,), device=DEVICE)
    compiled = isthmus.compile(step, capture="trace", options={"chunk_rows": 64})
    compiled(h, w, t)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = compiled(h, w, t)
    assert torch.cuda.max_memory_allocated() - before < 4096 * 40000
    exact = step(*(x.detach().double().requires_grad_() for x in (h, w)), t)
    for a, b, eager in zip(found, exact, step(h, w, t), strict=True):  # logits in bfloat16 alone are 2 % off
        assert (a.double() - b).norm() < 1.1 * (eager.double() - b).norm() + 4e-3 * b.norm()


def test_graphs_follow_the_precision_of_products() -> None:
    x, w = (torch.randn(512, 512, device=DEVICE) for _ in range(2))
    exact = x.double() @ w.double()
    compiled = isthmus.compile(lambda x, w: x @ w + 1, mode="reduce-overhead")
    before = torch.get_float32_matmul_precision()
    errors: dict[str, float] = {}
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(4):
                found = compiled(x, w)
            errors[precision] = float((found - 1 - exact).norm() / exact.norm())
    finally:
        torch.set_float32_matmul_precision(before)
    assert errors["highest"] < 1e-5 < errors["high"] < 1e-2
