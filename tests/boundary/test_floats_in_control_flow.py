"""Python floats that change between calls, read by conditions and the bodies of loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

from isthmus.driver.session import compilations
from tests.boundary.harness import CAPTURES, compiled_by, f64

PROGRAMS: dict[str, Callable[[Tensor, float], object]] = {
    "a condition": lambda x, b: while_loop(lambda i, x: x.sum() < b, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)),
    "condition and body": lambda x, b: while_loop(
        lambda i, x: x.sum() < b, lambda i, x: (i + 1, x * b), (torch.tensor(0), x)
    ),
    "and before": lambda x, b: while_loop(
        lambda i, x: x.sum() < b, lambda i, x: (i + 1, x * b), (torch.tensor(0), x + b)
    ),
    "branches": lambda x, b: torch.cond(x.sum() > b, lambda x: (x * b).clamp(max=b), lambda x: x / b, (x,)),
    "slices": lambda x, b: map_slices(lambda row, *_: torch.where(row > b, row, row * b), x),
    "a scan": lambda x, b: scan(lambda c, row: (c * b + row, torch.where(c < b, row, c)), x[0] * 0, x),
    "comparisons": lambda x, b: (x < b, x <= b, x > b, x >= b, x == b, x != b, x.float() < b, x.int() < b),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_that_changes_between_calls(name: str, capture: str):
    program = PROGRAMS[name]
    compiled = compiled_by(program, capture, "native")
    x = f64(3, grad=False).abs() + 0.1
    for bound in (10.5, 20.25, 33.1):
        got, want = pytree.tree_leaves(compiled(x, bound)), pytree.tree_leaves(program(x, bound))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("name", ["a condition", "comparisons"])
def test_numbers_that_are_only_compared_compile_twice(name: str):
    compiled = compiled_by(PROGRAMS[name], "dynamo", "native")
    before = compilations()
    for bound in (10.5, 20.25, 33.1, 44.2, 50.5):
        compiled(f64(3, grad=False).abs(), bound)
    assert compilations() - before == 2
