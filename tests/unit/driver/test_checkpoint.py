"""torch.utils.checkpoint and selective policies from the user's side: what runs again, and the gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import isthmus
from isthmus.passes.partition.explain import Explanation


def region(x: Tensor, w: Tensor) -> Tensor:
    return torch.sin(torch.sin(x @ w) @ w)


def save_contractions(ctx, op, *args, **kwargs) -> CheckpointPolicy:
    save = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


def plain(x: Tensor, w: Tensor) -> Tensor:
    return region(x, w).sum()


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(region, x, w, use_reentrant=False).sum()


def selective(x: Tensor, w: Tensor) -> Tensor:
    contexts = partial(create_selective_checkpoint_contexts, save_contractions)
    return checkpoint(region, x, w, use_reentrant=False, context_fn=contexts).sum()


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)


def cut_of(function, strategy: str) -> Explanation:
    torch._dynamo.reset()
    cut = isthmus.explain(function, backend="interpret", strategy=strategy)(*inputs()).graphs[0].cut
    assert cut is not None
    return cut


def kinds(cut: Explanation) -> list[str]:
    return sorted(r.name.removeprefix("%").partition("_")[0] for r in cut.recomputed)


@pytest.mark.row("M4")
@pytest.mark.parametrize("strategy", ["min-cut", "min-traffic", "default"])
def test_a_checkpoint_runs_its_contractions_again(strategy: str) -> None:
    cut = cut_of(checkpointed, strategy)
    assert kinds(cut) == ["dot", "dot", "sin"]
    assert cut.saved_bytes == 0


@pytest.mark.row("M5")
@pytest.mark.parametrize("strategy", ["min-cut", "default"])
def test_a_policy_that_saves_contractions_recomputes_the_rest(strategy: str) -> None:
    cut = cut_of(selective, strategy)
    assert kinds(cut) == ["sin"]
    assert cut.saved_bytes == 2 * 8 * 8 * 4


@pytest.mark.parametrize("function", [checkpointed, selective])
def test_gradients_are_those_of_the_program_without_it(function) -> None:
    torch._dynamo.reset()
    x, w = inputs()
    expected = torch.autograd.grad(plain(x, w), (x, w))
    found = torch.autograd.grad(isthmus.compile(function, backend="interpret")(x, w), (x, w))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
