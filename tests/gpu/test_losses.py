"""Losses whose gradients forward computes and backward scales in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus

CLASSES = 16384


def loss(z: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(z.float(), t)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def logits(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets of which one is ignored, the gradient."""
    torch.manual_seed(0)
    z = torch.randn(1024, CLASSES, device="cuda").to(request.param).requires_grad_()
    t = torch.randint(0, CLASSES, (1024,), device="cuda")
    t[5] = -100
    (wanted,) = torch.autograd.grad(loss(z, t), z)
    return z, t, wanted.float()


def near(found: Tensor, wanted: Tensor) -> None:
    tolerance = 6e-3 if found.dtype == torch.bfloat16 else 1e-6
    assert float((found.float() - wanted).norm() / wanted.norm()) <= tolerance


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_backward_scales_what_forward_has_left(logits: tuple[Tensor, Tensor, Tensor], capture: str) -> None:
    z, t, wanted = logits
    compiled = isthmus.compile(loss, capture=capture)
    compiled(z, t).backward()
    first = z.grad
    assert first is not None
    (half,) = torch.autograd.grad(compiled(z, t), z, torch.tensor(0.3, device="cuda"))
    near(half, 0.3 * wanted)
    compiled(z, t).backward()
    assert z.grad is first
    near(first, 2 * wanted)


def test_what_is_needed_again_stays(logits: tuple[Tensor, Tensor, Tensor]) -> None:
    z, t, wanted = logits
    y = isthmus.compile(loss)(z, t)
    for factor in (2.0, -0.3, 1.0):
        (g,) = torch.autograd.grad(y, z, torch.tensor(factor, device="cuda"), retain_graph=True)
        near(g, factor * wanted)
        g.zero_()
    (g,) = torch.autograd.grad(y, z)
    near(g, wanted)


@pytest.mark.parametrize("logits", [torch.float32], ids=["f32"], indirect=True)
def test_a_gradient_of_the_gradient(logits: tuple[Tensor, Tensor, Tensor]) -> None:
    """In bfloat16 a gradient that forward began is rounded twice, and what is left of it here is that rounding."""
    z, t, _ = logits
    found = [torch.autograd.grad(f(z, t), z, create_graph=True)[0] for f in (loss, isthmus.compile(loss))]
    (wanted,), (second,) = (torch.autograd.grad(g.square().sum(), z) for g in found)
    near(second / wanted.norm(), wanted / wanted.norm())


def test_a_target_out_of_range_is_an_error(logits: tuple[Tensor, Tensor, Tensor]) -> None:
    z, t, _ = logits
    with pytest.raises(IndexError, match=f"index {CLASSES} is out of bounds"):
        isthmus.compile(loss)(z, torch.full_like(t, CLASSES))


def test_dlogits_take_the_place_of_saved_logits() -> None:
    """A backward that writes over what it reads is given a copy where the graph is kept."""
    torch.manual_seed(0)
    h = torch.randn(512, 256, device="cuda").bfloat16().requires_grad_()
    w = (0.05 * torch.randn(CLASSES, 256, device="cuda")).bfloat16().requires_grad_()
    t = torch.randint(0, CLASSES, (512,), device="cuda")

    def head(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy((h @ w.t()).float(), t)

    wanted = torch.autograd.grad(head(h, w, t), (h, w))
    y = isthmus.compile(head)(h, w, t)
    for keep in (True, True, False):
        for g, exact in zip(torch.autograd.grad(y, (h, w), retain_graph=keep), wanted, strict=True):
            near(g, exact.float())


def head(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy((h @ w.t()).float().view(-1, w.shape[0]), t.view(-1))


def both(h: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(head(h, w, t), [h, w])


def head_arguments(*rows: int, features: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    h = torch.randn(*rows, features, device="cuda", dtype=torch.bfloat16).requires_grad_()
    w = (torch.randn(classes, features, device="cuda") / 32).bfloat16().requires_grad_()
    t = torch.randint(0, classes, rows, device="cuda")
    t[..., 3] = -100
    return h, w, t


@pytest.mark.row("M6")
def test_a_large_head_is_never_whole() -> None:
    """Logits of 256 MiB: forward holds both gradients and half of the logits, backward scales what is there."""
    h, w, t = head_arguments(4096, features=1024, classes=32768)
    wanted = both(h, w, t)
    compiled = isthmus.compile(head)
    compiled(h, w, t).backward()
    for factor in (1.0, 0.5):
        h.grad = w.grad = None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        compiled(h, w, t).backward(torch.tensor(factor, device="cuda"))
        torch.cuda.synchronize()
        held = (torch.cuda.max_memory_allocated() - before) >> 20
        assert held <= 72 + 128 + 4, f"{held} MiB"
        for found, exact in zip((h.grad, w.grad), wanted, strict=True):
            assert found is not None
            near(found, factor * exact.float())
    with pytest.raises(IndexError, match="index 40000 is out of bounds"):
        compiled(h, w, torch.full_like(t, 40000))


@pytest.mark.parametrize("rows", [(1024,), (4, 256)], ids=["rows", "batch and time"])
def test_pieces_of_a_chosen_size(rows: tuple[int, ...]) -> None:
    h, w, t = head_arguments(*rows, features=256, classes=8192)
    compiled = isthmus.compile(both, capture="trace", options={"chunk_rows": 4})
    for _ in range(2):
        for found, exact in zip(compiled(h, w, t), both(h, w, t), strict=True):
            near(found, exact.float())
    assert isthmus.last_call_native()
