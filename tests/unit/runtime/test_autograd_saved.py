"""What the tape node saves, in tensors and arenas: who may write it, who sees it, when it is freed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tape_nodes import exp_node, multiply_node, pair, square_of_sine_node
from torch import Tensor

from isthmus.runtime.arena import ArenaPool


@pytest.mark.row("A12")
def test_saved_argument_that_was_overwritten_is_an_error() -> None:
    x, w = pair(3)
    (y,) = multiply_node()([x, w])
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_result_is_version_checked_and_makes_no_cycle() -> None:
    x, _ = pair(3)
    (y,) = exp_node()([x])
    (g,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    torch.testing.assert_close(g, x.exp())
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    gone = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("arena", [False, True])
def test_intermediates_reach_the_backward(arena: bool) -> None:
    pool = ArenaPool() if arena else None
    node = square_of_sine_node(pool)
    x, _ = pair(3, 5)
    for _ in range(3):
        (g,) = torch.autograd.grad(node([x])[0].sum(), [x])
        torch.testing.assert_close(g, 2 * x.sin() * x.cos())


def test_arena_returns_after_backward_and_two_forwards_have_two() -> None:
    pool = ArenaPool()
    node = square_of_sine_node(pool)
    x, z = pair(5)
    first, second = node([x])[0], node([z])[0]
    assert pool.free_bytes == 0
    (gx,) = torch.autograd.grad(first.sum(), [x])
    (gz,) = torch.autograd.grad(second.sum(), [z])
    torch.testing.assert_close(gx, 2 * x.sin() * x.cos())
    torch.testing.assert_close(gz, 2 * z.sin() * z.cos())
    assert pool.free_bytes == 2 * 80


def test_arena_returns_when_the_tape_lets_go_and_not_before() -> None:
    pool = ArenaPool()
    node = square_of_sine_node(pool)
    x, _ = pair(5)
    y = node([x])[0]
    y.sum().backward(retain_graph=True)
    assert pool.free_bytes == 0
    del y
    assert pool.free_bytes == 80


def test_arena_counts_among_saved_tensors() -> None:
    x, _ = pair(5)
    y = square_of_sine_node(ArenaPool())([x])[0]
    assert y.grad_fn is not None
    saved = y.grad_fn.saved_tensors  # type: ignore[attr-defined]
    assert sum(t.numel() * t.itemsize for t in saved) == 3 * 5 * 8


def test_saved_tensor_hooks_see_typed_values() -> None:
    node = square_of_sine_node(ArenaPool())
    x, _ = pair(5)
    packed: list[tuple[torch.dtype, torch.Size]] = []

    def pack(t: Tensor) -> Tensor:
        packed.append((t.dtype, t.shape))
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = node([x])[0]
    (g,) = torch.autograd.grad(y.sum(), [x])
    torch.testing.assert_close(g, 2 * x.sin() * x.cos())
    assert packed == [(torch.float64, torch.Size([5]))] * 3


def test_hooks_keep_no_reference_behind_their_back() -> None:
    node = exp_node()
    x, _ = pair(5)
    h = x * 2
    gone = weakref.ref(h)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.shape, lambda s: torch.ones(s)):
        y = node([h])[0]
    del h
    gc.collect()
    assert gone() is None
    assert y.grad_fn is not None


def test_checkpoint_around_a_node() -> None:
    node = square_of_sine_node(ArenaPool())
    x, _ = pair(5)
    y = torch.utils.checkpoint.checkpoint(lambda t: node([t])[0], x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.sum(), [x])
    torch.testing.assert_close(g, 2 * x.sin() * x.cos())
    assert node.counters.forward_calls == 2


def test_save_on_cpu_hook() -> None:
    node = multiply_node()
    x, w = pair(3)
    with torch.autograd.graph.save_on_cpu():
        y = node([x, w])[0]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), [x])[0], w.detach())


def test_saved_tensors_are_freed_after_backward() -> None:
    """Also while the loss, and with it the graph, stays alive."""
    node = multiply_node()
    x, w = pair(3)
    h = x * 1.0
    y = node([h, w])[0].sum()
    gone = weakref.ref(h)
    del h
    assert gone() is not None
    gc.disable()
    try:
        y.backward()
        assert gone() is None
    finally:
        gc.enable()
