"""What only torch decides: which of equal elements a selection takes, and the numbers that its own generator gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.boundary.harness import CAPTURES, compiled_by, f64

SELECTIONS = {
    "topk": lambda x: torch.topk(x, 3, 1),
    "topk, smallest": lambda x: torch.topk(x, 2, 0, largest=False),
    "kthvalue": lambda x: torch.kthvalue(x, 3, 1, keepdim=True),
    "kthvalue, last": lambda x: torch.kthvalue(x, 2),
    "median": lambda x: torch.median(x, 1),
    "nanmedian": lambda x: torch.nanmedian(torch.where(x > 2, torch.nan, x), 2, keepdim=True),
    "one number": lambda x: torch.topk(x.sum(), 1),
    "one number, kthvalue": lambda x: torch.kthvalue(x.sum(), 1, keepdim=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SELECTIONS)
def test_of_equal_elements_torchs_own_is_selected(name: str, dtype: torch.dtype):
    function = SELECTIONS[name]
    numbers = torch.randint(0, 4, (5, 10, 7), generator=torch.Generator().manual_seed(0)).to(dtype)
    mine, theirs = (numbers.clone().requires_grad_() for _ in range(2))
    got, want = compiled_by(function, "dynamo", "native")(mine), function(theirs)
    torch.testing.assert_close(tuple(got), tuple(want))
    got[0].sum().backward()
    want[0].sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two draws; the second one's gradient needs both."""
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    return F.scaled_dot_product_attention(y, k, v, dropout_p=0.25) + y


def second_gradients(function, *leaves: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    first = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
    torch.rand(())  # whoever draws in between does not matter
    second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
    return [*first, *second, torch.rand(3)]


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_second_derivative_sees_the_numbers_that_the_forward_drew(capture: str):
    def leaves() -> tuple[Tensor, ...]:
        return tuple(f64(2, 3, 4) for _ in range(3))

    compiled = compiled_by(attend, capture, "native")
    for _ in range(2):
        for got, want in zip(second_gradients(compiled, *leaves()), second_gradients(attend, *leaves()), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_inside_attention_is_eagers_under_one_seed(capture: str, dtype: torch.dtype):
    """Nothing in its name says that it is random."""
    torch.manual_seed(0)
    shapes = ((3, 2, 4), (12, 4), (12,), (4, 4), (4,))
    leaves = [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]

    def f(x, w_in, b_in, w_out, b_out):
        return F.multi_head_attention_forward(x, x, x, 4, 2, w_in, b_in, None, None, False, 0.5, w_out, b_out)[0]

    def run(function) -> list[Tensor]:
        torch.manual_seed(1)
        y = function(*leaves)
        return [y, *torch.autograd.grad(y.sin().sum(), leaves), torch.rand(2)]

    torch.testing.assert_close(run(compiled_by(f, capture, "native")), run(f), rtol=1e-4, atol=1e-4)
