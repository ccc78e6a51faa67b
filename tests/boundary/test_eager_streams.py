"""`fallback_random`: torch's own random kernels, so that a seed gives eager's numbers, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import isthmus
from tests.boundary.harness import CAPTURES, compiled_by, f64

OPTIONS = {"fallback_random": True}


def drawn(name: str, *args: object):
    """The input times fresh numbers of an in-place operator."""
    return lambda x: getattr(x.detach().clone(), name)(*args) * x


PROGRAMS = {
    "dropout": lambda x: F.dropout(x, 0.3) * 2,
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.3).sin(), 0.5),
    "in place": lambda x: F.dropout(x * 1, 0.5, inplace=True),
    "all dropped": lambda x: F.dropout(x, 1.0) + F.dropout(x, 0.4),
    "a part": lambda x: F.dropout(x[:, ::2], 0.3) * 2,
    "channels": lambda x: F.dropout1d(x[None], 0.3)[0],
    "alpha": lambda x: F.alpha_dropout(x, 0.3),
    "feature alpha": lambda x: F.feature_alpha_dropout(x[None], 0.3)[0],
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rand": lambda x: x * torch.rand(x.shape, dtype=x.dtype),
    "rand of a transpose": lambda x: torch.rand_like((x * 2).t()) * x.t(),
    "randn": lambda x: x * torch.randn(x.shape, dtype=x.dtype) + torch.randn_like(x),
    "normal": lambda x: torch.normal(x.detach(), 1.0) * x,
    "normal_": drawn("normal_"),
    "uniform_": drawn("uniform_", 2, 3),
    "exponential_": drawn("exponential_", 2),
    "cauchy_": drawn("cauchy_"),
    "log_normal_": drawn("log_normal_"),
    "geometric_": drawn("geometric_", 0.3),
    "random_": drawn("random_", 0, 10),
    "bernoulli_": drawn("bernoulli_", 0.3),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "randint": lambda x: x * torch.randint(0, 10, x.shape) + torch.randint_like(x, 10),
    "randperm": lambda x: x[torch.randperm(x.shape[0])] * 2,
    "multinomial": lambda x: x.flatten()[torch.multinomial(x.detach().abs().flatten(), 4)],
    "with replacement": lambda x: x.flatten()[torch.multinomial(x.detach().abs().flatten(), 40, replacement=True)],
    "poisson": lambda x: x * torch.poisson(x.detach().abs() * 3),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True) * x,
    "gamma": lambda x: torch._standard_gamma(x.abs()),
    "checkpointed": lambda x: checkpoint(lambda t: F.dropout(t.exp(), 0.5).sin(), x, use_reentrant=False),
    "several": lambda x: F.dropout(x, 0.5) + torch.rand_like(x) * F.dropout(x * x, 0.1) + torch.randn(6, 1),
}


def seeded(function, x, g=None):
    """Result, gradient and the generator's state after both."""
    torch.manual_seed(7)
    y = function(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient, torch.get_rng_state()


@pytest.mark.row("M8", "N4")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_streams_are_eagers(name: str, capture: str):
    if (name, capture) == ("random_", "dynamo"):
        pytest.skip("Dynamo does not capture random_")
    function = compiled_by(PROGRAMS[name], capture, "native", options=OPTIONS, fullgraph=True)
    x = f64(6, 8)
    for got, want in zip(seeded(function, x), seeded(PROGRAMS[name], x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.row("M8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["dropout", "channels", "alpha", "rrelu", "rand", "randn", "uniform_", "bernoulli"])
def test_streams_are_eagers_in_other_dtypes(name: str, dtype: torch.dtype):
    function = isthmus.compile(PROGRAMS[name], fullgraph=True, options=OPTIONS)
    x = f64(6, 8, grad=False).to(dtype).requires_grad_()
    if (name, dtype) == ("rrelu", torch.float16):
        with pytest.raises(NotImplementedError):
            PROGRAMS[name](x)
        with pytest.raises(NotImplementedError):
            function(x)
        return
    for got, want in zip(seeded(function, x), seeded(PROGRAMS[name], x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.row("M8")
def test_layers_with_dropout_between_them():
    lstm = torch.nn.LSTM(4, 5, num_layers=2, dropout=0.5)
    x = f64(3, 2, 4, grad=False).float().requires_grad_()
    function = isthmus.compile(lambda x: lstm(x)[0], fullgraph=True, options=OPTIONS)
    for got, want in zip(seeded(function, x), seeded(lambda x: lstm(x)[0], x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.row("M8")
@pytest.mark.parametrize("capture", CAPTURES)
def test_random_slopes_are_drawn_in_kernels_too(capture: str):
    """Without the option rrelu is compiled: slopes in their range, the gradient that of the slopes drawn."""
    function = compiled_by(lambda x: F.rrelu(x, 0.1, 0.3, training=True), capture, "native", fullgraph=True)
    x = (torch.rand(1000, dtype=torch.float64) - 0.5).requires_grad_()
    y = function(x)
    assert isthmus.last_call_native()
    (g,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y.detach(), (x * g).detach())
    below = g[x < 0]
    assert torch.equal(g[x > 0], torch.ones_like(g[x > 0])) and 0.1 <= below.min() and below.max() <= 0.3
    assert abs(below.mean() - 0.2) < 0.02 and below.std() > 0.04
