"""Memory of large results is used again when nobody has it any more, and never before."""

from __future__ import annotations

import copy
import gc
import io
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import isthmus
from tests.boundary.harness import CAPTURES, compiled_by

N = 1 << 20
"""Elements of a large result: 4 MiB."""


def compiled(function: Callable[..., object], capture: str, **options: object) -> Callable[..., Tensor]:
    """Compile to machine code a function of one result."""
    return cast("Callable[..., Tensor]", compiled_by(function, capture, "native", **options))


def doubled(x: Tensor) -> Tensor:
    return x * 2 + 1


class Named(Tensor):
    """A subclass without behaviour."""


def _shared(result: Tensor) -> Tensor:
    return result.share_memory_()


def _saved(result: Tensor) -> tuple[Tensor, object]:
    leaf = torch.ones((), requires_grad=True)
    product = leaf * result  # autograd keeps the result
    return product, product.grad_fn


HOLDERS: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda r: r,
    "view": lambda r: r[7:],
    "reshaped": lambda r: r.view(-1, 4).t(),
    "detached": lambda r: r.detach(),
    "data": lambda r: r.data,
    "storage": lambda r: r.untyped_storage(),
    "typed storage": lambda r: r.storage(),
    "numpy": lambda r: r.numpy(),
    "dlpack": lambda r: torch.from_dlpack(r),
    "capsule": lambda r: torch.utils.dlpack.to_dlpack(r),
    "buffer": lambda r: memoryview(r.numpy()),
    "set": lambda r: torch.empty(0).set_(r.untyped_storage(), 3, (N - 3,)),
    "subclass": lambda r: r.as_subclass(Named),
    "parameter": lambda r: nn.Parameter(r),
    "lazy clone": lambda r: torch._lazy_clone(r),  # pyright: ignore
    "saved by autograd": _saved,
    "shared": _shared,
    "in a closure": lambda r: lambda: r,
}


def content(held: object) -> Tensor:
    """All elements of what a holder kept, copied."""
    if isinstance(held, tuple):
        return torch.cat([content(h) for h in held if isinstance(h, Tensor)])
    if isinstance(held, torch.UntypedStorage):
        return torch.empty(0).set_(held).clone()
    if isinstance(held, torch.TypedStorage):
        return torch.tensor([held[0], held[N - 1]])
    if isinstance(held, Tensor):
        return held.detach().as_subclass(Tensor).clone()
    if callable(held):
        return content(held())
    if type(held).__name__ == "PyCapsule":
        return torch.tensor(0.0)
    return torch.tensor(held).clone()


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_holds_stays_as_it_is(holder: str, capture: str):
    f = compiled(doubled, capture)
    x = torch.arange(N, dtype=torch.float32)
    for _ in range(3):
        held = HOLDERS[holder](f(x))
        before = content(held)
        later = [f(-x - k) for k in range(3)]
        assert torch.equal(content(held), before)
        assert torch.equal(later[-1], -2 * x - 3)
        if type(held).__name__ == "PyCapsule":
            assert torch.equal(torch.from_dlpack(held), 2 * x + 1)


def test_what_nobody_holds_is_used_again():
    f = compiled(doubled, "trace")
    x = torch.randn(N)
    first = f(x)
    first.add_(1)
    first.mark = "old"  # type: ignore[attr-defined]
    address, alive = first.data_ptr(), weakref.ref(first)
    del first
    assert alive() is None
    second = f(x)
    assert second.data_ptr() == address
    assert second._version == 0 and not hasattr(second, "mark")
    third = f(x)
    assert third.data_ptr() != address
    assert torch.equal(second, third)


@pytest.mark.parametrize("change", ["larger", "smaller", "nothing", "storage", "other", "swapped"])
def test_a_result_may_be_resized_or_given_other_memory(change: str):
    f = compiled(doubled, "trace")
    x = torch.randn(N)
    for _ in range(4):
        result, expected = f(x), doubled(x)
        if change == "larger":
            assert torch.equal(result.resize_(2 * N)[:N], expected)
            result.fill_(3)
        elif change == "smaller":
            assert torch.equal(result.resize_(5), expected[:5])
        elif change == "nothing":
            result.untyped_storage().resize_(0)
            assert result.untyped_storage().nbytes() == 0
        elif change == "storage":
            result.untyped_storage().resize_(8 * N)
            assert torch.equal(result, expected)
        elif change == "other":
            result.set_(torch.full((N,), 5.0))
            assert result[0] == 5
        else:
            other = torch.zeros(N)
            torch.utils.swap_tensors(result, other)
            assert torch.equal(other, expected)
        again = f(x)
        assert torch.equal(again, expected)
        del result, again


def test_copies_and_files_are_right():
    f = compiled(doubled, "trace")
    x = torch.randn(N)
    result = f(x)
    copied, file = copy.deepcopy(result), io.BytesIO()
    torch.save({"whole": result, "part": result[3:9]}, file)
    del result
    f(x + 1)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(copied, doubled(x)) and torch.equal(loaded["whole"], doubled(x))
    assert torch.equal(loaded["part"], doubled(x)[3:9])


