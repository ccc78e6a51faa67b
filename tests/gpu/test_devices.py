"""Several GPUs in one process, and a process for each: every program runs on the device of its tensors."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import isthmus
from tests.unit.driver.data_parallel import train_in_processes
from tests.unit.driver.test_data_parallel import free_port

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

DEVICES = ("cuda:0", "cuda:1")
MODES = pytest.mark.parametrize("mode", [None, "reduce-overhead"])


def model(device: str) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)).to(device)


def require_equal(found: Tensor, wanted: Tensor, error: float = 1e-4) -> None:
    assert found.device == wanted.device
    assert (found.double() - wanted).norm() <= error * wanted.norm()


@MODES
def test_one_function_on_both_in_turn(mode: str | None) -> None:
    """Values and gradients, whichever device is the current one."""
    function = isthmus.compile(lambda x, w: torch.softmax(F.gelu(x) @ w, -1), fullgraph=True, mode=mode)
    for turn in range(12):
        device = DEVICES[turn % 2]
        x = torch.randn(96, 128, device=device, requires_grad=True)
        w = torch.randn(128, 80, device=device, requires_grad=True)
        exact = [t.detach().double().requires_grad_() for t in (x, w)]
        want = torch.softmax(F.gelu(exact[0]) @ exact[1], -1)
        with torch.cuda.device(turn // 6):
            found = function(x, w)
            (found * found).sum().backward()
            assert torch.cuda.current_device() == turn // 6
        (want * want).sum().backward()
        require_equal(found, want)
        for a, b in zip((x, w), exact, strict=True):
            assert a.grad is not None and b.grad is not None
            require_equal(a.grad, b.grad)


def test_the_usual_call_works_on_a_device_that_is_not_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """One native call, as on the current device: nothing is launched by Python."""
    from isthmus.runtime.device_program import DeviceProgram

    function = isthmus.compile(lambda x: torch.softmax(x, -1) * 2, fullgraph=True)
    x = torch.randn(64, 1000, device="cuda:1")
    want = function(x)

    def refused(*arguments: object) -> object:
        raise AssertionError("launched by Python")

    monkeypatch.setattr(DeviceProgram, "_call_in_python", refused)
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            assert torch.equal(function(x), want)


@MODES
def test_whole_steps_on_the_other_device(mode: str | None) -> None:
    def loss_of(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(m(x), y)

    pairs = [(model(d), model(d)) for d in DEVICES]
    steps = [isthmus.train_step(a, loss_of, torch.optim.AdamW(a.parameters(), lr=1e-3), mode=mode) for a, _ in pairs]
    optimizers = [torch.optim.AdamW(b.parameters(), lr=1e-3) for _, b in pairs]
    assert torch.cuda.current_device() == 0
    for _ in range(6):
        for device, (_, second), step, optimizer in zip(DEVICES, pairs, steps, optimizers, strict=True):
            x, y = torch.randn(32, 64, device=device), torch.randn(32, 10, device=device)
            optimizer.zero_grad()
            loss = loss_of(second, x, y)
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(step(x, y), loss.detach(), rtol=1e-4, atol=1e-5)
    for first, second in pairs:
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_graphs_are_replayed_on_the_other_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_LOGS", "cuda_graphs")
    function = isthmus.compile(lambda x: torch.softmax(x, -1) + 1, fullgraph=True, mode="reduce-overhead")
    x = torch.randn(300, 500, device="cuda:1")
    for k in range(4):
        torch.testing.assert_close(function(x + k), torch.softmax(x + k, -1) + 1)
    assert "captured, " in capsys.readouterr().err
    monkeypatch.delenv("ISTHMUS_LOGS")


@MODES
def test_a_module_that_moves(mode: str | None) -> None:
    m = model("cuda:0")
    compiled = isthmus.compile(m, mode=mode)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        m.to(device)
        exact = copy.deepcopy(m).double()
        for _ in range(4):
            x = torch.randn(32, 64, device=device)
            require_equal(compiled(x), exact(x.double()))


def test_streams_of_each_device() -> None:
    function = isthmus.compile(lambda x: (x * 2).softmax(-1), fullgraph=True)
    for device in DEVICES:
        x = torch.randn(2000, 1000, device=device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            y = [function(x + k) for k in range(10)]
        stream.synchronize()
        for k, found in enumerate(y):
            torch.testing.assert_close(found, ((x + k) * 2).softmax(-1))


@MODES
def test_errors_of_each_device(mode: str | None) -> None:
    function = isthmus.compile(lambda table, i: table[i] * 2, fullgraph=True, mode=mode)
    for _ in range(3):
        for device in DEVICES:
            table, i = torch.randn(50, 8, device=device), torch.arange(20, device=device)
            torch.testing.assert_close(function(table, i), table[i] * 2)
            with pytest.raises(IndexError, match="index 50 is out of bounds"):
                function(table, i + 31)
            torch.testing.assert_close(function(table, i), table[i] * 2)


def test_random_numbers_come_from_each_devices_generator() -> None:
    function = isthmus.compile(lambda x: F.dropout(x, 0.3), fullgraph=True)
    for index, device in enumerate(DEVICES):
        x = torch.ones(1000, 100, device=device)
        with torch.cuda.device(index):
            torch.cuda.manual_seed(3)
        first, second = function(x), function(x)
        with torch.cuda.device(index):
            torch.cuda.manual_seed(3)
        assert torch.equal(function(x), first) and not torch.equal(first, second)


def test_products_of_our_own() -> None:
    """Their tensor maps are made for each device's memory."""
    function = isthmus.compile(
        lambda a, b, c: F.gelu(a @ b + c), fullgraph=True, dynamic=False, options={"contractions": "own"}
    )
    for device in (*DEVICES, *DEVICES):
        a, b, c = (torch.randn(*s, device=device).bfloat16() for s in ((520, 328), (328, 256), (256,)))
        require_equal(function(a, b, c), F.gelu(a.double() @ b.double() + c.double()), 1e-2)


