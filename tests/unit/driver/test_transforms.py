"""The transforms of functions, against torch.func in float64."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import isthmus

F64 = torch.float64


def _close(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def _loss(x: Tensor) -> Tensor:
    return (torch.sin(x) * x).sum() ** 2


@pytest.mark.parametrize(
    ("function", "second"),
    [
        (lambda t: t * torch.exp(t), 327.5889),
        (lambda t: t**2 + torch.sqrt(t), 1.96875),
        (lambda t: torch.sin(t) * torch.tanh(t), 0.75657),
    ],
)
def test_nested_gradients(function: Callable[[Tensor], Tensor], second: float) -> None:
    t = torch.tensor(4.0, dtype=F64)
    ours, theirs = function, function
    for order in range(1, 4):
        ours, theirs = isthmus.grad(ours), torch.func.grad(theirs)
        _close(ours(t), theirs(t))
        if order == 2:
            assert abs(ours(t).item() - second) < 1e-4


def test_a_closure_is_constant_to_the_inner_gradient() -> None:
    t = torch.tensor(4.0, dtype=F64)
    _close(isthmus.grad(lambda x: x * isthmus.grad(lambda y: y * x)(x))(t), 2 * t)


def test_argnums_aux_and_structures() -> None:
    a, b = torch.randn(3, dtype=F64), {"w": torch.randn(3, dtype=F64), "v": (torch.randn(3, dtype=F64),)}

    def f(a: Tensor, b: dict[str, object], scale: float) -> tuple[Tensor, Tensor]:
        w, (v,) = b["w"], b["v"]
        return (a * w.sin() * v * scale).sum(), a * 2

    _close(isthmus.grad(f, (0, 1), True)(a, b, 3.0), torch.func.grad(f, (0, 1), True)(a, b, 3.0))
    (value, aux), gradient = isthmus.value_and_grad(f, -2, has_aux=True)(a, b, 3.0)
    _close(gradient, torch.func.grad(f, 1, True)(a, b, 3.0)[0])
    _close((value, aux), f(a, b, 3.0))


def test_vjp_and_jvp() -> None:
    x, u = torch.randn(3, dtype=F64), torch.randn(3, dtype=F64)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(x) * x.exp() * y, y.sum()

    out, pull = isthmus.vjp(f, x, u)
    wanted, theirs = torch.func.vjp(f, x, u)
    _close(out, wanted)
    cotangent = (x * 2, torch.tensor(3.0, dtype=F64))
    _close(pull(cotangent), theirs(cotangent))
    _close(isthmus.jvp(f, (x, u), (u, x)), torch.func.jvp(f, (x, u), (u, x)))
    _close(
        isthmus.jvp(isthmus.grad(_loss), (x,), (u,)),
        torch.func.jvp(torch.func.grad(_loss), (x,), (u,)),
    )


def test_results_have_a_history() -> None:
    x = torch.randn(3, dtype=F64, requires_grad=True)
    ours, theirs = (torch.autograd.grad(g(_loss)(x).sum(), x) for g in (isthmus.grad, torch.func.grad))
    _close(ours, theirs)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_inside_a_compiled_function(capture: str) -> None:
    x = torch.randn(3, dtype=F64)
    compiled = isthmus.compile(lambda x: isthmus.grad(_loss)(x) * 2, capture=capture)
    _close(compiled(x), 2 * torch.func.grad(_loss)(x))


def test_errors_name_the_cure() -> None:
    x = torch.randn(3)
    with pytest.raises(TypeError, match=r"one real number.*sum it, or use isthmus\.vjp"):
        isthmus.grad(torch.sin)(x)
    with pytest.raises(TypeError, match="only float and complex tensors"):
        isthmus.grad(lambda i: i.sum())(torch.arange(3))
    with pytest.raises(ValueError, match="out of range"):
        isthmus.grad(_loss, 1)(x)
    with pytest.raises(ValueError, match="like the output"):
        isthmus.vjp(torch.sin, x)[1](torch.ones(2))
    with pytest.raises(TypeError, match="has_aux=True needs"):
        isthmus.grad(_loss, has_aux=True)(x)


def test_functions_made_anew_at_each_step_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.transforms.MOST_KEPT", 2)
    monkeypatch.setattr("isthmus.transforms._KEPT", OrderedDict())
    x, made = torch.ones(3, dtype=F64), list[weakref.ref[Callable[..., object]]]()
    for _ in range(4):
        function: Callable[[Tensor], Tensor] = lambda x: x.sin()  # noqa: E731
        made.append(weakref.ref(function))
        _close(isthmus.jvp(function, (x,), (x,))[1], x.cos())
        del function
    gc.collect()
    assert [f() is None for f in made] == [True, True, False, False]
