"""Programs give the same results before and after fusion."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from prim_programs import Case, check, programs

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@given(programs())
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
def test_fuse_keeps_results(case: Case) -> None:
    check(case.module, case.arguments, ["fuse"])
