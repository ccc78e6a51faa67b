"""`torch._foreach_*`: values, writes, gradients (those that eager lacks too) and errors; all native."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import isthmus
from tests.boundary.harness import CAPTURES, agree, compiled_by, f64, same_error
from tests.unit.passes.functionalize.harness import copies

Tensors = Sequence[Tensor]
f = torch

PROGRAMS: dict[str, Callable[[list[Tensor], list[Tensor]], object]] = {
    "unary": lambda a, b: f._foreach_exp(a) + f._foreach_sigmoid(b) + f._foreach_clone(a),
    "unary in place": lambda a, b: (f._foreach_mul_(a, 0.5), f._foreach_tanh_(a)),
    "binary": lambda a, b: f._foreach_sub(a, b, alpha=2) + f._foreach_div(a, 3.0) + f._foreach_mul(a, [1.5, 2.5]),
    "binary in place": lambda a, b: (f._foreach_add_(a, b, alpha=0.5), f._foreach_pow_(a, [2.0, 3.0])),
    "a tensor": lambda a, b: f._foreach_mul(a, b[0][0]) + f._foreach_add(a, b[0][0], alpha=2),
    "a base": lambda a, b: f._foreach_pow(2.0, a),
    "ternary": lambda a, b: f._foreach_addcmul(a, b, b, value=0.5) + f._foreach_addcdiv(a, a, b, [0.5, 2.0]),
    "ternary in place": lambda a, b: (f._foreach_addcdiv_(a, b, b, 0.5), f._foreach_addcmul_(a, b, b, [0.5, 2.0])),
    "lerp": lambda a, b: f._foreach_lerp(a, b, 0.3) + f._foreach_lerp(a, b, b),
    "norms": lambda a, b: f._foreach_norm(a) + f._foreach_norm(b, 1),
    "bounds": lambda a, b: f._foreach_clamp_min(a, b) + f._foreach_maximum(a, 0.4) + f._foreach_minimum(a, b),
    "bounds in place": lambda a, b: (f._foreach_clamp_min_(a, 0.1), f._foreach_clamp_max_(a, b)),
}


def on_lists(program: Callable[[list[Tensor], list[Tensor]], object]) -> Callable[[Tensor, Tensor], object]:
    """Run a program on lists that are made of two arguments; gives its results, or what it wrote."""

    def run(x: Tensor, y: Tensor) -> object:
        a, b = [x * 1.5, x[:2].sin()], [y.exp(), y[:2].cos()]
        result = program(a, b)
        return a if isinstance(result, tuple) else result

    return run


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, capture: str):
    agree(on_lists(PROGRAMS[name]), f64(3), f64(3) + 0.2, capture=capture, calls=1)
    assert isthmus.last_call_native()


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_gradients_that_eager_lacks(name: str):
    in_place, bound = getattr(torch, f"_foreach_{name}_"), getattr(torch, name)
    x, y = f64(3), f64(3)
    compiled = compiled_by(on_lists(lambda a, b: (in_place(a, 0.4), in_place(a, b))), "trace", "native")
    mine, theirs = copies([x, y]), copies([x, y])
    a, b = [theirs[0] * 1.5, theirs[0][:2].sin()], [theirs[1].exp(), theirs[1][:2].cos()]
    want = [bound(bound(s, torch.tensor(0.4, dtype=s.dtype)), t) for s, t in zip(a, b, strict=True)]
    got = compiled(*mine)
    torch.testing.assert_close(got, want)
    gradients = torch.autograd.grad(sum(t.sum() for t in got), mine)  # pyright: ignore[reportGeneralTypeIssues]
    torch.testing.assert_close(gradients, torch.autograd.grad(sum(t.sum() for t in want), theirs))


@pytest.mark.parametrize("capture", CAPTURES)
def test_arguments_are_written_and_one_may_be_there_twice(capture: str):
    def program(x: Tensor, y: Tensor) -> None:
        torch._foreach_mul_([x, y, x], [2.0, 3.0, 5.0])
        torch._foreach_copy_([y], [x])

    agree(program, f64(3, grad=False), f64(3, grad=False), capture=capture)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch._foreach_add([x], [x, x]),
        lambda x: torch._foreach_exp([x][:0]),
        lambda x: torch._foreach_add_([x.long()], 1.5),
    ],
)
@pytest.mark.parametrize("capture", CAPTURES)
def test_what_eager_refuses(program: Callable[[Tensor], object], capture: str):
    same_error(program, f64(3, grad=False), capture=capture)
