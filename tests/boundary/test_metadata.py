"""Shapes, strides and storages of arguments that a program changes in place."""

from __future__ import annotations

import pytest
import torch

import isthmus
from tests.boundary.harness import CAPTURES, agree, compiled_by, f64

N = False


@pytest.mark.row("T25")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.t_() * 2,
        lambda x: (x.t_(), x.mul_(2), x)[2],
        lambda x: (x.mul_(2), x.t_(), x + 1)[2],
        lambda x: (x.unsqueeze_(0), x * 2)[1],
        lambda x: (x.transpose_(0, 1), x.unsqueeze_(1), x.squeeze_(1), x.sum(0))[3],
        lambda x: (x.squeeze_(), x.t_(), x.unsqueeze(0))[2],
        lambda x: x.swapaxes_(0, 1),
        lambda x: (x.t_(), x.t_(), x * 2)[2],
        lambda x: (x.unsqueeze_(0), x.mul_(2), x.squeeze_(0))[2],
    ],
)
@pytest.mark.parametrize("capture", CAPTURES)
def test_metadata_is_changed_for_the_caller(f, capture: str):
    # Dynamo breaks the graph at metadata changes of inputs
    options = {"fullgraph": False} if capture == "dynamo" else {}
    agree(f, f64(2, 3, grad=N), capture=capture, gradients=False, **options)


@pytest.mark.row("T25")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x.set_(y), x * 2)[1],
        lambda x, y: (x.resize_(3, 3), y * 2)[1],
        lambda x, y: (x.resize_as_(y[:1]), y)[1],
    ],
)
def test_another_storage_is_refused_or_as_in_eager(f, capture: str):
    mine, theirs = ([f64(2, 3, grad=N), f64(2, 3, grad=N) + 1] for _ in range(2))
    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    want = f(*theirs)
    try:
        got = compiled(*mine)
    except isthmus.CompileError as error:
        assert error.cure
        return
    torch.testing.assert_close(got, want)
    assert [m.shape for m in mine] == [t.shape for t in theirs]


@pytest.mark.row("T25")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("content", [lambda x, s: x.add_(s), lambda x, s: x.mul_(s)])
def test_content_and_a_shape_that_comes_back(content, capture: str):
    def f(x, s):
        content(x, s)
        x.transpose_(0, 1).transpose_(0, 1)
        return s * 2

    def run(called):
        x, s = f64(2, 3), f64()
        given = (x * 1)[1:]
        result = called(given, s)
        return [given, result, *torch.autograd.grad(given.sum() + result, [x, s])]

    options = {"fullgraph": False} if capture == "dynamo" else {}
    torch.testing.assert_close(run(compiled_by(f, capture, "native", **options)), run(f))
