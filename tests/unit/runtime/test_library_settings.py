"""Graphs are kept apart by what torch's products look at when they are called."""

from __future__ import annotations

import torch

from isthmus.runtime.torch_private import library_settings


def test_settings_that_change_products_change_the_key() -> None:
    before = torch.get_float32_matmul_precision()
    found = set()
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            found.add(library_settings())
            assert library_settings() == library_settings()
    finally:
        torch.set_float32_matmul_precision(before)
    try:
        torch.use_deterministic_algorithms(True)
        found.add(library_settings())
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(found) == 3
