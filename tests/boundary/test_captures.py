"""What both captures must do alike: arguments and results of every form, and what a function reads beside them."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import isthmus
from tests.boundary.harness import CAPTURES, f64


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclasses.dataclass
class Batch:
    a: Tensor
    b: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Batch
    rest: tuple[Tensor, ...]


class Mode(enum.Enum):
    A = 1
    B = 2


def keywords(x, *, y=2.0, flag=True):
    return x * y if flag else x + y


def defaults(x, y=None, z=3):
    return x * z if y is None else x * y * z


X = f64(3, 3, grad=False)
Call = tuple[tuple[object, ...], dict[str, object]]


def call(*args: object, **kwargs: object) -> Call:
    return args, kwargs


FORMS: dict[str, tuple[Callable[..., object], list[Call]]] = {
    "keywords": (keywords, [call(X), call(X, y=3.0), call(X, flag=False), call(X, y=4, flag=False), call(X, y=X)]),
    "defaults": (defaults, [call(X), call(X, 2.0), call(X, X), call(X, y=X, z=5), call(X, z=4)]),
    "any number": (
        lambda *xs, **ks: sum(xs) + sum(ks.values()),
        [call(X), call(X, X), call(X, k=X), call(X, k=X, j=X)],
    ),
    "partial": (functools.partial(keywords, y=3.0), [call(X), call(X, flag=False)]),
    "dataclass": (lambda d: Batch(d.a * d.b, d.b + 1), [call(Batch(X)), call(Batch(X, 3)), call(Batch(X * 2, 3))]),
    "dataclasses in it": (
        lambda f: Frozen(Batch(f.inner.a + f.rest[0]), (f.rest[0] * 2, f.inner.a)),
        [call(Frozen(Batch(X), (X,))), call(Frozen(Batch(X + 1), (X,)))],
    ),
    "named tuple": (lambda p: Pair(p.b, p.a * 2), [call(Pair(X, X + 1)), call(Pair(X + 2, X))]),
    "nested": (
        lambda d: {"a": d["x"][0] * 2, "b": [d["x"][1], {"c": d["y"] + 1}]},
        [call({"x": [X, X + 1], "y": X}), call({"y": X, "x": [X, X + 1]}), call({"x": (X, X + 1), "y": X})],
    ),
    "ordered": (lambda x: collections.OrderedDict(a=x * 2, b=x + 1), [call(X), call(X)]),
    "enumeration": (lambda x, m: x * 2 if m is Mode.A else x * 3, [call(X, Mode.A), call(X, Mode.B), call(X, Mode.A)]),
    "string": (lambda x, s: x * len(s), [call(X, "ab"), call(X, "abc")]),
    "none": (lambda x, n: x if n is None else x * n, [call(X, None), call(X, 2), call(X, X)]),
    "dtype": (lambda x, d: x.to(d) * 2, [call(X, torch.float32), call(X, torch.float16)]),
    "slice": (lambda x, s: x[s] * 2, [call(X, slice(0, 1)), call(X, slice(0, 2)), call(X, slice(None))]),
    "integer": (lambda x, n: (x.sum() * n, n + 1, -n), [call(X, 1), call(X, 2), call(X, 3), call(X, 7), call(X, True)]),
    "float": (lambda x, f: (x * f, f * 2, "s", None), [call(X, 1.5), call(X, 2.5), call(X, -0.0), call(X, 0.0)]),
    "complex": (lambda x, c: x * c, [call(X, 1 + 2j), call(X, 2j)]),
    "set": (lambda x, s: x * (2 if 1 in s else 3), [call(X, {1, 2}), call(X, {2}), call(X, frozenset({1}))]),
    "length": (lambda xs: tuple(x * 2 for x in xs), [call([X, X]), call((X, X)), call([X]), call([])]),
    "function": (lambda x, f: f(x), [call(X, lambda t: t * 2), call(X, lambda t: t * 3), call(X, torch.sin)]),
    "wrong": (keywords, [call(), call(X, 1), call(X, zz=1)]),
}


def agree(got: object, want: object) -> None:
    """The same types all the way down, and equal tensors."""
    assert type(got) is type(want), f"{type(got)}, in eager {type(want)}"
    if isinstance(want, Tensor):
        torch.testing.assert_close(got, want)
    elif dataclasses.is_dataclass(want):
        for field in dataclasses.fields(want):
            agree(getattr(got, field.name), getattr(want, field.name))
    elif isinstance(want, dict):
        assert list(got) == list(want)  # pyright: ignore
        for key, value in want.items():
            agree(got[key], value)  # pyright: ignore
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)  # pyright: ignore
        for g, w in zip(got, want, strict=True):  # pyright: ignore
            agree(g, w)
    else:
        assert got == want


@pytest.mark.row("D4")
@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", FORMS)
def test_arguments_and_results_of_every_form(name: str, capture: str, backend: str):
    function, calls = FORMS[name]
    compiled = isthmus.compile(function, capture=capture, backend=backend)
    for args, kwargs in calls:
        mine, theirs = (pytree.tree_map_only(Tensor, torch.clone, (args, kwargs)) for _ in range(2))
        try:
            want = function(*theirs[0], **theirs[1])
        except TypeError:
            with pytest.raises(TypeError):
                compiled(*mine[0], **mine[1])
            continue
        agree(compiled(*mine[0], **mine[1]), want)


# ---- What changes between calls


class Holder:
    """What a closure or a method may read."""

    rate = 2.0

    def __init__(self) -> None:
        self.factor, self.inner = 2.0, {"shift": 1.0, "list": [1.0, 2.0]}
        self.tensor = f64(3, 3, grad=False)

    def method(self, x: Tensor) -> Tensor:
        return x * self.factor * self.rate + self.inner["shift"] * self.inner["list"][0] + self.tensor


class Model(nn.Module):
    rate = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3).double()
        self.factor, self.settings, self.list, self.holder = 2.0, {"a": 3}, [1, 2], Holder()
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.factor * self.settings["a"] * self.list[0] * self.rate * self.holder.factor
        return self.drop(self.linear(x)) * scale + (1 if self.training else 0)


GLOBAL = {"value": 2.0, "tensor": f64(3, 3, grad=False)}
NUMBER = 2.0


def helper(x: Tensor) -> Tensor:
    return x * NUMBER


def through_a_helper(x: Tensor) -> Tensor:
    return helper(x) + GLOBAL["value"] * GLOBAL["tensor"]


def closure() -> tuple[dict[str, Any], Callable[[Tensor], Tensor]]:
    numbers, holder, cell = [2.0], Holder(), 3.0

    def set_cell(value: float) -> None:
        nonlocal cell
        cell = value

    def function(x: Tensor) -> Tensor:
        return x * numbers[0] * cell + holder.factor * holder.tensor

    return {"numbers": numbers, "holder": holder, "set": set_cell}, function


def of_module() -> tuple[Model, Model]:
    model = Model()
    return model, model


def of_method() -> tuple[Holder, Callable[[Tensor], Tensor]]:
    holder = Holder()
    return holder, holder.method


class Inner(nn.Module):
    """Reads globals two methods and a property away from what is compiled."""

    @property
    def shift(self) -> float:
        return GLOBAL["value"]

    def scaled(self, x: Tensor) -> Tensor:
        return x * NUMBER + self.shift

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x)


class Worker:
    def run(self, x: Tensor) -> Tensor:
        return self.scaled(x) + 1

    def scaled(self, x: Tensor) -> Tensor:
        return x * NUMBER


def another_number(_: object) -> None:
    globals().update(NUMBER=NUMBER + 1)


Make = Callable[[], tuple[Any, Callable[..., object]]]
CHANGES: dict[str, tuple[Make, Callable[[Any], object]]] = {
    "number of a module": (of_module, lambda m: setattr(m, "factor", 5.0)),
    "dictionary of a module": (of_module, lambda m: m.settings.update(a=7)),
    "another dictionary": (of_module, lambda m: setattr(m, "settings", {"a": 9})),
    "list of a module": (of_module, lambda m: m.list.__setitem__(0, 7)),
    "object of a module": (of_module, lambda m: setattr(m.holder, "factor", 7.0)),
    "number of its class": (of_module, lambda m: setattr(m, "rate", 7.0)),
    "parameter": (of_module, lambda m: setattr(m.linear, "weight", nn.Parameter(f64(3, 3, grad=False)))),
    "parameter's data": (of_module, lambda m: setattr(m.linear.weight, "data", f64(3, 3, grad=False))),
    "submodule": (of_module, lambda m: setattr(m, "linear", nn.Linear(3, 3).double())),
    "training": (of_module, lambda m: m.eval()),
    "forward": (of_module, lambda m: setattr(m, "forward", lambda x: x * 2)),
    "hook before": (of_module, lambda m: m.register_forward_pre_hook(lambda m, xs: (xs[0] * 2,))),
    "attribute of self": (of_method, lambda h: setattr(h, "factor", 7.0)),
    "tensor of self": (of_method, lambda h: setattr(h, "tensor", f64(3, 3, grad=False) * 2)),
    "tensor of self in place": (of_method, lambda h: h.tensor.mul_(2)),
    "dictionary of self": (of_method, lambda h: h.inner.update(shift=5.0)),
    "list in it": (of_method, lambda h: h.inner["list"].__setitem__(0, 5.0)),
    "class of self": (of_method, lambda h: setattr(h, "rate", 5.0)),
    "closure": (closure, lambda c: c["set"](7.0)),
    "list of a closure": (closure, lambda c: c["numbers"].__setitem__(0, 5.0)),
    "object of a closure": (closure, lambda c: setattr(c["holder"], "factor", 5.0)),
    "tensor in it": (closure, lambda c: setattr(c["holder"], "tensor", f64(3, 3, grad=False) * 3)),
    "global": (lambda: (None, through_a_helper), lambda _: GLOBAL.update(value=GLOBAL["value"] + 1)),
    "global tensor": (lambda: (None, through_a_helper), lambda _: GLOBAL.update(tensor=GLOBAL["tensor"] * 2)),
    "global of a helper": (lambda: (None, through_a_helper), lambda _: globals().update(NUMBER=NUMBER + 1)),
    "global of a submodule's method": (lambda: (None, nn.Sequential(Inner())), another_number),
    "global of a submodule's property": (
        lambda: (None, nn.Sequential(Inner())),
        lambda _: GLOBAL.update(value=GLOBAL["value"] + 1),
    ),
    "global of self's method": (lambda: (None, Worker().run), another_number),
    "default": (lambda: (None, keywords), lambda _: keywords.__kwdefaults__.update(y=keywords.__kwdefaults__["y"] + 1)),
}


@pytest.mark.row("D4")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_calls_is_seen(name: str, capture: str):
    make, change = CHANGES[name]
    owner, function = make()
    compiled = isthmus.compile(function, capture=capture)
    before = function(X)
    for _ in range(2):
        agree(compiled(X), before)
    change(owner)
    want = function(X)
    assert not torch.equal(want, before), "the change changes nothing"  # pyright: ignore
    for _ in range(2):
        agree(compiled(X), want)


def test_zero_and_minus_zero_are_two_numbers():
    x, held = torch.ones(3), [0.0]
    given = isthmus.compile(lambda x, s: 1 / (x * s), capture="trace")
    closed = isthmus.compile(lambda x: 1 / (x * held[0]), capture="trace")
    for held[0] in (0.0, -0.0, 0.0):
        assert torch.equal(given(x, held[0]), 1 / (x * held[0]))
        assert torch.equal(closed(x), 1 / (x * held[0]))


# ---- What lives on


def appends(xs: list[Tensor]) -> Tensor:
    xs.append(xs[0] * 2)
    return xs[-1]


def notes(d: dict[str, Tensor]) -> Tensor:
    d["z"] = d["x"] * 2
    return d["z"]


SEEN: list[Tensor] = []


def remembers(x: Tensor) -> Tensor:
    SEEN.append(x * 2)
    return x + 1


@pytest.mark.row("D15")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("function", [appends, notes, remembers])
def test_containers_that_live_on_are_written_or_the_program_is_refused(function: Callable[..., Tensor], capture: str):
    """Dynamo replays such effects; direct tracing would have them once and says so. No fake tensor stays behind."""
    SEEN.clear()
    given: dict[Callable[..., Tensor], Any] = {appends: [X.clone()], notes: {"x": X.clone()}, remembers: X.clone()}
    argument = given[function]
    compiled = isthmus.compile(function, capture=capture)
    if capture == "trace":
        with pytest.raises(isthmus.UnsupportedError, match="lives on after the call") as refused:
            compiled(argument)
        assert refused.value.cure and refused.value.location is not None
        assert len(argument) == (1 if function is not remembers else 3) and not SEEN
        return
    want = function(pytree.tree_map_only(Tensor, torch.clone, argument))
    SEEN.clear()
    agree(compiled(argument), want)
    kept = SEEN if function is remembers else pytree.tree_leaves(argument)
    assert kept and all(type(t) is Tensor for t in kept)


@pytest.mark.row("D15")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("generator", [random, numpy.random])
def test_numbers_of_pythons_are_drawn_at_every_call_or_the_program_is_refused(generator: Any, capture: str):
    def scaled(x: Tensor) -> Tensor:
        held = [x * 2, x * 2]
        held[1].view(-1).mul_(2)  # a trace looks twice at what follows
        return held[1] * generator.random()

    compiled = isthmus.compile(scaled, capture=capture)
    x = f64(3)
    generator.seed(7)
    want = [scaled(x), scaled(x), generator.random()]
    generator.seed(7)
    if capture == "trace":
        with pytest.raises(isthmus.UnsupportedError, match="every call would have the numbers of this one"):
            compiled(x)
        torch.testing.assert_close(scaled(x), want[0])  # nothing was used up
    else:
        torch.testing.assert_close([compiled(x), compiled(x), generator.random()], want)


@pytest.mark.row("D15")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_dynamo_draws_is_as_exact_as_pythons(dtype: torch.dtype):
    def scaled(x: Tensor) -> Tensor:
        return x * random.uniform(1.0, 2.0) + random.randint(1, 9) * random.gauss(0.0, 1.0)

    x = torch.ones(3, dtype=dtype)
    random.seed(7)
    want = [scaled(x) for _ in range(3)]
    random.seed(7)
    compiled = isthmus.compile(scaled, capture="dynamo")
    torch.testing.assert_close([compiled(x) for _ in range(3)], want)


OWN = f64(3, grad=False)


@pytest.mark.row("T20")
def test_a_tensor_that_was_met_twice_is_no_other_one_later():
    """Twice among the arguments, then once as an argument and once as what the function holds by itself."""
    twice = isthmus.compile(lambda a, b: a * 2 + b * 3, capture="trace")
    x, y = f64(3, grad=False), f64(3, grad=False) + 1
    for pair in ((x, x), (x, y), (y, y), (y, x)):
        torch.testing.assert_close(twice(*pair), pair[0] * 2 + pair[1] * 3)
    held = isthmus.compile(lambda a: OWN * 3 + a * 2 + a.sin() * OWN, capture="trace")
    for a in (OWN, y, OWN, x):
        torch.testing.assert_close(held(a), OWN * 3 + a * 2 + a.sin() * OWN)
