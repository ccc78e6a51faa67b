"""Attention by operator and by hand: one streaming kernel in each direction, values and gradients as eager float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

import isthmus

T = 64
ALIKE = ((2, 3, T, 32),) * 3


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def report(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[int, int]:
    """How many kernels of attention the forward and backward have."""
    graph = isthmus.explain(function)(*inputs).graphs[0]
    return sum(d.attentions for d in graph.directions), len(graph.directions)


def check(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...], streams: bool = True, extra=(), **settings):
    """Compare with eager in float64, and say whether scores were kept."""
    isthmus.reset()
    mine = [torch.randn(s, requires_grad=True) for s in shapes]
    exact = [t.detach().double().requires_grad_() for t in mine]
    wide = [t.double() if t.is_floating_point() else t for t in extra]
    got, wanted = isthmus.compile(function, **settings)(*mine, *extra), function(*exact, *wide)
    tangent = torch.randn_like(got)
    gradients = torch.autograd.grad(got, mine, tangent)
    assert isthmus.last_call_native()
    exact_gradients = torch.autograd.grad(wanted, exact, tangent.double())
    for a, b in zip((got, *gradients), (wanted, *exact_gradients), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=2e-5, equal_nan=True)
    found, directions = report(function, *mine, *extra)
    assert found == (directions if streams else 0)


def causal(n: int = T, offset: int = 0) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril(offset)


def softmax_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Callable[[torch.Tensor], torch.Tensor]):
    return torch.softmax(scores(q @ k.transpose(-2, -1)), -1) @ v


BY_HAND = {
    "plain": lambda s: s * 0.2,
    "divided, triangle filled": lambda s: (s / math.sqrt(32)).masked_fill(~causal(), -math.inf),
    "triangle added": lambda s: s * 0.2 + torch.triu(torch.full((T, T), -math.inf), 1),
    "where": lambda s: torch.where(torch.arange(T)[:, None] >= torch.arange(T), s * 0.2, -math.inf),
    "triangle of numbers": lambda s: (0.2 * s).masked_fill(torch.tril(torch.ones(T, T)) == 0, -math.inf),
    "smallest number": lambda s: (s * 0.2).masked_fill(~causal(), torch.finfo(torch.float32).min),
    "another diagonal": lambda s: (s * 0.2).masked_fill(~causal(offset=5), -math.inf),
    "multiplied into a bias": lambda s: s * 0.2 + (1.0 - torch.tril(torch.ones(T, T)))[None, None] * -1e9,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_attention_by_hand(name: str) -> None:
    check(lambda q, k, v: softmax_of(q, k, v, BY_HAND[name]), *ALIKE)


def padding(*, empty: bool) -> torch.Tensor:
    mask = torch.rand(2, 1, 1, T) > 0.3
    mask[0] = mask[0] & (not empty)
    mask[..., 0] = mask[..., 0] | (not empty)
    return mask


MASKED = {
    "booleans": (lambda s, m: (s * 0.2).masked_fill(~m, -math.inf), padding(empty=False)),
    "an empty row is NaN": (lambda s, m: (s * 0.2).masked_fill(~m, -math.inf), padding(empty=True)),
    "an empty row is uniform": (lambda s, m: (s * 0.2).masked_fill(~m, -1e9), padding(empty=True)),
    "numbers": (lambda s, m: s * 0.2 + m, torch.randn(2, 1, T, T)),
    "a buffer": (lambda s, m: (s * 0.2).masked_fill(m[:, :, :T, :T] == 0, -math.inf), torch.ones(1, 1, 99, 99).tril()),
    "two": (
        lambda s, m: (s * 0.2).masked_fill(~m, -math.inf).masked_fill(~causal(), -math.inf),
        padding(empty=False),
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks_that_are_given(name: str) -> None:
    scores, mask = MASKED[name]
    check(lambda q, k, v, m: softmax_of(q, k, v, lambda s: scores(s, m)), *ALIKE, extra=(mask,))


def einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bhqk,bkhd->bqhd", (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.2).softmax(-1), v)


def bmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(2, 3, T, T)
    weights = (scores * 0.2).masked_fill(~causal(), -math.inf).softmax(-1)
    return torch.bmm(weights.view(6, T, T), v.flatten(0, 1)).view(2, 3, T, 32)


def test_other_products() -> None:
    check(einsum, *((2, T, 3, 32),) * 3)
    check(bmm, *ALIKE)
    check(lambda q, k, v: softmax_of(q, k, v, lambda s: s * 0.3), (6, T, 32), (6, 77, 32), (6, 77, 16))
    check(lambda q, k, v: softmax_of(q, k, v, lambda s: s * 0.3), (T, 32), (77, 32), (77, 16))


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


@pytest.mark.parametrize("name", ["operator", "interleaved", "by hand"])
def test_repeated_heads_are_shared(name: str) -> None:
    functions = {
        "operator": lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3)),
        "interleaved": lambda q, k, v: F.scaled_dot_product_attention(
            q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), is_causal=True
        ),
        "by hand": lambda q, k, v: softmax_of(q, repeated(k, 3), repeated(v, 3), lambda s: s * 0.3),
    }
    check(functions[name], (2, 6, T, 16), (2, 2, T, 16), (2, 2, T, 16))
    q, k = torch.randn(2, 6, T, 16), torch.randn(2, 2, T, 16)
    assert isthmus.explain(functions[name])(q, k, k).graphs[0].directions[0].kernels == 1


def learned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return softmax_of(q, k, v, lambda s: s * 0.2 + bias)


def weights_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT * 0.2).softmax(-1)
    return weights @ v + weights.sum() * 1e-3


def scores_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT * 0.2
    return scores.softmax(-1) @ v + scores.sum() * 1e-3


OTHERS = {
    "weights are used": (weights_too, ALIKE),
    "scores are used": (scores_too, ALIKE),
    "another dimension": (lambda q, k, v: (q @ k.mT * 0.2).softmax(-2) @ v, ALIKE),
    "a mask is learned": (learned, (*ALIKE, (3, T, T))),
    "a factor of the mask": (lambda q, k, v: ((q @ k.mT + causal().float()) * 0.2).softmax(-1) @ v, ALIKE),
    "a function of the scores": (lambda q, k, v: torch.tanh(q @ k.mT).softmax(-1) @ v, ALIKE),
    "small": (lambda q, k, v: (q @ k.mT * 0.2).softmax(-1) @ v, ((2, 3, 8, 8),) * 3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_attention_keeps_its_scores(name: str) -> None:
    function, shapes = OTHERS[name]
    check(function, *shapes, streams=False)


def attend(**settings) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **settings)


def test_the_operator() -> None:
    check(attend(is_causal=True), (2, 3, 100, 24), (2, 3, 130, 24), (2, 3, 130, 40))
    check(attend(enable_gqa=True), (2, 6, 50, 16), (2, 2, 70, 16), (2, 2, 70, 16))
    check(attend(enable_gqa=True), (2, 6, 50, 16), (2, 2, 70, 16), (2, 3, 70, 16))
    check(attend(), (2, 5, 16), (2, 70, 16), (2, 70, 16))
    check(attend(), (2, 3, 40, 16), (1, 3, 40, 16), (1, 1, 40, 16))
    rows = torch.rand(2, 1, 40, 40) > 0.5
    rows[:, :, 3] = False
    check(attend(), *((2, 3, 40, 16),) * 3, extra=(rows,))
    check(attend(), *((2, 3, 40, 16),) * 3, extra=(torch.randn(40, 40),))
    check(attend(scale=0.3), *((2, 3, 40, 16),) * 3, extra=(torch.where(rows, 0.0, -math.inf),))


def test_sizes_of_a_call() -> None:
    linear = torch.nn.Linear(32, 96)

    def block(x: torch.Tensor) -> torch.Tensor:
        q, k, v = linear(x).view(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT) / math.sqrt(8) + torch.triu(torch.full((x.shape[1], x.shape[1]), -math.inf), 1)
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)

    compiled = isthmus.compile(block, dynamic=True)
    for batch, length in ((2, 50), (3, 101)):
        x = torch.randn(batch, length, 32, requires_grad=True)
        tangent = torch.randn(batch, length, 32)
        wanted = block(x)
        (want,) = torch.autograd.grad(wanted, x, tangent)
        got = compiled(x)
        (gradient,) = torch.autograd.grad(got, x, tangent)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-5)


def test_second_derivatives_and_examples() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return softmax_of(q, k, v, lambda s: (s * 0.2).masked_fill(~causal(), -math.inf))

    inputs = [torch.randn(1, 2, T, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    compiled = isthmus.compile(attention, options={"higher_order": True})
    found = []
    for function in (compiled, attention):
        first = torch.autograd.grad(function(*inputs).sin().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    several = [torch.randn(3, 2, T, 8) for _ in range(3)]
    mapped = torch.vmap(attention)
    torch.testing.assert_close(isthmus.compile(mapped)(*several), mapped(*several), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_computes_it_again() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT * 0.25).softmax(-1) @ v * 2.0

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(attention, q, k, v, use_reentrant=False).sin()

    inputs = [torch.randn(1, 2, 64, 16, requires_grad=True) for _ in range(3)]
    graph = isthmus.explain(function)(*inputs).graphs[0]
    assert [d.attentions for d in graph.directions] == [1, 2]


def test_nothing_of_the_size_of_scores_is_saved() -> None:
    q, k, v = (torch.randn(1, 2, 256, 16, requires_grad=True) for _ in range(3))
    saved = isthmus.explain(lambda q, k, v: (q @ k.mT * 0.25).softmax(-1) @ v)(q, k, v).graphs[0].cut
    assert saved is not None
    assert all(value.nbytes < 256 * 256 * 4 for value in saved.saved)


@pytest.mark.parametrize("heads,length", [(3, 64), (1, 230), (4, 230)])
def test_what_a_triangle_hides_is_not_lost(heads: int, length: int) -> None:
    """A weight of 0 times NaN is NaN: a softmax written out shows it in every row, and so does the kernel."""
    triangle = causal(length)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return softmax_of(q, k, v, lambda s: (s * 0.2).masked_fill(~triangle, -math.inf))

    compiled, counted = isthmus.compile(function), False
    for where in ("q nan", "k nan", "v nan", "g nan", "q inf", "k inf", "v inf"):
        mine = [torch.randn(2 if heads > 1 else 1, heads, length, 16) for _ in range(4)]
        mine["qkvg".index(where[0])][0, 0, length // 2, 3] = float(where[2:])
        found: list[list[torch.Tensor]] = []
        for f in (compiled, function):
            leaves = [x.clone().requires_grad_() for x in mine[:3]]
            y = f(*leaves)
            found.append([y, *torch.autograd.grad(y, leaves, mine[3])])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-3, atol=1e-4, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}"
            )
        counted = counted or report(function, *leaves) == (2, 2)
    assert counted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["plain", "triangle", "mask", "shared heads"])
def test_half_precision_streams(form: str, dtype: torch.dtype) -> None:
    """In float32 inside, rounded once: errors are a unit of the format, which eager's own exceed."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(T) % 3 > 0).expand(1, 1, T, T) if form == "mask" else None
        shared = form == "shared heads"
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=form == "triangle", enable_gqa=shared)

    heads = 2 if form == "shared heads" else 4
    mine = [torch.randn(2, h, T, 32).to(dtype).requires_grad_() for h in (4, heads, heads)]
    exact = [x.detach().double().requires_grad_() for x in mine]
    y, wanted = isthmus.compile(function)(*mine), function(*exact)
    tangent = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, mine, tangent)]
    truth = [wanted, *torch.autograd.grad(wanted, exact, tangent.double())]
    assert report(function, *mine) == (2, 2)
    eps = torch.finfo(dtype).eps
    for a, b in zip(found, truth, strict=True):
        assert a.dtype is dtype
        torch.testing.assert_close(a.double(), b, rtol=eps, atol=eps)
