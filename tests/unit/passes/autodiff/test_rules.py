"""Every rule of the derivative table against torch autograd in float64: value, gradient, second and third order."""

from __future__ import annotations

import pytest

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import PRIM_OPS
from isthmus.passes import elementary_form
from isthmus.passes.autodiff import table
from tests.unit.passes.autodiff.oracle import check_orders
from tests.unit.passes.autodiff.sample import Sample
from tests.unit.passes.autodiff.samples import SAMPLES

CONTROL = {prim.CondOp, prim.WhileOp, prim.ScanOp, prim.OpaqueOp}
"""Shown in tests of their own."""


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.cls.name}-{s.name}")
def test_agrees_with_torch(sample: Sample) -> None:
    check_orders(sample.build, sample.inputs, sample.function, sample.orders)


@pytest.mark.row("A7", "A8")
def test_each_primitive_has_a_rule_or_is_declared_constant_or_has_an_elementary_form() -> None:
    table.load_rules()
    ruled = set(table.PULLBACKS) | set(table.NESTED_PULLBACKS)
    without = {c for c in PRIM_OPS if c not in ruled | table.CONSTANT and elementary_form(c) is None}
    assert without == set()
    assert not ruled & table.CONSTANT


def test_each_rule_has_a_sample() -> None:
    table.load_rules()
    ruled = {c for c in PRIM_OPS if c in set(table.PULLBACKS) | set(table.NESTED_PULLBACKS)}
    assert ruled - CONTROL == {s.cls for s in SAMPLES} - {prim.StopGradientOp, prim.AttentionBwdOp}


def test_constants_are_not_differentiable_even_where_their_dtype_is() -> None:
    assert ir.is_differentiable("f64")
    func = check_orders(lambda e, x: e.stop_gradient(x), (SAMPLES[0].inputs[0],), lambda x: x.detach())
    assert len(func.function_type.inputs) == 1
