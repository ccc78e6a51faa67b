"""What partition may ask before anything is fused."""

from __future__ import annotations

import torch
from prim_programs import Program

from isthmus import ir
from isthmus.passes.analysis import clusters


def test_a_single_use_is_interior_and_a_reduction_is_not() -> None:
    p = Program([torch.zeros(64, 32)])
    e = p.e.exp(p.args[0])
    s = p.e.sum(e, (1,))
    found = clusters.of(ir.function(p.module([s]), "main"))
    assert not found.materialised(e)
    assert found.materialised(s)
    assert found.cone_bytes(e) == 64 * 32 * 4


def test_a_dear_value_with_two_uses_is_kept_and_read_as_it_is() -> None:
    p = Program([torch.zeros(64, 32)])
    t = p.e.tanh(p.args[0])
    a, b = p.e.sum(t, (1,)), p.e.sum(t, (0,))
    user = p.e.neg(t)
    found = clusters.of(ir.function(p.module([a, b, user]), "main"))
    assert found.materialised(t)
    assert found.cone(user).buffers == {t}
    assert found.cone(t).buffers == {p.args[0]}


def test_a_cheap_value_of_one_buffer_is_never_kept() -> None:
    p = Program([torch.zeros(64, 32)])
    r = p.e.relu(p.args[0])
    a, b = p.e.sum(r, (1,)), p.e.sum(r, (0,))
    assert not clusters.of(ir.function(p.module([a, b]), "main")).materialised(r)


def test_views_count_the_uses_behind_them() -> None:
    p = Program([torch.zeros(64, 32)])
    t = p.e.tanh(p.args[0])
    v = p.e.reshape(t, (32, 64))
    results = [p.e.sum(v, (1,)), p.e.sum(v, (0,))]
    found = clusters.of(ir.function(p.module(results), "main"))
    assert found.materialised(t) and not found.materialised(v)


def test_constants_need_nothing() -> None:
    p = Program([torch.zeros(4)])
    c = p.e.const(1.0, (4,), "f32")
    assert clusters.of(ir.function(p.module([p.e.add(p.args[0], c)]), "main")).cone_bytes(c) == 0
