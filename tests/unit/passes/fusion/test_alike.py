"""Kernels of nodes that look alike are built once, and come out as they would if each were built."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from prim_programs import Case, Program, apply, check, programs
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.passes.fusion import clusters, contraction
from isthmus.passes.fusion.alike import Structures
from isthmus.passes.fusion.draft import Draft
from isthmus.passes.pipelines import module_text

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


def twice(case: Case) -> Case:
    """The program, and once more what it computes, of other arguments."""
    body = ir.function(case.module, "main").body.block
    p = Program([*case.arguments, *[a.clone() for a in case.arguments]])
    results: list[SSAValue] = []
    for half in (p.args[: len(body.args)], p.args[len(body.args) :]):
        known: dict[SSAValue, SSAValue] = dict(zip(body.args, half, strict=True))
        for op in body.ops:
            if op is body.last_op:
                results += [known[v] for v in ir.operands_of(op)]
            else:
                ir.copied(op, known, p.block)
    return Case(p.module(results), p.arguments)


@given(programs())
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_copies_are_what_would_be_built(case: Case) -> None:
    double = twice(case)
    shared = check(double.module, double.arguments, ["fuse{contractions=own}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Structures, "of", lambda *_: None)
        built = apply(double.module.clone(), ["fuse{contractions=own}"])
    assert module_text(shared) == module_text(built)


def layers(count: int) -> ModuleOp:
    """Layers of a product, a normalisation whose weights have sums for gradients, and a residual."""
    p = Program([torch.randn(32, 48), *[torch.randn(48, 48) for _ in range(count)]])
    x, results = p.args[0], list[SSAValue]()
    for weight in p.args[1:]:
        h = p.e.tanh(p.e.dot(x, weight, ((1,), (0,))))
        largest = p.e.broadcast(p.e.reduce("max", h, (1,)), (32, 48), (0,))
        x = p.e.add(x, p.e.exp(p.e.sub(h, largest)))
        results.append(p.e.sum(x, (0,)))
    return p.module([x, *results])


def test_a_layer_more_builds_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Draft] = []

    class Counted(Draft):
        def __init__(self, *args: object) -> None:
            tried.append(self)
            super().__init__(*args)  # pyright: ignore[reportArgumentType]

    for module in (clusters, contraction):
        monkeypatch.setattr(module, "Draft", Counted)
    counts: list[int] = []
    for count in (4, 8):
        tried.clear()
        apply(layers(count), ["fuse{contractions=own}"])
        counts.append(len(tried))
    assert counts[0] == counts[1] > 0


def test_a_reason_names_the_value_of_its_own_pair() -> None:
    p = Program([torch.randn(12, 12, dtype=torch.float64) for _ in range(3)])
    rows = [p.e.sum(x, (1,)) for x in p.args]
    both = [[p.e.broadcast(row, (12, 12), (d,)) for d in (0, 1)] for row in rows]
    results = [p.e.add(x, p.e.mul(*pair)) for x, pair in zip(p.args, both, strict=True)]
    module = check(p.module(results), p.arguments, ["fuse"])
    reasons = [
        reason
        for op in ir.function(module, "main").body.block.ops
        for _, reason in getattr(op.attributes.get("refused"), "data", ())
    ]
    assert len({reason for reason in reasons if reason.startswith("%")}) == 3


def test_literals_in_another_order_look_otherwise() -> None:
    p = Program([torch.randn(4, 4), torch.randn(4, 4)])
    rest = {"interior": 0, "value": 0.0}
    x = p.e.op(prim.PadOp, (p.args[0],), {"dim": 0, "low": 1, "high": 2, **rest}).y
    y = p.e.op(prim.PadOp, (p.args[1],), {"dim": 0, "high": 1, "low": 2, **rest}).y
    check(p.module([p.e.sum(x, (1,)), p.e.sum(y, (1,))]), p.arguments, ["fuse"])
