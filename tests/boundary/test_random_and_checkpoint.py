"""Recomputation: what is run again, and random numbers that are the same whenever they are."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import isthmus
from tests.boundary.harness import CAPTURES, agree, compiled_by, f64


def block(x, w):
    return torch.tanh(torch.relu(x @ w) @ w.t()).sin()


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def nothing_saved(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_RECOMPUTE


saves_mm = functools.partial(create_selective_checkpoint_contexts, policy)
saves_nothing = functools.partial(create_selective_checkpoint_contexts, nothing_saved)


PROGRAMS = {
    "plain": lambda x, w: checkpoint(block, x, w, use_reentrant=False).sum(),
    "twice": lambda x, w: checkpoint(block, checkpoint(block, x, w, use_reentrant=False), w, use_reentrant=False),
    "nested": lambda x, w: checkpoint(
        lambda a, b: checkpoint(block, a, b, use_reentrant=False) * a, x, w, use_reentrant=False
    ),
    "between": lambda x, w: (checkpoint(block, x * 2, w, use_reentrant=False) * x).exp(),
    "saves mm": lambda x, w: checkpoint(block, x, w, use_reentrant=False, context_fn=saves_mm),
    "saves nothing": lambda x, w: checkpoint(block, x, w, use_reentrant=False, context_fn=saves_nothing),
    "two outputs": lambda x, w: checkpoint(lambda a, b: (a @ b, a.sin()), x, w, use_reentrant=False),
}


@pytest.mark.row("M4", "M5")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_checkpointed_programs(name: str, capture: str):
    agree(PROGRAMS[name], f64(2, 3), f64(3, 4), capture=capture)


def dropped(x, p=0.5):
    return F.dropout(x, p)


RANDOM = {
    "dropout": lambda x: F.dropout(x * 2, 0.5) * 3,
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.3).sin(), 0.5),
    "rand": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape, dtype=x.dtype),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "checkpointed": lambda x: checkpoint(lambda t: F.dropout(t.exp(), 0.5).sin(), x, use_reentrant=False),
    "in place": lambda x: F.dropout(x * 1, 0.5, inplace=True),
    "alpha": lambda x: F.alpha_dropout(x, 0.5),
}


@pytest.mark.row("M8", "N4")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("strategy", ["min-cut", "default"])
@pytest.mark.parametrize("name", RANDOM)
def test_forward_and_backward_use_the_same_numbers(name: str, strategy: str, capture: str):
    """The gradient is that of the function that this seed gives: finite differences with the seed reset."""
    function = compiled_by(RANDOM[name], capture, "native", options={"strategy": strategy})
    leaf = (f64(4, 4, grad=False) + 2).requires_grad_()

    def seeded(x):
        torch.manual_seed(11)
        return function(x)

    (got,) = torch.autograd.grad(seeded(leaf).sum(), leaf)
    step = 1e-6
    with torch.no_grad():
        shifts = torch.eye(16, dtype=torch.float64).reshape(16, 4, 4) * step
    want = torch.stack([(seeded(leaf + s).sum() - seeded(leaf - s).sum()).detach() / (2 * step) for s in shifts])
    torch.testing.assert_close(got, want.reshape(4, 4), rtol=1e-5, atol=1e-6)


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "rows": lambda x: F.dropout(torch.softmax(x, -1), 0.3) + torch.rand_like(x),
    "transposed": lambda x: F.dropout(x, 0.3).t() * 2,
    "a part": lambda x: F.dropout(x, 0.3)[1:, ::2] * 2,
    "reversed": lambda x: torch.rand_like(x).flip(-1) * x,
    "integers": lambda x: x * torch.randint_like(x, 0, 100),
    "summed": lambda x: F.dropout(x, 0.3).sum(0) + torch.rand(x.shape[1], dtype=x.dtype).cumsum(0),
    "channels": lambda x: F.dropout1d(x[None], 0.3)[0],
}


@pytest.mark.row("M8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_kernels_draw_the_numbers_of_the_definition(name: str, dtype: torch.dtype):
    """Vectors, tails and strides of native code give the numbers of the interpreter, for static and symbolic sizes."""
    for dynamic in (False, True) if dtype is torch.float32 else (False,):
        by = {b: isthmus.compile(DRAWS[name], backend=b, dynamic=dynamic) for b in ("native", "interpret")}
        for shape in [(3, 5), (4, 7), (5, 16), (2, 17), (3, 100)] if dynamic else [(5, 17), (4, 64)]:
            x, results = torch.ones(shape, dtype=dtype), []
            for function in by.values():
                torch.manual_seed(3)
                results.append(function(x))
            drawn, defined = results
            torch.testing.assert_close(drawn, defined)
            assert torch.equal(drawn == 0, defined == 0)


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.row("M8")
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 3), (-1, 1), (-3, -2.5), (1000, 1001)])
def test_uniform_numbers_stay_below_their_bound(low: float, high: float, dtype: torch.dtype):
    def program(x):
        return x.clone().uniform_(low, high), torch.rand_like(x)

    torch.manual_seed(5)
    x = torch.zeros(1 << 18, dtype=dtype)
    (scaled, unit), (eager, _) = isthmus.compile(program, dynamic=False)(x), program(x)
    assert (
        float(scaled.min()) >= low and float(scaled.max()) < high and float(unit.min()) >= 0 and float(unit.max()) < 1
    )
    ulp = torch.finfo(dtype).eps * max(abs(low), abs(high), 1)
    assert abs(scaled.double().mean() - eager.double().mean()) < ulp / 2 + 5 * (high - low) / (12 * 2**18) ** 0.5


@pytest.mark.row("M8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.999])
def test_chances_are_as_asked_in_every_dtype(p: float, dtype: torch.dtype):
    """A uniform number of 8 bits would drop a 256th instead of a thousandth."""

    def program(x):
        chance = torch.full(x.shape, p, dtype=torch.float32)
        return F.dropout(x, p), 1 - x.clone().bernoulli_(p), 1 - x.clone().bernoulli_(chance), 1 - chance.bernoulli()

    torch.manual_seed(6)
    n = 1 << 20
    for zeros in isthmus.compile(program, dynamic=False)(torch.ones(n, dtype=dtype)):
        assert abs(float((zeros == 0).double().mean()) - p) < 5 * (p * (1 - p) / n) ** 0.5


@pytest.mark.row("N4")
@pytest.mark.parametrize("capture", CAPTURES)
def test_seeds_reproduce_and_calls_differ(capture: str):
    function = compiled_by(lambda x: F.dropout(x, 0.5), capture, "native")
    x = torch.ones(64, dtype=torch.float64)
    torch.manual_seed(1)
    first, second, state = function(x), function(x), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(function(x), first)
    assert torch.equal(function(x), second) and not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert not torch.equal(function(x), first)
    assert 8 < int((first == 0).sum()) < 56


@pytest.mark.row("N4")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_outside_draws_the_same_mask_again(reentrant: bool, capture: str):
    inner = compiled_by(lambda x: F.dropout(x.exp(), 0.5) * x, capture, "native")
    x = f64(64)
    y = checkpoint(inner, x, use_reentrant=reentrant)
    y.sum().backward()
    kept = y.detach() != 0
    assert torch.equal(x.grad != 0, kept) and 8 < int(kept.sum()) < 56
    want = (2 * x.exp() * (1 + x)).detach() * kept
    torch.testing.assert_close(x.grad, want)


@pytest.mark.row("N4")
def test_the_second_derivative_has_the_same_mask():
    function = compiled_by(lambda x: F.dropout(x**3, 0.5), "dynamo", "native")
    x = f64(32)
    y = function(x)
    kept = (y != 0).double()
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(g.detach(), (6 * x * x).detach() * kept)
    torch.testing.assert_close(h, (12 * x).detach() * kept)
