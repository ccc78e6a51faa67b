"""Random programs with writes, views and branches against eager: a short run; the module has a long one."""

from __future__ import annotations

import pytest

from tests.boundary.random_programs import check_seed

FOUND = (41, 62, 133, 376, 680, 681, 1550)
"""Seeds that once showed a difference."""


@pytest.mark.row("T4", "T21", "T22", "T23", "B1")
@pytest.mark.parametrize("seed", [*range(40), *FOUND])
def test_a_random_program(seed: int):
    assert check_seed(seed) in ("agrees twice", "agrees", "values agree", "refused", "has no compiled form")
