"""Writes where a tensor overlaps itself, and writes that autograd is not told of."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.boundary.harness import CAPTURES, agree, compiled_by, f64

N = False
"""Plain inputs in the tables below: without gradients."""


def data_is_written(x, y):
    x.data.mul_(2)
    return (x * y).sum()


def some_through_data(x, y):
    x.data[0].mul_(2)
    x.detach()[1].mul_(3)
    return (x * y).sum()


def data_returned(x, y):
    x.data.t().mul_(2)
    return (x * y).sum(), x.data


def data_of_both(x, y):
    x.data.mul_(y.data)
    y.data.zero_()
    return x * y


@pytest.mark.row("T21")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("backend", ["native", "interpret"])
@pytest.mark.parametrize("function", [data_is_written, some_through_data, data_returned, data_of_both])
def test_writes_through_data_change_no_version(function, backend: str, capture: str):
    """So whoever saved the tensor before is not told, as in eager; leaves may be written. `detach` counts."""
    compiled = compiled_by(function, capture, backend)
    results = []
    for f in (function, compiled, compiled):
        x, y = f64(2, 3), f64(2, 3) + 1
        saved = x * 3 * x
        outputs = pytree.tree_leaves(f(x, y))
        outputs[0].sum().backward()
        gradient = x.grad.clone()
        if not x._version:
            saved.sum().backward()
        versions = [t._version for t in (x, y, *outputs)]
        results.append((x.detach(), y.detach(), gradient, x.grad, *(o.detach() for o in outputs), versions))
    for found in results[1:]:
        torch.testing.assert_close(found[:-1], results[0][:-1])
        assert found[-1] == results[0][-1]


def windows_read_and_written(x):
    windows = x.unfold(0, 2, 1)
    windows.zero_()
    return windows + 1, x.sum()


OVERLAPPING = {
    "zero": lambda x: (x.unfold(0, 2, 1).zero_(), x * 2)[1],
    "fill": lambda x: (x[1:].unfold(0, 3, 1).fill_(2.5), x * 2)[1],
    "fill by a tensor": lambda x: (x.unfold(0, 2, 1).fill_(torch.tensor(2.0, dtype=x.dtype)), x * 2)[1],
    "strides": lambda x: (x.as_strided((3, 3), (1, 1), 1).fill_(1.0), x * x)[1],
    "some windows": lambda x: (x.unfold(0, 3, 1)[1:].zero_(), x * 2)[1],
    "one window": lambda x: (x.unfold(0, 3, 1)[1].mul_(3), x * 2)[1],
    "one place of each": lambda x: (x.unfold(0, 3, 1)[:, 0].mul_(3), x * 2)[1],
    "one of an expanded": lambda x: (x.unsqueeze(0).expand(3, -1)[0].mul_(2), x * 2)[1],
    "returned": lambda x: x.unfold(0, 2, 1).zero_(),
    "read again": windows_read_and_written,
    "of a result": lambda x: (lambda y: (y.unfold(0, 2, 1)[1:].fill_(2.0), y * x)[1])(x * 2),
}


@pytest.mark.row("T21")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_windows_that_overlap_are_written_where_no_order_decides(name: str, grad: bool, capture: str):
    """One number for all of them, or a part without overlap."""
    agree(OVERLAPPING[name], f64(6, grad=grad), capture=capture, gradients=grad)


@pytest.mark.parametrize("capture", CAPTURES)
def test_an_argument_whose_elements_overlap_is_filled(capture: str):
    def f(windows):
        windows.zero_()
        return windows + 1

    mine, theirs = (f64(6, grad=N).unfold(0, 2, 1) for _ in range(2))
    torch.testing.assert_close(compiled_by(f, capture, "native")(mine), f(theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("capture", CAPTURES)
def test_windows_that_overlap_are_refused_with_the_reason_where_order_decides(capture: str):
    """Eager writes them in the order in which it goes through memory."""
    compiled = compiled_by(lambda x: x.unfold(0, 2, 1).mul_(2), capture, "native")
    with pytest.raises(Exception, match="overlap in memory"):
        compiled(f64(4, grad=N))
