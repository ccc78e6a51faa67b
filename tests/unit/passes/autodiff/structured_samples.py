"""Samples of structured primitives: softmax, norms, attention, losses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from isthmus.dialects import prim
from isthmus.dialects.prim.attention import Attention
from tests.unit.passes.autodiff.sample import Sample, numbers


def structured() -> Iterator[Sample]:
    x = numbers(3, 4, 2)
    yield Sample(
        prim.MomentsOp,
        "",
        lambda e, x: e.moments(x, (0, 2)),
        (x,),
        lambda x: (x.mean((0, 2)), x.var((0, 2), correction=0)),
    )
    yield Sample(prim.SoftmaxOp, "", lambda e, x: e.softmax(x, 1), (x,), lambda x: x.softmax(1))
    yield Sample(prim.LogSoftmaxOp, "", lambda e, x: e.log_softmax(x, 1), (x,), lambda x: x.log_softmax(1))
    logits, target = numbers(5, 7, low=-3, high=3), torch.tensor([0, 6, -100, 3, 2])

    def cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.nn.functional.cross_entropy(logits, target, reduction="none", ignore_index=-100)
        return row, logits.logsumexp(1)

    yield Sample(prim.CrossEntropyOp, "", lambda e, x, t: e.cross_entropy(x, t, -100), (logits, target), cross_entropy)
    yield Sample(
        prim.CrossEntropyOp,
        "lse",
        lambda e, x, t: e.cross_entropy(x, t, -100)[1],
        (logits, target),
        lambda x, t: x.logsumexp(1),
    )
    q, k, v = (numbers(2, 2, n, d, seed=n + d) for n, d in ((3, 4), (5, 4), (5, 3)))
    mask = numbers(2, 2, 3, 5, seed=9)

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False):
        s = 0.5 * q @ k.mT
        if mask is not None:
            s = s + mask
        if causal:
            s = s.masked_fill(torch.ones(3, 5).triu(1).bool(), -math.inf)
        return s.softmax(-1) @ v, s.logsumexp(-1) if mask is None else apart(s)

    def apart(s: Tensor) -> Tensor:
        top = s.detach().amax(-1)
        return torch.stack([top, (s - top[..., None]).logsumexp(-1)])

    def shared(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor):
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        s = (0.5 * q @ k.mT).where(allowed, -3.0)
        return s.softmax(-1) @ v, apart(s)

    def empty(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor):
        s = (0.5 * q @ k.mT).where(allowed, -math.inf)
        return s.softmax(-1) @ v, s.logsumexp(-1)

    allowed = torch.rand(2, 2, 3, 5, generator=torch.Generator().manual_seed(3)) > 0.4
    allowed[..., 2] = True
    yield Sample(
        prim.AttentionOp,
        "heads shared, filled",
        lambda e, q, k, v, m: Attention(0.5, fill=-3.0).forward(e, q, k, v, m),
        (q, k[:, :1].contiguous(), v[:, :1].contiguous(), allowed),
        shared,
        2,
    )
    yield Sample(
        prim.AttentionOp,
        "booleans",
        lambda e, q, k, v, m: Attention(0.5, nan_where_empty=True).forward(e, q, k, v, m),
        (q, k, v, allowed),
        empty,
        2,
    )

    yield Sample(
        prim.AttentionOp, "", lambda e, q, k, v: e.attention(q, k, v, None, 0.5, False), (q, k, v), attention, 2
    )
    yield Sample(
        prim.AttentionOp,
        "causal",
        lambda e, q, k, v: e.attention(q, k, v, None, 0.5, True),
        (q, k, v),
        lambda q, k, v: attention(q, k, v, None, True),
        2,
    )
    yield Sample(
        prim.AttentionOp,
        "mask",
        lambda e, q, k, v, m: e.attention(q, k, v, m, 0.5, False),
        (q, k, v, mask),
        attention,
        2,
    )
    yield Sample(
        prim.AttentionOp,
        "lse",
        lambda e, q, k, v: e.attention(q, k, v, None, 0.5, False)[1],
        (q, k, v),
        lambda q, k, v: attention(q, k, v)[1] + 0 * v.sum(),
        2,
    )

    def attention_bwd(g: Tensor, q: Tensor, k: Tensor, v: Tensor, delta: Tensor, lse: Tensor):
        p = (0.5 * q @ k.mT - lse[..., None]).exp()
        ds = p * (g @ v.mT - delta[..., None])
        return 0.5 * ds @ k, 0.5 * ds.mT @ q, p.mT @ g

    g, delta, lse = numbers(2, 2, 3, 3, seed=4), numbers(2, 2, 3, seed=5), numbers(2, 2, 3, seed=6)
    yield Sample(
        prim.AttentionBwdOp,
        "",
        lambda e, *xs: e.attention_bwd(*xs, None, 0.5, False),
        (g, q, k, v, delta, lse),
        attention_bwd,
        2,
    )