@pytest.mark.parametrize("capture", CAPTURES)
def test_gradients_are_nobody_elses(capture: str):
    torch.manual_seed(0)
    f = compiled(lambda x, y: (x * y).sin(), capture)
    x, y = (torch.randn(N, requires_grad=True) for _ in range(2))
    kept: list[tuple[Tensor, Tensor]] = []
    for k in range(4):
        out = f(x, y)
        g = torch.full((N,), float(k + 1))
        kept.append((torch.autograd.grad(out, x, g, retain_graph=True)[0], g * y.detach() * (x * y).detach().cos()))
        out.backward(g)
    for have, want in kept:
        torch.testing.assert_close(have, want)
    torch.testing.assert_close(y.grad, 10 * x.detach() * (x * y).detach().cos())
    grad = y.grad
    y.grad = None
    f(x, y).backward(torch.ones(N))
    torch.testing.assert_close(grad, 10 * x.detach() * (x * y).detach().cos())


def test_second_derivatives_keep_what_they_need():
    f = compiled(lambda x: x.sin() * x, "trace")
    x = torch.randn(N, requires_grad=True)
    (first,) = torch.autograd.grad(f(x), x, torch.ones(N), create_graph=True)
    for _ in range(3):
        f(x.detach())
        torch.autograd.grad(f(x), x, torch.ones(N))
    (second,) = torch.autograd.grad(first, x, torch.ones(N))
    torch.testing.assert_close(second, (2 * x.cos() - x * x.sin()).detach())


def test_whole_steps_hand_out_results_of_their_own():
    torch.manual_seed(0)
    isthmus.reset()
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    step = isthmus.train_step(model, lambda m, x: ((out := m(x)).pow(2).mean(), out), optimizer)
    x = torch.randn(N // 64, 64)
    held = [step(x * k)[1] for k in range(4)]
    for k, out in enumerate(held):
        torch.testing.assert_close(out, model(x * k).detach())


def test_sizes_that_change():
    f = compiled(doubled, "dynamo", dynamic=True)
    held: list[tuple[Tensor, Tensor]] = []
    for n in (N, N // 2, N, 3 * N, 2 * N + 1, 17, N):
        x = torch.randn(n)
        out = f(x)
        assert torch.equal(out, doubled(x))
        if n % 2:
            held.append((out, doubled(x)))
    assert all(torch.equal(a, b) for a, b in held)


def test_threads_share_nothing():
    f = compiled(doubled, "trace")
    f(torch.zeros(N))
    wrong: list[str] = []
    bin_: list[Tensor] = []  # results die in other threads than those that made them

    def work(seed: int) -> None:
        x, kept = torch.full((N,), float(seed)), list[Tensor]()
        for k in range(60):
            kept.append(f(x))
            if k % 3 == 0:
                bin_.append(kept.pop())
            if k % 7 == 0:
                bin_.clear()
            if any(not bool((t == 2 * seed + 1).all()) for t in kept):
                wrong.append(f"thread {seed}, call {k}")
            del kept[:-2]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_and_its_parent_write_their_own():
    f = compiled(doubled, "trace")
    x = torch.randn(N)
    f(x)
    held = f(x)
    child = os.fork()
    if child == 0:
        good = False
        try:
            mine = [f(x + 1) for _ in range(3)]
            good = torch.equal(held, doubled(x)) and all(torch.equal(m, doubled(x + 1)) for m in mine)
            del mine
            held.fill_(9)
        finally:
            os._exit(0 if good else 1)
    outs = [f(x - 1) for _ in range(3)]
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(held, doubled(x)) and all(torch.equal(o, doubled(x - 1)) for o in outs)


def mapped() -> int:
    """Bytes of the process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc")
def test_one_block_a_result_is_kept_and_goes_with_the_program():
    f = compiled(doubled, "trace")
    x = torch.randn(16 * N)  # 64 MiB
    f(x)
    before = mapped()
    many = [f(x) for _ in range(6)]
    assert mapped() > before + 4 * x.nbytes
    many.clear()
    assert mapped() < before + x.nbytes // 2
    survivor = f(x)
    del f
    isthmus.reset()
    gc.collect()
    assert torch.equal(survivor, doubled(x))
    del survivor
    assert mapped() < before - x.nbytes // 2


END = """
import sys, threading, torch, isthmus
f = isthmus.compile(lambda x: x * 2, capture="trace")
x = torch.ones(1 << 20)
kept = [f(x) for _ in range(3)]
sys.kept = f(x)
threading.main_thread().kept = f(x)
torch.kept = f(x)
class Late:
    def __init__(self): self.kept = f(x)
    def __del__(self): self.kept = None
sys.late = Late()
print("end")
"""


def test_results_may_outlive_the_interpreter():
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr


def test_it_can_be_switched_off():
    f = compiled(doubled, "trace", options={"reuse_results": False})
    x = torch.randn(16 * N)
    f(x)
    before = mapped()
    assert torch.equal(f(x), doubled(x))
    assert mapped() < before + x.nbytes // 2
