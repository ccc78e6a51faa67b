"""One training run, measured: time, bytes kept for backward, memory over a step, gradients."""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

Compile = Callable[[nn.Module], Callable[..., Tensor]]
"""What turns a module, whose call gives the loss, into something that is called the same way."""

Batch = tuple[Tensor, ...]

Progress = Callable[[], None]
"""Called after each step."""


@dataclass(frozen=True)
class Memory:
    """Bytes allocated over one step, beside what was alive before the run: (milliseconds, bytes), and the peak."""

    timeline: Sequence[tuple[float, int]]
    peak: int


@dataclass
class Run:
    """What one way of running a training gave."""

    name: str
    first_step: float = 0.0
    """Seconds of the first step, compilation included."""
    step: float = 0.0
    """Seconds of a later step (median)."""
    saved: int = 0
    """Bytes kept between forward and backward that nobody else holds."""
    memory: Memory = field(default_factory=lambda: Memory((), 0))
    losses: list[float] = field(default_factory=list[float])
    gradients: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Of the first step."""
    score: str = ""
    """The result on data that was not trained on."""
    sample: str = ""
    """What the model wrote, if it writes."""


def train(
    name: str,
    model: nn.Module,
    compile: Compile,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    progress: Progress,
) -> Run:
    """Train on the batches, whose shapes are equal; `model(*batch)` gives the loss."""
    run = Run(name)
    compiled = compile(model)
    times: list[float] = []
    for number, batch in enumerate(batches):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(*batch)
        loss.backward()
        if number == 0:
            run.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        times.append(time.perf_counter() - start)
        run.losses.append(loss.item())
        progress()
    run.first_step, run.step = times[0], statistics.median(times[1:] or times)
    run.saved = saved_bytes(compiled, model, batch)
    run.memory = memory_of_step(compiled, model, batch, optimizer)
    return run


def saved_bytes(compiled: Callable[..., Tensor], model: nn.Module, batch: Batch) -> int:
    """Count what the tape holds after a forward: each byte once, without parameters, buffers and the batch."""
    alive = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *batch)}
    held: list[tuple[int, int]] = []  # first byte and the byte behind the last, as addresses

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in alive and tensor.numel():
            reach = sum((n - 1) * abs(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            held.append((tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = compiled(*batch)
    del loss
    total, counted = 0, 0
    for start, end in sorted(held):
        total += max(0, end - max(start, counted))
        counted = max(counted, end)
    return total


def memory_of_step(
    compiled: Callable[..., Tensor], model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer
) -> Memory:
    """Follow torch's allocations through a forward and a backward; what is held between steps counts from the start."""
    model.zero_grad(set_to_none=True)
    idle = held_between_steps(model, batch, optimizer)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = compiled(*batch)
        loss.backward()
        del loss
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    timeline, held = [(0.0, idle)], idle
    for moment, change in changes:
        held += change
        timeline.append(((moment - changes[0][0]) / 1e3, held))
    return Memory(timeline, max(bytes_held for _, bytes_held in timeline))


def held_between_steps(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> int:
    """Count what a compiled function keeps from call to call: uint8 tensors (memory pools) that nobody else knows."""
    states = (t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor))
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *batch, *states)}
    pools = [o for o in gc.get_objects() if type(o) is Tensor and o.dtype is torch.uint8 and not o.is_sparse]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in pools}
    return sum(size for pointer, size in storages.items() if pointer not in known)


def largest_difference(a: Run, b: Run) -> float:
    """The largest difference of any gradient entry, relative to the largest entry of that gradient."""
    pairs = [(a.gradients[n].double(), b.gradients[n].double()) for n in a.gradients]
    return max(float((x - y).abs().max() / x.abs().max().clamp_min(1e-12)) for x, y in pairs)
