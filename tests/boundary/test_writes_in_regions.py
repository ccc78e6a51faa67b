"""Branches and loop bodies that write tensors from outside: as the same Python would, or refused with line and cure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import isthmus
from tests.boundary.harness import compiled_by, f64
from tests.unit.passes.functionalize.harness import compare, compare_gradients, copies, writable

BACKENDS = ("native", "interpret")


def in_a_branch(x: Tensor, y: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        y.mul_(x)
        return x.sin()

    return torch.cond(x.sum() > 1, positive, lambda x: x.cos(), (x,)) * y


def in_a_branch_eager(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 1:
        y.mul_(x)
        return x.sin() * y
    return x.cos() * y


def in_both_branches(x: Tensor, y: Tensor) -> Tensor:
    def positive() -> Tensor:
        y[0].mul_(3)
        return x * y

    def negative() -> Tensor:
        x.add_(y)
        return x * 2

    return torch.cond(x.sum() > 1, positive, negative, ())


def in_both_branches_eager(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 1:
        y[0].mul_(3)
        return x * y
    x.add_(y)
    return x * 2


def in_a_scan(x: Tensor, y: Tensor) -> Tensor:
    def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        y.add_(row * h)
        return h * row, (h + y).sin()

    h, rows = scan(step, y * 2, torch.stack([x, x + 1, x * 2]), dim=0)
    return h.sum() + rows.sum() + y.prod()


def in_a_scan_eager(x: Tensor, y: Tensor) -> Tensor:
    h, rows = y * 2, []
    for row in (x, x + 1, x * 2):
        y.add_(row * h)
        rows.append((h + y).sin())
        h = h * row
    return h.sum() + torch.stack(rows).sum() + y.prod()


def quietly_in_a_scan(x: Tensor, y: Tensor) -> Tensor:
    def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y.mul_(0.9).add_(row)
        return h * row, h.sin()

    h, rows = scan(step, x * 2, torch.stack([x, x + 1]), dim=0)
    return h.sum() + rows.sum()


def quietly_in_a_scan_eager(x: Tensor, y: Tensor) -> Tensor:
    h, total = x * 2, torch.zeros((), dtype=x.dtype)
    for row in (x, x + 1):
        with torch.no_grad():
            y.mul_(0.9).add_(row)
        total = total + h.sin().sum()
        h = h * row
    return h.sum() + total


def in_a_while(x: Tensor, y: Tensor) -> Tensor:
    def body(i: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y.add_(h)
        return i + 1, h * y.cos()

    return while_loop(lambda i, h: i < 4, body, (torch.tensor(0), x))[1] + y


def in_a_while_eager(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(4):
        y.add_(x)
        x = x * y.cos()
    return x + y


PROGRAMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "branch": (in_a_branch, in_a_branch_eager),
    "both branches": (in_both_branches, in_both_branches_eager),
    "scan": (in_a_scan, in_a_scan_eager),
    "scan under no_grad": (quietly_in_a_scan, quietly_in_a_scan_eager),
    "while": (in_a_while, in_a_while_eager),
}


@pytest.mark.row("D16", "T21")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [2.0, -2.0])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_caller_sees_what_a_region_writes(name: str, grad: bool, shift: float, backend: str):
    function, written_out = PROGRAMS[name]
    grad = grad and name != "while"  # a loop whose end data tells has no gradient
    arguments: Sequence[Tensor] = [(f64(3, grad=False) + shift).requires_grad_(grad), f64(3, grad=grad)]
    compiled = compiled_by(function, "trace", backend)
    for _ in range(2):
        mine, theirs = copies(arguments), copies(arguments)
        inner, outer = writable(mine), writable(theirs)
        got, want = [compiled(*inner)], [written_out(*outer)]
        compare(got, want, inner, outer)
        if grad:
            compare_gradients([*got, *inner], [*want, *outer], mine, theirs)


def carried(x: Tensor, y: Tensor) -> Tensor:
    return scan(lambda h, row: (h.mul_(row), row.sin()), x, torch.stack([y, y]), dim=0)[0]


def mapped(x: Tensor, y: Tensor) -> Tensor:
    def body(row: Tensor) -> Tensor:
        y.add_(1)
        return row.sin()

    return map_slices(body, torch.stack([x, x]))


def aliased(x: Tensor, y: Tensor) -> Tensor:
    tail = y[1:]

    def positive() -> Tensor:
        tail.mul_(2)
        return y.sum()

    return torch.cond(x.sum() > 0, positive, lambda: x.sum(), ())


@pytest.mark.parametrize("function", [carried, mapped, aliased])
def test_what_has_no_meaning_is_refused_at_its_line(function: Callable[..., Tensor]):
    with pytest.raises(isthmus.UnsupportedError, match="writes") as refused:
        compiled_by(function, "trace", "native")(f64(3, grad=False), f64(3, grad=False))
    assert refused.value.cure and refused.value.location is not None
    first = function.__code__.co_firstlineno
    assert refused.value.location.file == __file__ and first < refused.value.location.line <= first + 5
