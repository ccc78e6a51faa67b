"""What positions gain from lane to lane is what they gain, at every place where a vector may begin."""

from __future__ import annotations

import pytest

from isthmus.dialects.kernel import Expr, constant, dim
from isthmus.dialects.kernel.lanes import Steps

LANES = 8
D, B = dim(0), dim(1)


@pytest.mark.parametrize(
    ("expr", "step"),
    [
        (D * 3 + B, 3),
        (B * 7 + 5, 0),
        (D.floordiv(64) * 1000 + D.mod(64), 1),
        (D.floordiv(16), 0),
        ((D + 32).mod(16) * 2, 2),
        ((D + B * 24).mod(16) + B, 1),
        (D.floordiv(64).mod(8) * 5 + D, 1),
        (D.mod(64).floordiv(16) + D.mod(64).mod(16), 1),
        (D.mod(12), None),
        (D.floordiv(12), None),
        ((D + B).mod(16), None),
        ((D + 4).mod(16), None),
        ((D * 2).mod(16), None),
    ],
)
def test_a_step_holds_wherever_an_aligned_vector_begins(expr: Expr, step: int | None) -> None:
    assert Steps(0, LANES, aligned=True).of(expr) == step
    if step is not None:
        for start in range(0, 256, LANES):
            for other in range(5):
                found = [expr.evaluate((start + lane, other)) for lane in range(LANES)]
                assert found == [found[0] + step * lane for lane in range(LANES)]


def test_where_vectors_begin_anywhere_only_plain_terms_step() -> None:
    steps = Steps(0, LANES, aligned=False)
    assert steps.of(D.mod(64)) is None
    assert steps.of(D * 2 + B.mod(3)) == 2
    assert steps.of(constant(4)) == 0
