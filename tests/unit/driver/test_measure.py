"""The measuring helper: warm-up apart, compilations counted, only plain calls in the samples."""

import time

import pytest
import torch

import isthmus


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()


@pytest.mark.row("R8")
def test_the_first_call_compiles_and_the_samples_do_not():
    found = isthmus.measure(isthmus.compile(lambda x: x.sin() * 2), torch.ones(4), calls=5, warm_up=2)
    assert (found.compilations, found.late_compilations) == (1, 0)
    assert len(found.warm_up) == 2 and len(found.samples) == 5
    assert found.seconds == sorted(found.samples)[2] < found.warm_up[0]
    assert "per call, 1 compilations before; the first call took" in str(found)


@pytest.mark.row("R8")
def test_the_warm_up_is_discarded():
    seen: list[int] = []

    def slow_at_first():
        seen.append(1)
        time.sleep(0.05 if len(seen) <= 2 else 0.0)

    found = isthmus.measure(slow_at_first, calls=3, warm_up=2)
    assert len(seen) == 5
    assert min(found.warm_up) >= 0.05 > max(found.samples)


@pytest.mark.row("R8")
def test_compilations_inside_the_samples_are_told():
    compiled = isthmus.compile(lambda x: x + 1)
    found = isthmus.measure(lambda: compiled(torch.ones(3)), calls=2, warm_up=0)
    assert (found.compilations, found.late_compilations, found.warm_up) == (0, 1, ())
    assert "1 compilations inside the samples" in str(found)


@pytest.mark.row("R8")
def test_the_device_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    isthmus.measure(lambda: None, calls=2, warm_up=1)
    assert waits == [torch.device("cuda", 0)] * 6


def test_keywords_are_passed_on_and_nothing_to_time_is_refused():
    seen: list[object] = []
    isthmus.measure(lambda a, *, b: seen.append((a, b)), 1, b=2, calls=1, warm_up=0)
    assert seen == [(1, 2)]
    with pytest.raises(ValueError, match="calls=0"):
        isthmus.measure(lambda: None, calls=0)
