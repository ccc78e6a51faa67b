"""Compiled functions where what calls them follows operators one by one, or gives tensors without data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import isthmus

BOTH = pytest.mark.parametrize("capture", ["dynamo", "trace"])
X = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)


def double_sine(x: Tensor) -> Tensor:
    return x.sin() * 2


def warm(capture: str) -> Callable[[Tensor], Tensor]:
    isthmus.reset()
    torch._dynamo.reset()
    compiled = isthmus.compile(double_sine, capture=capture)
    compiled(X)
    return compiled


@pytest.mark.parametrize("inner", ["dynamo", "trace"])
def test_a_compiled_function_inside_of_a_trace_is_part_of_it(inner: str) -> None:
    called = warm(inner)
    outer = isthmus.compile(lambda x: called(x).cos() + called(x + 1), capture="trace")
    x = X.clone().requires_grad_()
    y = outer(x)
    want = (x.sin() * 2).cos() + (x + 1).sin() * 2
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(want.sum(), x))


@BOTH
def test_fake_and_meta_tensors(capture: str) -> None:
    compiled = warm(capture)
    mode = FakeTensorMode()
    with mode:
        assert isinstance(compiled(mode.from_tensor(X)), FakeTensor)
    assert isinstance(compiled(mode.from_tensor(X)), FakeTensor)
    made = compiled(X.to("meta"))
    assert made.is_meta and made.shape == X.shape
    torch.testing.assert_close(compiled(X), double_sine(X))


@BOTH
def test_tangents_of_forward_mode(capture: str) -> None:
    compiled = warm(capture)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(compiled(forward_ad.make_dual(X, X))).tangent
    torch.testing.assert_close(tangent, 2 * X * X.cos())


@BOTH
def test_transforms_of_torch_around_it(capture: str) -> None:
    compiled = warm(capture)
    torch.testing.assert_close(torch.func.grad(lambda x: compiled(x).sum())(X), 2 * X.cos())
    torch.testing.assert_close(torch.func.jvp(compiled, (X,), (X,))[1], 2 * X * X.cos())
    torch.testing.assert_close(torch.func.vmap(compiled)(X.expand(3, 5)), double_sine(X).expand(3, 5))


def test_graphs_that_others_record() -> None:
    compiled = warm("trace")
    other = X + 0.5
    graph, script = make_fx(compiled)(X), torch.jit.trace(lambda x: compiled(x), X)
    torch.testing.assert_close(graph(other), double_sine(other))
    torch.testing.assert_close(script(other), double_sine(other))


def test_what_a_backend_of_dynamos_makes_is_not_run_on_the_tensors_of_a_trace() -> None:
    torch._dynamo.reset()

    def never(graph: torch.fx.GraphModule, inputs: object) -> object:
        raise AssertionError("Dynamo compiles inside of a trace")

    outer = isthmus.compile(lambda x: torch.compile(double_sine, backend=never)(x) + 1, capture="trace")
    torch.testing.assert_close(outer(X), double_sine(X) + 1)
