"""Results that are stored past the caches: eager's numbers, for views at odd places too, and an option without them."""

from __future__ import annotations

import pytest
import torch

import isthmus

LARGE = (1 << 22) + 3
"""A kernel on two tensors of so many floats moves 48 MiB."""


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + 1.0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 1])
def test_values(start: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, y = (torch.randn(LARGE)[start:] for _ in range(2))
        assert torch.equal(isthmus.compile(scaled, capture="trace")(x, y), scaled(x, y))
    finally:
        torch.set_num_threads(before)


def test_explain_names_them_and_an_option_does_without() -> None:
    x, y = torch.randn(LARGE), torch.randn(LARGE)
    explained = isthmus.explain(scaled, capture="trace")(x, y)
    assert "main: 1 kernel (1 past the caches)" in str(explained)
    assert "past the caches" not in str(isthmus.explain(scaled, capture="trace", past_caches=False)(x, y))
    assert "past the caches" not in str(isthmus.explain(scaled, capture="trace")(x[:4096], y[:4096]))
