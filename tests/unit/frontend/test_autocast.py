"""What autocast does to a call is found out once for all calls that look alike."""

from __future__ import annotations

import pytest
import torch

import isthmus
from isthmus.frontend import autocast


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.mm(x, w)  # of float32 and float32, then twice of bfloat16 and float32
    with torch.autocast("cpu", torch.float16):
        y = torch.mm(x, w)
    return x.float() + y.float() + torch.mm(w, w).float()


def test_equal_calls_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    plan_of = autocast.plan_of
    monkeypatch.setattr(autocast, "plan_of", lambda *given: (tried.append(given[0]), plan_of(*given))[1])
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = isthmus.compile(function, capture="trace")(x, w)
        wanted = function(x, w)
    torch.testing.assert_close(found, wanted)
    assert tried.count(torch.ops.aten.mm.default) == 4  # (f32, f32), (bf16, f32), that in float16, one tensor twice


def test_what_is_remembered_is_what_would_be_found() -> None:
    plans = autocast.Plans()
    a, b, c = torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2).double()
    calls = [(a, b), (b, a), (a, a), (a, c), (a, b.bfloat16()), (b, a)]
    with torch.autocast("cpu", torch.bfloat16):
        for pair in calls:
            for func in (torch.ops.aten.mm.default, torch.ops.aten.mse_loss.default, torch.ops.aten.add.Tensor):
                try:
                    wanted = autocast.plan_of(func, pair, {})
                except RuntimeError:
                    continue  # eager refuses these dtypes
                assert plans.of(func, pair, {}) == wanted
                assert plans.of(func, pair, {}) == wanted


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.bfloat16])
def test_a_cast_in_the_program_is_no_cast_of_autocast(capture: str, to: torch.dtype) -> None:
    def cast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.mm(x, w)
            return y.to(to) + x.to(to)

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(isthmus.compile(cast, capture=capture, fullgraph=True)(x, w), cast(x, w))
