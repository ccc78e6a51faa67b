"""Compiled functions among threads and processes: memory is nobody else's, and bits do not depend on who runs."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import isthmus

CAPTURES = ("dynamo", "trace")

SCRIPT = """
import torch, isthmus
torch.manual_seed(0)
f = isthmus.compile(lambda x, w: torch.softmax((x @ w).tanh(), -1).sum(0))
x, w = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
y = f(x, w)
y.sum().backward()
assert isthmus.last_call_native()
want = torch.softmax((x @ w).tanh(), -1).sum(0)
torch.testing.assert_close(y, want)
print("fine")
"""


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def network(x: Tensor, w: Tensor) -> Tensor:
    h = (x @ w).tanh()
    return (h - h.mean(0)).exp().sum(1) * h[:, 0]


def step(function: object, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 32, generator=generator, dtype=torch.float64)
    w = torch.randn(32, 48, generator=generator, dtype=torch.float64).requires_grad_()
    y = function(x, w)  # pyright: ignore
    y.square().sum().backward()
    assert w.grad is not None
    return y.detach(), w.grad


@pytest.mark.parametrize("capture", CAPTURES)
def test_many_threads_train_with_one_compiled_function(capture: str):
    compiled = isthmus.compile(network, capture=capture)
    step(compiled, 0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: step(compiled, seed), [s % 8 for s in range(64)]))
    alone = [step(compiled, seed) for seed in range(8)]
    for k, (value, gradient) in enumerate(found):
        assert torch.equal(value, alone[k % 8][0]) and torch.equal(gradient, alone[k % 8][1])
        torch.testing.assert_close((value, gradient), step(network, k % 8))


@pytest.mark.parametrize("capture", CAPTURES)
def test_threads_compile_at_once(capture: str):
    def each(k: int) -> None:
        function = lambda x: (x * k).sin().sum(0) + k  # noqa: E731
        compiled = isthmus.compile(function, capture=capture)
        x = torch.randn(5, 3, requires_grad=True)
        y = compiled(x)
        torch.testing.assert_close(y, function(x))
        y.sum().backward()
        torch.testing.assert_close(x.grad, (x.detach() * k).cos() * k)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(each, range(8)))


def test_the_first_call_of_one_function_from_several_threads():
    compiled = isthmus.compile(network)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: step(compiled, 3), range(4)))
    want = step(network, 3)
    for each in found:
        torch.testing.assert_close(each, want)


def test_backward_in_another_thread():
    compiled = isthmus.compile(network)
    x, w = torch.randn(6, 5), torch.randn(5, 4, requires_grad=True)
    values = [compiled(x, w) for _ in range(3)]  # three calls whose saved values live at once
    with ThreadPoolExecutor(1) as pool:
        for y in reversed(values):
            pool.submit(y.sum().backward).result()
    other = w.detach().clone().requires_grad_()
    (network(x, other).sum() * 3).backward()
    torch.testing.assert_close(w.grad, other.grad)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_calls_what_its_parent_compiled(threads: int):
    """Kernels long enough to be cut and a library call: GNU's OpenMP pool does not survive a fork, in torch as here."""
    script = f"import torch\ntorch.set_num_threads({threads})\n" + SCRIPT.replace("(8, 16)", "(2048, 512)").replace(
        "(16, 4,", "(512, 256,"
    )
    script += (
        "import os, signal\n"
        "before = w.grad\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(30)\n"  # ends a child that waits for threads
        "    w.grad = None\n"
        "    f(x, w).sum().backward()\n"
        "    assert torch.equal(w.grad, before)\n"
        "    os._exit(0 if torch.equal(f(x, w), y) else 3)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        f"assert torch.equal(f(x, w), y) and torch.get_num_threads() == {threads}\n"
    )
    assert run(script, OMP_NUM_THREADS="2") == "fine"


def test_a_spawned_child_compiles_for_itself(tmp_path: Path):
    file = tmp_path / "spawning.py"
    file.write_text(
        "import torch, isthmus\n"
        "import torch.multiprocessing as processes\n"
        "def work(k):\n"
        "    f = isthmus.compile(lambda x: x * k)\n"
        "    assert f(torch.ones(3)).tolist() == [k] * 3\n"
        "if __name__ == '__main__':\n"
        "    isthmus.compile(lambda x: x + 1)(torch.ones(2))\n"
        "    processes.spawn(work, nprocs=1)\n"
        "    print('fine')\n"
    )
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["fine"], done.stderr


def run(script: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_processes_share_a_cache_that_is_then_spoiled(tmp_path: Path):
    """Both at once from nothing; then every file is cut, swapped or made of other bytes: compiled again, no crash."""
    settings = {**os.environ, "ISTHMUS_CACHE_DIR": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=settings, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [p.communicate(timeout=120)[0].strip() for p in both] == ["fine", "fine"]
    files = sorted(f for f in tmp_path.rglob("*") if f.is_file() and f.stat().st_size > 0)
    assert files
    first = files[0].read_bytes()
    for k, file in enumerate(files):
        file.chmod(0o600)
        content = file.read_bytes()
        file.write_bytes([content[: len(content) // 2], b"", b"\\x7fELF nothing of ours", first][k % 4])
    assert run(SCRIPT, ISTHMUS_CACHE_DIR=str(tmp_path)) == "fine"


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert run(SCRIPT, ISTHMUS_CACHE_DIR=str(blocked / "cache")) == "fine"


def test_the_bits_do_not_depend_on_the_number_of_threads():
    """Long enough for the kernels to be cut."""
    function = lambda x, b: ((x * b).sin().sum(0), (x + b).exp().mean(1), x.softmax(-1).sum(0))  # noqa: E731
    compiled = isthmus.compile(function)
    x, b = torch.randn(512, 1024), torch.randn(1024, requires_grad=True)
    before = torch.get_num_threads()
    found: list[list[Tensor]] = []
    try:
        for threads in (1, 2, 3, 2, 1):
            torch.set_num_threads(threads)
            b.grad = None
            values = compiled(x, b)
            sum(v.sum() for v in values).backward()  # pyright: ignore
            assert isthmus.last_call_native() and b.grad is not None
            found.append([*(v.detach() for v in values), b.grad.clone()])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, c) for a, c in zip(found[0], other, strict=True))
