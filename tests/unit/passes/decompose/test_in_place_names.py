"""In-place overloads: those whose functional form has a rule have one too, whatever torch calls them."""

from __future__ import annotations

import torch

from isthmus.passes.decompose.table import DEFAULT, load_rules

OTHERWISE = {"transpose_.default": "changes metadata only: imported as transpose"}
"""Overloads without a rule, and why they need none."""


def test_in_place_overloads_have_the_rules_of_their_functional_forms():
    load_rules()
    bases = {name.partition(".")[0] for name in DEFAULT}
    overloads = [
        f"{base}.{variant or 'default'}"
        for base, _, variant in (name.partition(".") for name in torch._C._dispatch_get_all_op_names())
        if base.startswith("aten::") and base.endswith("_") and not base.endswith("__")
    ]
    names = [name.removeprefix("aten::") for name in overloads]
    missing = {n for n in names if n.partition(".")[0][:-1] in bases and DEFAULT.find(n) is None}
    assert len(names) > 300
    assert missing == set(OTHERWISE)