class Apart(nn.Module):
    """Half of a model on each device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32, device="cuda:0"), nn.Linear(32, 8, device="cuda:1")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)).to("cuda:1")).softmax(-1)


def test_a_model_on_both_devices_runs_as_eager_does() -> None:
    m, x = Apart(), torch.randn(4, 16, device="cuda:0")
    want = m(x)
    want.square().sum().backward()
    gradients = [p.grad.clone() for p in m.parameters() if p.grad is not None]
    m.zero_grad()
    found = isthmus.compile(m)(x)
    found.square().sum().backward()
    torch.testing.assert_close(found, want)
    for p, g in zip(m.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, g)
    for capture in ("dynamo", "trace"):
        with pytest.raises(isthmus.CompileError, match="several devices"):
            isthmus.compile(m, fullgraph=True, capture=capture)(x)
    halves = [isthmus.compile(part, fullgraph=True) for part in (m.first, m.second)]
    torch.testing.assert_close(halves[1](F.gelu(halves[0](x)).to("cuda:1")).softmax(-1), want)


def in_threads(work: Callable[[str], None]) -> None:
    """Run the work of each device in a thread of its own; raises what fails there."""
    failed: list[BaseException] = []

    def run(device: str) -> None:
        try:
            work(device)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(d,)) for d in (*DEVICES, *DEVICES)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


@MODES
def test_threads_that_share_a_function(mode: str | None) -> None:
    function = isthmus.compile(lambda x, w: torch.softmax(x @ w, -1).sum(0), fullgraph=True, mode=mode)

    def work(device: str) -> None:
        x, w = torch.randn(200, 64, device=device), torch.randn(64, 100, device=device)
        want = torch.softmax(x.double() @ w.double(), -1).sum(0)
        for _ in range(30):
            require_equal(function(x, w), want)

    in_threads(work)


def test_threads_that_train() -> None:
    def work(device: str) -> None:
        first = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
        second = copy.deepcopy(first)  # threads share the generator
        step = isthmus.train_step(
            first, lambda m, x: m(x).square().mean(), torch.optim.SGD(first.parameters(), lr=1e-2)
        )
        optimizer = torch.optim.SGD(second.parameters(), lr=1e-2)
        for _ in range(8):
            x = torch.randn(32, 64).to(device)  # torch's generator of a device refuses draws while a capture is on
            optimizer.zero_grad()
            loss = second(x).square().mean()
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(step(x), loss.detach(), rtol=1e-3, atol=1e-5)

    in_threads(work)


@pytest.mark.skipif(not dist.is_available() or not dist.is_nccl_available(), reason="torch without NCCL")
def test_data_parallel_over_nccl() -> None:
    train_in_processes(2, "nccl", "cuda", free_port())
