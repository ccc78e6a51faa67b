"""Operators under vmap against a loop over examples in eager: values, and gradients through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import isthmus

F64 = torch.float64
B = 3
torch.manual_seed(0)


def _r(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


I = torch.randint(0, 4, (B, 5))  # noqa: E741

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (_r(B, 2, 2, 5, 5), _r(B, 4, 2, 3, 3))),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (_r(B, 2, 4, 7, 7), _r(B, 4, 2, 3, 3))),
    "convT": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (_r(B, 2, 2, 3, 3), _r(B, 2, 4, 3, 3))),
    "convT g": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, groups=2, output_padding=1),
        (_r(B, 2, 4, 3), _r(B, 4, 3, 3)),
    ),
    "conv bias": (lambda x, w, b: F.conv1d(x, w, b), (_r(B, 1, 2, 5), _r(B, 4, 2, 3), _r(B, 4))),
    "ln": (lambda x, w: F.layer_norm(x, (4,), w), (_r(B, 3, 4), _r(B, 4))),
    "gn": (lambda x, w: F.group_norm(x, 2, w), (_r(B, 2, 4, 5), _r(B, 4))),
    "bn train": (lambda x: F.batch_norm(x, None, None, training=True), (_r(B, 6, 4),)),
    "emb": (lambda w, i: F.embedding(i, w), (_r(B, 4, 3), I)),
    "ce": (lambda x, i: F.cross_entropy(x, i), (_r(B, 5, 4), I)),
    "nll 2d": (
        lambda x, i: F.cross_entropy(x[None].transpose(1, 2), i[None], reduction="none", label_smoothing=0.1),
        (_r(B, 5, 4), I),
    ),
    "sdpa": (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True),
        (_r(B, 2, 4, 3), _r(B, 2, 4, 3), _r(B, 2, 4, 3)),
    ),
    "mha-ish": (lambda q, k: torch.softmax(torch.einsum("hid,hjd->hij", q, k), -1), (_r(B, 2, 4, 3), _r(B, 2, 4, 3))),
    "maxpool": (lambda x: F.max_pool2d(x, 2), (_r(B, 1, 2, 4, 4),)),
    "avgpool": (lambda x: F.avg_pool2d(x, 2, padding=1), (_r(B, 1, 2, 4, 4),)),
    "pad": (lambda x: F.pad(x, (1, 2), mode="reflect"), (_r(B, 2, 4),)),
    "unfold": (lambda x: F.unfold(x, 2), (_r(B, 1, 2, 4, 4),)),
    "topk": (lambda x: x.topk(2)[0], (_r(B, 5),)),
    "sort": (lambda x: x.sort(descending=True)[0] * torch.arange(5, dtype=F64), (_r(B, 5),)),
    "median": (lambda x: x.median(), (_r(B, 5),)),
    "cumprod": (lambda x: x.cumprod(0), (_r(B, 5),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (_r(B, 5),)),
    "gather": (lambda x, i: x.gather(0, i.clamp(max=3)), (_r(B, 5), I)),
    "scatter_add": (lambda x, i: torch.zeros(4, dtype=F64).scatter_add(0, i, x), (_r(B, 5), I)),
    "index_add": (lambda x, i: torch.zeros(4, 2, dtype=F64).index_add(0, i, x), (_r(B, 5, 2), I)),
    "index_put": (lambda x, i: x.index_put((i,), x.sum()), (_r(B, 4), I)),
    "index_select": (lambda x, i: x.index_select(0, i), (_r(B, 4), I)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 1.0) * x, (_r(B, 4),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (_r(B, 4), _r(B, 4))),
    "tril": (lambda x: x.tril() @ x, (_r(B, 4, 4),)),
    "view write": (lambda x: (lambda y: (y[0].copy_(x.sum(0)), y)[1])(torch.zeros(2, 4, dtype=F64)), (_r(B, 3, 4),)),
    "var": (lambda x: x.var(0) + x.std(), (_r(B, 4, 3),)),
    "norm": (lambda x: torch.linalg.norm(x), (_r(B, 4),)),
    "inv": (lambda x: torch.linalg.inv(x @ x.mT + torch.eye(3, dtype=F64)), (_r(B, 3, 3),)),
    "chol": (lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3, dtype=F64)), (_r(B, 3, 3),)),
    "solve": (lambda a, b: torch.linalg.solve(a, b), (_r(B, 3, 3), _r(B, 3))),
    "tri": (
        lambda a, b: torch.linalg.solve_triangular(a.tril() + 3 * torch.eye(3, dtype=F64), b, upper=False),
        (_r(B, 3, 3), _r(B, 3, 2)),
    ),
    "matexp": (lambda a: torch.linalg.matrix_exp(a), (_r(B, 3, 3),)),
    "fft": (lambda a: torch.fft.rfft(a).abs(), (_r(B, 6),)),
    "cdist": (lambda a, b: torch.cdist(a, b), (_r(B, 3, 2), _r(B, 4, 2))),
    "bilinear": (lambda a, b, w: F.bilinear(a, b, w), (_r(B, 4, 2), _r(B, 4, 3), _r(B, 5, 2, 3))),
    "grid": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (_r(B, 1, 2, 4, 4), _r(B, 1, 3, 3, 2))),
    "kthvalue": (lambda x: x.kthvalue(2)[0], (_r(B, 5),)),
    "checkpoint": (lambda x: checkpoint(lambda y: (y.sin() @ y).exp(), x, use_reentrant=False), (_r(B, 3, 3),)),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    function, arguments = CASES[name]
    mine, theirs = ([t.clone().requires_grad_(t.is_floating_point()) for t in arguments] for _ in range(2))
    wanted = torch.stack([function(*(t[k] for t in theirs)) for k in range(B)])
    found = isthmus.compile(isthmus.vmap(function), capture="trace")(*mine)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    weights = torch.cos(torch.arange(wanted.numel(), dtype=F64)).reshape(wanted.shape)
    gradients = [
        torch.autograd.grad((y * weights).sum(), [t for t in xs if t.requires_grad], materialize_grads=True)
        for y, xs in ((found, mine), (wanted, theirs))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)
