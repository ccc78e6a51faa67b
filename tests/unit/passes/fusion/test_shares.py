"""A kernel that several threads could share is not made serial for the sake of a few numbers."""

from __future__ import annotations

import pytest
import torch
from prim_programs import Program, check

from isthmus import ir
from isthmus.dialects import kernel


@pytest.mark.parametrize(("count", "launches"), [(1 << 17, 2), (1 << 10, 1)])
def test_numbers_that_an_update_needs_are_computed_beside_it(count: int, launches: int) -> None:
    """As the corrections of an optimizer are: a small update takes them in, a large one does not."""
    p = Program([torch.rand(n, dtype=torch.float64) for n in (count, count, 2)])
    weight, grad, numbers = p.args
    rate, decay = (p.e.reshape(p.e.slice(numbers, 0, k, k + 1), ()) for k in range(2))
    size = p.e.div(rate, p.e.sub(p.e.const(1.0, (), "f64"), p.e.pow(decay, rate)))
    updated = p.e.sub(weight, p.e.mul(grad, p.e.broadcast(size, (count,), ())))
    made = check(p.module([updated, size]), p.arguments, ["fuse", "schedule"])
    ops = [op for op in kernel.launches(ir.function(made, "main")) if isinstance(op, kernel.FusedOp)]
    assert len(ops) == launches
    assert [op.partitions is not None and op.partitions.data for op in ops] == ([1, 24] if launches == 2 else [1])
