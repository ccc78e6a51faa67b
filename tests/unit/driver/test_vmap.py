"""vmap, Jacobians and Hessians, alone and composed, against torch.func in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus

F64 = torch.float64
torch.manual_seed(0)
X, W = torch.randn(5, 3, dtype=F64), torch.randn(3, 4, dtype=F64)
W1, W2 = torch.randn(4, 3, dtype=F64), torch.randn(1, 4, dtype=F64)
Y = torch.randn(5, dtype=F64)
P = {"a": torch.randn(3, 4, dtype=F64), "b": torch.randn(4, dtype=F64)}
I = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [2, 1]])  # noqa: E741


def _mlp(x: Tensor) -> Tensor:
    return (W2 @ torch.tanh(W1 @ x)).sum()


def _loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return ((torch.tanh(x @ p["a"]) @ p["b"] - y) ** 2).mean()


def _convolved(image: Tensor, weight: Tensor) -> Tensor:
    return (torch.nn.functional.conv1d(image, weight) ** 3).sum()


CASES: dict[str, Callable[[Any], object]] = {
    "elementwise": lambda m: m.vmap(torch.sin)(X),
    "matmul with a closure": lambda m: m.vmap(lambda a: a @ W)(X),
    "in_dims": lambda m: m.vmap(lambda a, b: (a * b).sum(), (0, None))(X, X[0]),
    "out_dims": lambda m: m.vmap(lambda a: (a * 2, a.sum()), 1, (1, 0))(X),
    "vmap of vmap": lambda m: m.vmap(m.vmap(lambda a, b: a * b, (0, None)), (None, 0))(X[0], X[:, 0]),
    "per-sample gradients": lambda m: m.vmap(m.grad(_loss), (None, 0, 0))(P, X, Y),
    "gradient of vmap": lambda m: m.grad(lambda x: (m.vmap(_mlp)(x) ** 2).sum())(X),
    "gradient of vmap of gradient": lambda m: m.grad(lambda x: (m.vmap(m.grad(_mlp))(x) ** 2).sum())(X),
    "jvp of vmap": lambda m: m.jvp(m.vmap(_mlp), (X,), (X * 2,)),
    "detach in the body": lambda m: m.vmap(m.grad(lambda a: (a * a.detach()).sum()))(X),
    "gather": lambda m: m.vmap(lambda a, i: a[i])(X, I),
    "scatter": lambda m: m.vmap(m.grad(lambda a, i: (a[i] ** 2).sum()))(X, I),
    "cumulative": lambda m: m.vmap(lambda a: a.cumsum(0))(X),
    "sort": lambda m: m.vmap(lambda a: a.sort()[0])(X),
    "softmax": lambda m: m.vmap(lambda a: torch.softmax(a, 0))(X),
    "in_dims of trees": lambda m: m.vmap(lambda d, n: d["a"] @ n[0] + d["b"], ({"a": 1, "b": None}, (-1, None)))(
        {"a": torch.stack([P["a"]] * 2, 1) * 2, "b": X[:3, 0]}, (torch.stack([P["b"], P["b"] * 2], -1), 3)
    ),
    "out_dims of trees": lambda m: m.vmap(
        lambda a: {"x": (a[:, None] * a, a), "y": a.sum()}, out_dims={"x": -1, "y": 0}
    )(X),
    "a result that is the same for all": lambda m: m.vmap(lambda a, w: (a * 2, w.sin()), (0, None), (0, None))(X, W),
    "keywords are seen whole": lambda m: m.vmap(lambda a, w: a @ w)(X, w=W),
    "examples and results from outside": lambda m: m.vmap(lambda a, b: (W, a * b), (0, None))(
        X, m.vmap(torch.sin)(X[0])
    ),
    "no examples": lambda m: m.vmap(lambda a: (a * 2, a.sum()))(X[:0]),
    "chunks": lambda m: m.vmap(lambda a, w: torch.tanh(a @ w), (0, None), 1, chunk_size=2)(X, W),
    "chunks that divide": lambda m: m.vmap(m.grad(_mlp), chunk_size=1)(X),
    "Jacobian in chunks": lambda m: m.jacrev(lambda a: torch.sin(a) @ W, chunk_size=3)(X[0]),
    "a library call": lambda m: m.vmap(m.grad(lambda a: torch.linalg.inv(a.outer(a) + torch.eye(3)).sum()))(X),
    "convolutions with filters of their own": lambda m: m.vmap(m.grad(_convolved, (0, 1)))(
        X.reshape(5, 1, 1, 3), W.reshape(4, 3)[:, :2].repeat(2, 1)[:5].reshape(5, 1, 1, 2)
    ),
    "jacrev": lambda m: m.jacrev(lambda a, b: (torch.sin(a) @ b, a.sum() * b), (0, 1))(X[0], W),
    "jacfwd": lambda m: m.jacfwd(lambda a, b: (torch.sin(a) @ b, a.sum() * b), (0, 1))(X[0], W),
    "Hessian of an MLP": lambda m: m.hessian(_loss)(P, X, Y),
    "vmap of a Hessian": lambda m: m.vmap(m.hessian(_mlp))(X),
}


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    case = CASES[name]
    torch.testing.assert_close(case(isthmus), case(torch.func), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_inside_a_compiled_function(capture: str) -> None:
    compiled = isthmus.compile(lambda x: isthmus.vmap(isthmus.grad(_mlp))(x) + 1, capture=capture)
    torch.testing.assert_close(compiled(X), torch.func.vmap(torch.func.grad(_mlp))(X) + 1)


def test_random_numbers() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand(3, dtype=F64)

    with pytest.raises(isthmus.UnsupportedError, match="randomness='different'"):
        isthmus.vmap(noisy)(X)
    same = isthmus.vmap(noisy, randomness="same")(X) - X
    different = isthmus.vmap(noisy, randomness="different")(X) - X
    torch.testing.assert_close(same, same[:1].expand(5, 3))
    assert different.unique().numel() == 15


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_random_numbers_as_torch_means_it(capture: str) -> None:
    """In graphs, with chunks and nested: "same" is one draw for all examples, "different" one for each."""

    def drawn(**settings: Any) -> Tensor:
        torch._dynamo.reset()
        dropped = lambda x: torch.nn.functional.dropout(x, 0.5)  # noqa: E731
        return isthmus.compile(isthmus.vmap(dropped, **settings), capture=capture)(torch.ones(7, 64))

    for chunk in (None, 3):
        same = drawn(randomness="same", chunk_size=chunk)
        assert (same == same[0]).all() and len(same[0].unique()) == 2
        assert len(drawn(randomness="different", chunk_size=chunk).unique(dim=0)) == 7
    inner = isthmus.vmap(lambda x: x + torch.rand(()), randomness="different")
    nested = isthmus.compile(isthmus.vmap(inner, randomness="different"), capture=capture)(torch.zeros(3, 4))
    assert nested.unique().numel() == 12


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_draws_from_torchs_own_stream(randomness: str) -> None:
    mapped = isthmus.vmap(
        lambda x: torch.poisson(x.detach() * 0 + 40.0) if randomness != "same" else x, randomness=randomness
    )
    if randomness == "error":
        with pytest.raises(isthmus.UnsupportedError, match="draws random numbers"):
            mapped(X)
    else:
        assert mapped(X).shape == X.shape


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_a_number_of_examples_that_is_not_known(capture: str) -> None:
    torch._dynamo.reset()
    function = lambda x: isthmus.vmap(isthmus.grad(_mlp), chunk_size=2 if capture == "trace" else None)(x)  # noqa: E731
    compiled = isthmus.compile(function, dynamic=True, capture=capture, fullgraph=True)
    for count in (5, 2, 7, 1, 0):
        x = torch.randn(count, 3, dtype=F64)
        torch.testing.assert_close(compiled(x), torch.func.vmap(torch.func.grad(_mlp))(x), rtol=1e-10, atol=1e-12)
        assert isthmus.last_call_native()


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_function_may_write_its_examples(capture: str, dim: int) -> None:
    def written(m: Any, x: Tensor) -> Tensor:
        y = x * 1
        first = m.vmap(lambda a: a.mul_(2)[:2].sin_(), dim)(y)
        return first.sum() * y

    torch._dynamo.reset()
    mine, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    found = isthmus.compile(lambda x: written(isthmus, x), capture=capture, fullgraph=True)(mine)
    wanted = written(torch.func, theirs)
    torch.testing.assert_close(found, wanted)
    for y in (found, wanted):
        (y * Y[:, None]).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    argument = X.clone()
    isthmus.compile(lambda x: isthmus.vmap(lambda a: a.add_(1), dim)(x), capture=capture)(argument)
    torch.testing.assert_close(argument, X + 1)
    with pytest.raises(isthmus.UnsupportedError, match="all examples share"):
        isthmus.compile(lambda x: isthmus.vmap(lambda a: Y.add_(a[0]))(x), capture="trace")(X)


def test_explain_lists_what_is_looped() -> None:
    report = isthmus.explain(isthmus.vmap(lambda a: torch.histc(a, 4, -1.0, 1.0)), capture="trace")(X)
    assert "looped over examples: histc.default, torch has no batched form of this library call" in str(report)
    assert not isthmus.explain(isthmus.vmap(_mlp), capture="trace")(X).graphs[0].looped


def test_a_pull_from_outside_of_the_mapped_function() -> None:
    def rows(m: Any) -> object:
        _, pull = m.vjp(lambda a: torch.sin(a) @ W, X[0])
        return m.vmap(pull)(torch.eye(4, dtype=F64))

    found = isthmus.compile(lambda: rows(isthmus), capture="trace")()
    torch.testing.assert_close(found, rows(torch.func))


def test_errors_name_the_cure() -> None:
    with pytest.raises(ValueError, match="names dimension 2"):
        isthmus.vmap(torch.sin, 2)(X)
    with pytest.raises(ValueError, match="at least one entry of in_dims"):
        isthmus.vmap(torch.sin, None)(X)
    with pytest.raises(ValueError, match="does not fit the arguments"):
        isthmus.vmap(torch.sin, (0, 0))(X)
    with pytest.raises(ValueError, match="must have one size"):
        isthmus.vmap(torch.add)(X, Y[:3])
    with pytest.raises(ValueError, match="the same for all examples"):
        isthmus.vmap(torch.sin, out_dims=None)(X)
    with pytest.raises(ValueError, match="names dimension 2"):
        isthmus.vmap(torch.sin, out_dims=2)(X)
    with pytest.raises(ValueError, match="chunk_size=0"):
        isthmus.vmap(torch.sin, chunk_size=0)
    with pytest.raises(ValueError, match="must return tensors"):
        isthmus.vmap(lambda a: 3)(X)
