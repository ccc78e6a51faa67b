"""Seconds per call, with what only the first calls cost kept apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.utils import _pytree as pytree

from isthmus.driver.session import compilations


@dataclass(frozen=True)
class Measurement:
    """What `measure` found."""

    seconds: float
    """Median of the calls after warm-up."""
    samples: tuple[float, ...]
    """Seconds of each of them, in order."""
    warm_up: tuple[float, ...]
    """Seconds of the calls before them, in order; the first one holds the compilation."""
    compilations: int
    """Programs compiled during the warm-up."""
    late_compilations: int
    """Programs compiled during the samples: when not 0, the samples hold compile time."""

    def __str__(self) -> str:
        first = f"; the first call took {_readable(self.warm_up[0])}" if self.warm_up else ""
        late = f"; {self.late_compilations} compilations inside the samples" if self.late_compilations else ""
        return f"{_readable(self.seconds)} per call, {self.compilations} compilations before{first}{late}"


def measure(
    function: Callable[..., object], *args: object, calls: int = 20, warm_up: int = 3, **kwargs: object
) -> Measurement:
    """Call a function `warm_up` times, then `calls` times more, and give the median seconds of the latter.

    The device of every CUDA tensor among the arguments, and any device that the warm-up used, is waited for before
    and after each sample. What the function raises is raised here; ValueError when there is nothing to time.
    """
    if calls < 1 or warm_up < 0:
        raise ValueError(f"calls={calls} must be at least 1 and warm_up={warm_up} at least 0")
    leaves = pytree.tree_leaves((args, kwargs))
    devices = {t.device for t in leaves if isinstance(t, torch.Tensor) and t.device.type == "cuda"}

    def timed() -> float:
        _wait(devices)
        begin = perf_counter()
        function(*args, **kwargs)
        _wait(devices)
        return perf_counter() - begin

    before = compilations()
    first = tuple(timed() for _ in range(warm_up))
    between = compilations()
    samples = tuple(timed() for _ in range(calls))
    return Measurement(median(samples), samples, first, between - before, compilations() - between)


def _wait(devices: set[torch.device]) -> None:
    """Kernels run behind the host's back: time means nothing before they have ended."""
    if torch.cuda.is_initialized():
        devices = devices | {torch.device("cuda", torch.cuda.current_device())}
    for device in devices:
        torch.cuda.synchronize(device)


def _readable(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
