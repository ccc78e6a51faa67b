"""Every transform through conditions and loops, against torch.func of the same program in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_slices
from torch.utils import _pytree as pytree

import isthmus

F64 = torch.float64
torch.manual_seed(0)
X, U = torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64)


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.sin() * a, lambda a: a * a * 2, (x,))


def branch_in_python(x: Tensor) -> Tensor:
    return x.sin() * x if x.sum() > 0 else x * x * 2


def counted(x: Tensor) -> Tensor:
    return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * y * 0.5), (torch.tensor(0), x))[1]


def counted_in_python(x: Tensor) -> Tensor:
    for _ in range(4):
        x = x * x * 0.5
    return x


def until_large(x: Tensor) -> Tensor:
    return while_loop(
        lambda i, y: (i < 9) & ((y * y).sum() < 100), lambda i, y: (i + 1, y * 1.5 + y.sin()), (torch.tensor(0), x)
    )[1]


def until_large_in_python(x: Tensor) -> Tensor:
    for _ in range(9):
        if (x * x).sum() < 100:
            x = x * 1.5 + x.sin()
    return x


def recurrence(x: Tensor) -> tuple[Tensor, Tensor]:
    return scan(lambda c, a: (c * a + 1, (c * a).sin()), x[0], x, dim=0)


def recurrence_in_python(x: Tensor) -> tuple[Tensor, Tensor]:
    c, ys = x[0], []
    for a in x:
        ys.append((c * a).sin())
        c = c * a + 1
    return c, torch.stack(ys)


def slices(x: Tensor) -> Tensor:
    return map_slices(lambda a: a.sin() * a, x)


def loop_in_a_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    def step(c: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        y = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * a), (torch.tensor(0), c))[1]
        return y, y.sin()

    return scan(step, x[0], x, dim=0)


def loop_in_a_loop_in_python(x: Tensor) -> tuple[Tensor, Tensor]:
    c, ys = x[0], []
    for a in x:
        c = c * a * a * a
        ys.append(c.sin())
    return c, torch.stack(ys)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cond": (branch, branch_in_python),
    "counted while": (counted, counted_in_python),
    "while of data": (until_large, until_large_in_python),
    "scan": (recurrence, recurrence_in_python),
    "map": (slices, lambda x: x.sin() * x),
    "while in scan": (loop_in_a_loop, loop_in_a_loop_in_python),
}


def squares(f: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: sum((t**2).sum() for t in pytree.tree_leaves(f(x)))


TRANSFORMS: dict[str, Callable[[Any, Callable[..., Any]], Callable[..., Any]]] = {
    "value": lambda m, f: lambda x, u: f(x),
    "jvp": lambda m, f: lambda x, u: m.jvp(f, (x,), (u,)),
    "jacfwd": lambda m, f: lambda x, u: m.jacfwd(f)(x),
    "jacrev": lambda m, f: lambda x, u: m.jacrev(f)(x),
    "grad": lambda m, f: lambda x, u: m.grad(squares(f))(x),
    "jvp of grad": lambda m, f: lambda x, u: m.jvp(m.grad(squares(f)), (x,), (u,)),
}


def close(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_transforms(name: str, transform: str) -> None:
    ours, plain = PROGRAMS[name]
    compiled = isthmus.compile(TRANSFORMS[transform](isthmus, ours), capture="trace")
    close(compiled(X, U), TRANSFORMS[transform](torch.func, plain)(X, U))
    assert isthmus.last_call_native()


@pytest.mark.parametrize("inside", [False, True], ids=["gradient of vmap", "vmap of gradient"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_that_go_different_ways(name: str, inside: bool) -> None:
    ours, plain = PROGRAMS[name]
    many = torch.stack([X, X * 0.5, -X])
    wanted = torch.stack([torch.func.grad(squares(plain))(x) for x in many])
    if inside:
        found = isthmus.vmap(isthmus.grad(squares(ours)))(many)
    else:
        found = isthmus.grad(lambda x: isthmus.vmap(squares(ours))(x).sum())(many)
    close(found, wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_under_dynamo_the_transform_is_a_program_of_its_own(name: str) -> None:
    """Dynamo cannot trace a condition inside of a transform: the transform stands between two graphs, natively."""
    ours, plain = PROGRAMS[name]
    torch._dynamo.reset()
    function = lambda x: isthmus.grad(squares(ours))(x) + 1  # noqa: E731
    close(isthmus.compile(function)(X), torch.func.grad(squares(plain))(X) + 1)
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        isthmus.compile(function, fullgraph=True)(X)
    assert "capture='trace'" in "".join(caught.value.__notes__)


def test_a_loop_in_a_scan_is_captured_by_dynamo() -> None:
    torch._dynamo.reset()
    close(isthmus.compile(loop_in_a_loop, fullgraph=True)(X), loop_in_a_loop_in_python(X))
