"""A user rule keeps its backward inside of torch.func's transforms, whoever captures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch.func import grad, jacrev, vjp, vmap

import isthmus
from tests.boundary.harness import CAPTURES, compiled_by, f64


class ThriceSine(torch.autograd.Function):
    """sin x whose gradient is said to be 3·cos x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos() * 3


def total(x: Tensor) -> Tensor:
    return ThriceSine.apply(x).sum()


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": lambda x: grad(total)(x),
    "vjp": lambda x: vjp(lambda x: ThriceSine.apply(x), x)[1](x)[0],
    "a gradient of a gradient": lambda x: grad(lambda x: grad(total)(x).sum())(x),
    "rows of a jacobian": lambda x: jacrev(jacrev(total))(x),
    "vmap": lambda x: vmap(lambda row: ThriceSine.apply(row))(x),
    "gradients of examples": lambda x: vmap(grad(total))(x),
    "the gradient of all examples": lambda x: grad(lambda x: vmap(total)(x).sum())(x),
    "transforms of ours": lambda x: isthmus.vmap(isthmus.grad(total))(x),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, capture: str):
    x = f64(3, 2, grad=False)
    compiled = compiled_by(PROGRAMS[name], capture, "native", fullgraph=False)
    torch.testing.assert_close(compiled(x), PROGRAMS[name](x))


@pytest.mark.parametrize("name", ["grad", "vjp", "a gradient of a gradient", "rows of a jacobian"])
def test_they_are_part_of_the_graph(name: str):
    x = f64(3, 2, grad=False)
    compiled = compiled_by(PROGRAMS[name], "dynamo", "native", fullgraph=True)
    torch.testing.assert_close(compiled(x), PROGRAMS[name](x))
    assert isthmus.last_call_native()


def test_over_examples_the_graph_ends():
    with pytest.raises(Unsupported, match="capture='trace'"):
        compiled_by(PROGRAMS["gradients of examples"], "dynamo", "native", fullgraph=True)(f64(3, 2, grad=False))


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_tape_outside_sees_it_over_examples(capture: str):
    x, y = f64(3, 2), f64(3, 2)
    compiled_by(PROGRAMS["vmap"], capture, "native", fullgraph=False)(x).sum().backward()
    PROGRAMS["vmap"](y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
