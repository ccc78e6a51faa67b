"""Exceptions of the user's code and of eager keep their type."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import isthmus
from isthmus.diagnostics import UnsupportedError
from tests.boundary.harness import CAPTURES, compiled_by, f64


class Own(Exception):
    pass


def raises(kind):
    def f(x):
        y = x * 2
        if x.shape[0] == 3:
            raise kind("from the user")
        return y

    return f


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("kind", [ValueError, KeyError, Own, AssertionError])
def test_exceptions_of_user_code_keep_their_type(kind, capture: str):
    compiled = compiled_by(raises(kind), capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    with pytest.raises(kind, match="from the user"):
        compiled(f64(3))
    torch.testing.assert_close(compiled(f64(2)), f64(2) * 2)
    with pytest.raises(kind, match="from the user"):
        compiled(f64(3))


REFUSED = {
    "shapes": lambda x: x @ x,
    "index": lambda x: x[5],
    "dim": lambda x: x.sum(4),
    "view": lambda x: x.view(7),
    "gather": lambda x: x.gather(0, torch.full((1, 1), 9)),
    "cat": lambda x: torch.cat([x, x.t()]),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_by_its_exception(name: str, capture: str):
    f = REFUSED[name]
    with pytest.raises(Exception) as eager:
        f(f64(2, 3))
    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    with pytest.raises(eager.type):
        compiled(f64(2, 3))


def own_error(x, seen, module):
    x.add_(1)
    seen.append(x)
    module(x)
    raise Own("from the user")


def shapes_that_do_not_fit(x, seen, module):
    seen.append(x.mul_(2))
    return module(x) @ x


@pytest.mark.parametrize("function", [own_error, shapes_that_do_not_fit])
def test_what_a_traced_program_does_before_it_raises_is_done_once(function):
    x, seen, module = f64(2, 3, grad=False), [], nn.BatchNorm1d(3, dtype=torch.float64)
    compiled = compiled_by(lambda x: function(x, seen, module), "trace", "native")
    y, also_seen, other = x.clone(), [], nn.BatchNorm1d(3, dtype=torch.float64)
    for _ in range(2):
        with pytest.raises((Own, RuntimeError)) as want:
            function(y, also_seen, other)
        with pytest.raises((Own, RuntimeError)) as got:
            compiled(x)
        assert got.type is want.type and str(got.value) == str(want.value)
        torch.testing.assert_close([x, *seen, *module.buffers()], [y, *also_seen, *other.buffers()])
    assert all(t is x for t in seen)


def test_the_users_error_of_a_trace_has_the_users_frames_and_no_other_error_behind_it(caplog):
    compiled = compiled_by(lambda x: shapes_that_do_not_fit(x, [], lambda x: x), "trace", "native")
    with pytest.raises(RuntimeError) as got:
        compiled(f64(2, 3, grad=False))
    frames = traceback.extract_tb(got.value.__traceback__)
    assert got.value.__context__ is None and not caplog.records
    assert [f.name for f in frames][-2:] == ["<lambda>", "shapes_that_do_not_fit"] and len(frames) <= 6


def test_a_trace_that_raises_where_eager_does_not_is_told():
    def f(x):
        try:
            return x + float(x.sum())
        except Exception as error:
            raise Own("no number") from error

    x = f64(3, grad=False)
    with pytest.warns(RuntimeWarning, match="Own was raised while .*f was traced.*: no number"):
        torch.testing.assert_close(compiled_by(f, "trace", "native")(x), f(x))
    with pytest.raises(UnsupportedError, match="Own was raised while"):
        compiled_by(f, "trace", "native", fullgraph=True)(x)


def test_a_refused_trace_leaves_no_tensors_of_its_own_in_the_users_lists():
    seen = []

    def f(x):
        seen.append(x * 2)
        return x * x.sum().item()

    with pytest.raises(UnsupportedError):
        compiled_by(f, "trace", "native")(f64(3))
    assert not seen


TRANSFORMED = {
    "vmap": isthmus.vmap,
    "grad": isthmus.grad,
    "jacrev": isthmus.jacrev,
    "jacfwd": isthmus.jacfwd,
    "hessian": isthmus.hessian,
    "nested": lambda f: isthmus.vmap(isthmus.grad(f)),
    "jvp": lambda f: lambda x: isthmus.jvp(f, (x,), (x,)),
    "vjp": lambda f: lambda x: isthmus.vjp(f, x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_errors_inside_of_a_transform_keep_their_type(name: str):
    with pytest.raises(Own, match="from the user"):
        TRANSFORMED[name](raises(Own))(f64(3, 3, grad=False))


@pytest.mark.parametrize("name", ["vmap", "jacrev", "jacfwd", "hessian"])
def test_a_transform_that_something_follows_is_torchs(name: str):
    x = f64(3, grad=False)
    ours, theirs = getattr(isthmus, name)(lambda x: x.sin() * x), getattr(torch.func, name)(lambda x: x.sin() * x)
    torch.testing.assert_close(make_fx(ours)(x)(x), theirs(x))
    torch.testing.assert_close(torch.func.vmap(ours)(x[None]), theirs(x)[None])
