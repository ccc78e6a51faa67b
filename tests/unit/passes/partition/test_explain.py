"""What is said about a partition is what it is."""

from __future__ import annotations

import pytest

from isthmus import ir
from isthmus.passes.partition.explain import explain_partition
from tests.unit.passes.partition.joints import CONSTANT, PRIMAL, joint, tangent
from tests.unit.passes.partition.test_partition import SCALAR, SQUARE, VECTOR, cos_of_cos, matmul_relu_sum


@pytest.mark.row("M9")
def test_each_saved_value_is_named_with_bytes_readers_reason_and_price() -> None:
    func = joint([SQUARE, SQUARE, SCALAR], [CONSTANT, PRIMAL, tangent()], matmul_relu_sum)
    explained = explain_partition(func)
    argument, mask = explained.saved
    assert (argument.nbytes, argument.costs, argument.why) == (64, 0, "alive anyway: an argument")
    assert (mask.name, mask.type, mask.nbytes, mask.needed_by) == ("%cmp", "i1[4, 4]", 16, ("select",))
    assert mask.why == "backward's own, smaller than what it is computed from"
    assert mask.operations == 2 * 4 * 4 * 4 + 16  # the contraction, then the comparison
    assert mask.reads == 128
    assert explained.saved_bytes == 16
    kept = explain_partition(func, "default").saved[1]
    assert (kept.name, kept.costs, kept.why) == ("%dot", 64, "a contraction is not computed twice")


@pytest.mark.row("M9")
def test_each_recomputed_value_shows_the_bytes_it_saves() -> None:
    explained = explain_partition(joint([VECTOR, VECTOR], [PRIMAL, tangent()], cos_of_cos))
    assert [(r.name, r.nbytes) for r in explained.recomputed] == [("%cos", 16)]
    assert explained.recomputed[0].operations == int(4 * func_cost())
    assert explained.saved_bytes == 0


def func_cost() -> float:
    from isthmus.dialects import prim

    return prim.CosOp.COST


def test_the_table_has_a_line_for_each_value() -> None:
    func = joint([SQUARE, SQUARE, SCALAR], [CONSTANT, PRIMAL, tangent()], matmul_relu_sum)
    first_use = next(iter(func.body.block.ops))
    first_use.location = ir.location_attr(ir.SourceLocation("model.py", 12, 9))
    text = explain_partition(func).table()
    assert text.splitlines()[0] == "saved for backward (min-cut): 16 bytes beside what is alive anyway"
    assert sum("alive anyway: an argument" in line for line in text.splitlines()) == 1
    assert "model.py:12:9" in explain_partition(func, "default").table()
