"""Whether what was captured computes what eager does."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.frontend.capture_dynamo import compile_with_dynamo


def leaves(arguments):
    return [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments]


def check(captures, function, *arguments, dynamic=None, fullgraph=True):
    """Compare the captured program with eager: outputs, gradients, inputs afterwards."""
    mine, theirs = leaves(arguments), leaves(arguments)
    compiled = compile_with_dynamo(function, captures, fullgraph=fullgraph, dynamic=dynamic)
    torch.manual_seed(1)
    result = compiled(*mine)
    torch.manual_seed(1)
    expected = function(*theirs)
    flat = torch.utils._pytree.tree_leaves
    for got, want in zip(flat(result), flat(expected), strict=True):
        if not isinstance(want, Tensor):
            assert got == want
            continue
        assert got.requires_grad == want.requires_grad
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    for got, want in zip(mine, theirs, strict=True):
        if isinstance(want, Tensor):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
    gradient(flat(result))
    gradient(flat(expected))
    for got, want in zip(mine, theirs, strict=True):
        if isinstance(want, Tensor) and want.is_leaf and want.requires_grad:
            zeros = torch.zeros_like(want)  # an absent gradient is zero
            torch.testing.assert_close(
                zeros if got.grad is None else got.grad, zeros if want.grad is None else want.grad
            )


def gradient(outputs):
    wanted = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad]
    if wanted:
        sum(t.float().sin().sum() for t in wanted).backward()


def square(requires_grad=False):
    return torch.randn(4, 4, requires_grad=requires_grad)
