"""A trace sees that what it read beside its arguments has changed, through whatever it was reached."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.diagnostics import UnsupportedError
from tests.boundary.harness import f64

FACTOR = {0: 1.0}
X = f64(3, 3, grad=False)


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR[0]


class OfAClass:
    factor = 1.0
    seen: ClassVar[list[int]] = []

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x * FACTOR[0]

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x * FACTOR[0] * cls.factor

    @classmethod
    def noting(cls, x: Tensor) -> Tensor:
        cls.seen.append(1)
        return x


class Made:
    def __init__(self) -> None:
        self.factor = FACTOR[0]

    def __getitem__(self, x: Tensor) -> Tensor:
        return x * self.factor * FACTOR[0]


class Rule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * FACTOR[0]

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * FACTOR[0]


class Holder:
    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function


@isthmus.custom_vjp
def own_rule(x: Tensor) -> Tensor:
    return scaled(x)


own_rule.defvjp(lambda x: (own_rule(x), None), lambda residual, g: (g * FACTOR[0],))
MADE = Made()

REACHED = {
    "static method": lambda x: OfAClass.static(x),
    "class method": lambda x: OfAClass.of_class(x),
    "an object that is made": lambda x: x * Made().factor,
    "an operator": lambda x: MADE[x],
    "autograd.Function": lambda x: Rule.apply(x),
    "compiled": isthmus.compile(scaled, capture="trace"),
    "compiled method": isthmus.compile(Holder(scaled).function, capture="trace"),
    "vmap": isthmus.vmap(scaled),
    "twice": isthmus.vmap(isthmus.vmap(scaled)),
    "grad": isthmus.grad(lambda x: scaled(x).sum()),
    "custom_vjp": own_rule,
    "partial": functools.partial(scaled),
    "torch's vmap": torch.func.vmap(scaled),
    "torch.compile": torch.compile(scaled, backend="eager"),
}


@pytest.mark.parametrize("name", REACHED)
def test_a_change_behind_what_is_called_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = REACHED[name]
    compiled = isthmus.compile(lambda x: function(x), capture="trace")
    for factor in (1.0, 7.0):
        monkeypatch.setitem(FACTOR, 0, factor)
        torch.testing.assert_close(compiled(X), function(X))


def test_attributes_of_a_class_are_seen_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = isthmus.compile(lambda x: OfAClass.of_class(x), capture="trace")
    for factor in (1.0, 3.0):
        monkeypatch.setattr(OfAClass, "factor", factor)
        torch.testing.assert_close(compiled(X), X * factor)
    with pytest.raises(UnsupportedError, match=r"OfAClass\.seen has 1 entries, had 0"):
        isthmus.compile(lambda x: OfAClass.noting(x), capture="trace")(X)
    assert not OfAClass.seen


def test_a_traced_method_belongs_to_its_object() -> None:
    class Layer:
        def __init__(self, weight: Tensor) -> None:
            self.weight = weight

        @isthmus.compile(capture="trace")
        def __call__(self, x: Tensor) -> Tensor:
            """Weighted."""
            return x @ self.weight

        @staticmethod
        @isthmus.compile(capture="trace")
        def apart(x: Tensor) -> Tensor:
            return x + 1

    first, second = Layer(X), Layer(X + 1)
    for layer in (first, second, first):
        torch.testing.assert_close(layer(X), X @ layer.weight)
    first.weight = X * 2
    torch.testing.assert_close(first(X), X @ X * 2)
    torch.testing.assert_close(Layer.apart(X), X + 1)
    assert Layer.__call__.__doc__ == "Weighted." and Layer.__call__.__name__ == "__call__"
