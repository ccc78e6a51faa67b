"""Transforms inside a compiled function are part of its one graph: isthmus's own and torch.func's, by both captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isthmus

F64 = torch.float64
torch.manual_seed(0)
X, W = torch.randn(5, 3, dtype=F64), torch.randn(3, 4, dtype=F64)
W1, W2 = torch.randn(4, 3, dtype=F64), torch.randn(1, 4, dtype=F64)
Y = torch.randn(5, dtype=F64)
P = {"a": torch.randn(3, 4, dtype=F64), "b": torch.randn(4, dtype=F64)}
CNN = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)).double()
WEIGHTS = {k: v.detach() for k, v in CNN.named_parameters()}
IMAGES, LABELS = torch.randn(4, 1, 6, 6, dtype=F64), torch.tensor([0, 1, 1, 0])


def mlp(x: Tensor) -> Tensor:
    return (W2 @ torch.tanh(W1 @ x)).sum()


def layer(x: Tensor) -> Tensor:
    return torch.sin(x) @ W


def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return ((torch.tanh(x @ p["a"]) @ p["b"] - y) ** 2).mean()


def cnn_loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
    out = torch.func.functional_call(CNN, weights, (image[None],))
    return nn.functional.cross_entropy(out, label[None])


def value_and_grad(m: Any, f: Callable[..., Tensor]) -> Callable[..., object]:
    return m.value_and_grad(f) if hasattr(m, "value_and_grad") else lambda *a: m.grad_and_value(f)(*a)[::-1]


def pulled(m: Any, x: Tensor, u: Tensor) -> object:
    out, pull = m.vjp(layer, x)
    return out, pull(u)


CASES: dict[str, tuple[Callable[[Any], Callable[..., object]], Sequence[object]]] = {
    "grad": (lambda m: lambda x: m.grad(mlp)(x), (X[0],)),
    "value_and_grad": (lambda m: lambda x: value_and_grad(m, mlp)(x), (X[0],)),
    "vjp": (lambda m: lambda x, u: pulled(m, x, u), (X[0], W[0])),
    "jvp": (lambda m: lambda x, u: m.jvp(layer, (x,), (u,)), (X[0], X[1])),
    "jacrev": (lambda m: lambda x: m.jacrev(layer)(x), (X[0],)),
    "jacrev in chunks": (lambda m: lambda x: m.jacrev(layer, chunk_size=3)(x), (X[0],)),
    "jacfwd": (lambda m: lambda x: m.jacfwd(layer)(x), (X[0],)),
    "hessian": (lambda m: lambda x: m.hessian(mlp)(x), (X[0],)),
    "vmap": (lambda m: lambda x: m.vmap(mlp)(x), (X,)),
    "vmap in chunks": (lambda m: lambda x: m.vmap(mlp, chunk_size=2)(x), (X,)),
    "vmap of vmap": (lambda m: lambda x: m.vmap(m.vmap(torch.sin), 1, 1)(x), (X,)),
    "vmap of grad": (lambda m: lambda x: m.vmap(m.grad(mlp))(x), (X,)),
    "vmap of jacrev": (lambda m: lambda x: m.vmap(m.jacrev(layer))(x), (X,)),
    "grad of vmap": (lambda m: lambda x: m.grad(lambda x: (m.vmap(mlp)(x) ** 2).sum())(x), (X,)),
    "grad of grad": (lambda m: lambda x: m.grad(lambda x: (m.grad(mlp)(x) ** 2).sum())(x), (X[0],)),
    "jvp of jvp": (
        lambda m: lambda x, u: m.jvp(lambda y: m.jvp(layer, (y,), (u,))[1], (x,), (u,)),
        (X[0], X[1]),
    ),
    "jvp of grad": (lambda m: lambda x, u: m.jvp(m.grad(mlp), (x,), (u,)), (X[0], X[1])),
    "grad of jvp": (lambda m: lambda x, u: m.grad(lambda x: m.jvp(mlp, (x,), (u,))[1])(x), (X[0], X[1])),
    "jvp of vmap": (lambda m: lambda x: m.jvp(m.vmap(mlp), (x,), (x * 2,)), (X,)),
    "jacrev of vmap": (lambda m: lambda x: m.jacrev(m.vmap(mlp))(x), (X,)),
    "per-sample gradients of an MLP": (
        lambda m: lambda p, x, y: m.vmap(m.grad(loss), (None, 0, 0))(p, x, y),
        (P, X, Y),
    ),
    "per-sample gradients of a CNN": (
        lambda m: lambda p, x, y: m.vmap(m.grad(cnn_loss), (None, 0, 0))(p, x, y),
        (WEIGHTS, IMAGES, LABELS),
    ),
}


def close(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def leaves(arguments: Sequence[object]) -> list[Any]:
    variable = lambda t: t.detach().clone().requires_grad_() if t.is_floating_point() else t  # noqa: E731
    return [torch.utils._pytree.tree_map(variable, a) for a in arguments]


def gradients(outputs: object, arguments: Sequence[object]) -> tuple[Tensor | None, ...]:
    """Of a weighted sum of all outputs."""
    flat = [t for t in torch.utils._pytree.tree_leaves(outputs) if t.requires_grad]
    total = sum((torch.cos(torch.arange(t.numel(), dtype=F64)) * t.flatten()).sum() for t in flat)
    wanted = [t for t in torch.utils._pytree.tree_leaves(arguments) if t.requires_grad]
    return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("module", [isthmus, torch.func], ids=["isthmus", "torch.func"])
@pytest.mark.parametrize("name", CASES)
def test_one_graph(name: str, module: Any, capture: str) -> None:
    make, arguments = CASES[name]
    torch._dynamo.reset()
    compiled = isthmus.compile(make(module), fullgraph=True, capture=capture)
    mine, theirs = leaves(arguments), leaves(arguments)
    found, wanted = compiled(*mine), make(torch.func)(*theirs)
    assert isthmus.last_call_native()
    close(found, wanted)
    close(gradients(found, mine), gradients(wanted, theirs))


def test_vmap_of_a_hessian() -> None:
    """torch.func's own is refused by Dynamo."""
    torch._dynamo.reset()
    compiled = isthmus.compile(lambda x: isthmus.vmap(isthmus.hessian(mlp))(x), fullgraph=True)
    close(compiled(X), torch.func.vmap(torch.func.hessian(mlp))(X))
    if torch.__version__ < "2.12":
        return  # Dynamo cannot trace a Jacobian by several arguments there
    pair = lambda x, y: (x * y.sin()).sum() * x  # noqa: E731
    both = isthmus.compile(lambda x, y: isthmus.hessian(pair, (0, 1))(x, y), fullgraph=True)
    close(both(X[0], X[1]), torch.func.hessian(pair, (0, 1))(X[0], X[1]))


@pytest.mark.parametrize("transform", [isthmus.grad, isthmus.vmap, isthmus.jacrev, isthmus.hessian])
def test_made_outside_used_inside(transform: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    g = transform(lambda x: (torch.sin(x) * x).sum())
    theirs = getattr(torch.func, transform.__name__)(lambda x: (torch.sin(x) * x).sum())
    argument = X if transform is isthmus.vmap else X[0]
    close(isthmus.compile(lambda x: g(x) * 2, fullgraph=True)(argument), theirs(argument) * 2)


def test_what_a_function_reads_is_guarded() -> None:
    torch._dynamo.reset()
    factor = 2.0
    compiled = isthmus.compile(lambda x: isthmus.grad(lambda y: (y * factor).sum())(x), fullgraph=True)
    close(compiled(X[0]), torch.full((3,), 2.0, dtype=F64))
    factor = 3.0
    close(compiled(X[0]), torch.full((3,), 3.0, dtype=F64))
