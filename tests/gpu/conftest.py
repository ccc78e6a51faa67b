"""Tests that need a GPU: skipped where torch sees none, or where cuda-bindings is missing."""

from __future__ import annotations

import importlib.util

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = None
    if not torch.cuda.is_available():
        missing = "no GPU"
    elif importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        missing = "no cuda-bindings"
    for item in items:
        if missing is not None and "tests/gpu/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
