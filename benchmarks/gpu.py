"""Programs on one GPU: eager, compiled, compiled and replayed as a CUDA graph, beside the time that their bytes take.

    python benchmarks/gpu.py [name ...] [--inductor]

Milliseconds by events, the median of seven runs; in brackets the step captured as one graph by torch, so without the
host. `floor`: the bytes that have to move, at the rate of a large copy measured here. `error`: against float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isthmus

DEVICE = "cuda"
Step = Callable[[], object]


@dataclass
class Workload:
    """A function of tensors; those in `wanted` get gradients, from `seed` where the result is no number."""

    function: Callable[..., Tensor]
    arguments: list[Tensor]
    wanted: list[Tensor] = field(default_factory=list[Tensor])
    seed: Tensor | None = None
    bytes: float = 0

    def step(self, function: Callable[..., Tensor]) -> Step:
        """Give what runs the function, and its backward where there are gradients."""

        def run() -> Tensor:
            for t in self.wanted:
                t.grad = None
            if not self.wanted:
                with torch.no_grad():
                    return function(*self.arguments)
            y = function(*self.arguments)
            y.backward(self.seed)
            return y

        return run

    def error(self, function: Callable[..., Tensor]) -> float:
        """Give the largest relative error of result and gradients, of few rows where there are many."""
        found = self.step(function)()
        assert isinstance(found, Tensor)
        pairs = [found.detach(), *(t.grad for t in self.wanted)]
        exact = [a.detach().double() if a.is_floating_point() else a for a in self.arguments]
        leaves = [exact[k].requires_grad_() for k, a in enumerate(self.arguments) if any(a is w for w in self.wanted)]
        want = self.function(*exact)
        if leaves:
            want.backward(None if self.seed is None else self.seed.double())
        wants = [want.detach(), *(t.grad for t in leaves)]
        errors: list[float] = []
        for a, b in zip(pairs, wants, strict=True):
            assert a is not None and b is not None
            errors.append(float((a.double() - b).norm() / b.norm()))
        return max(errors)


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


def pointwise() -> Workload:
    x = [rand(16384, 4096), rand(4096), rand(4096), rand(16384, 4096)]
    return Workload(lambda x, w, b, r: F.gelu(x * w + b) + r, x, bytes=12 * x[0].numel())


def softmax(dtype: torch.dtype) -> Workload:
    x = rand(8192, 8192, dtype=dtype)
    return Workload(lambda x: torch.softmax(x, -1), [x], bytes=2 * x.numel() * x.element_size())


def layer_norm(dtype: torch.dtype) -> Workload:
    x = [rand(8192, 4096, dtype=dtype, grad=True), *(rand(4096, dtype=dtype, grad=True) for _ in range(2))]
    bytes_ = 5 * x[0].numel() * x[0].element_size()
    return Workload(lambda x, w, b: F.layer_norm(x, (4096,), w, b), x, x, rand(8192, 4096, dtype=dtype), bytes_)


def cross_entropy() -> Workload:
    z = rand(8192, 50304, dtype=torch.bfloat16, grad=True)
    target = torch.randint(0, 50304, (8192,), device=DEVICE)
    return Workload(lambda z, t: F.cross_entropy(z.float(), t), [z, target], [z], bytes=4 * z.numel())


def mlp(widths: list[int], rows: int) -> Workload:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU()]
    model = nn.Sequential(*layers[:-1]).to(DEVICE)
    parameters = list(model.parameters())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            z = model(x)
        return F.mse_loss(z.float(), y)

    return Workload(loss, [rand(rows, widths[0]), rand(rows, widths[-1])], parameters)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "pointwise": pointwise,
    "softmax f32": lambda: softmax(torch.float32),
    "softmax bf16": lambda: softmax(torch.bfloat16),
    "layer norm f32": lambda: layer_norm(torch.float32),
    "layer norm bf16": lambda: layer_norm(torch.bfloat16),
    "cross entropy": cross_entropy,
    "mlp": lambda: mlp([1024, 4096, 4096, 1024], 8192),
    "small mlp": lambda: mlp([256] * 9, 256),
}


def milliseconds(run: Step, rounds: int = 7, target: float = 15.0) -> float:
    """Give the median time of one run on the device's clock, runs in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def several(count: int) -> float:
        begin.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / count

    several(3)
    count = max(3, min(200, int(target / max(several(3), 1e-3))))
    return sorted(several(count) for _ in range(rounds))[rounds // 2]


def captured(run: Step) -> float | None:
    """Give the time of the step as one graph; None where it cannot be captured."""
    stream = torch.cuda.Stream()
    try:
        with torch.cuda.stream(stream):
            run()
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return milliseconds(graph.replay)
    except RuntimeError:
        torch.cuda.synchronize()
        return None


def copy_rate() -> float:
    """Give the bytes that a large copy reads and writes in a millisecond."""
    a = torch.randn(1 << 28, device=DEVICE)
    b = torch.empty_like(a)
    return 8 * a.numel() / milliseconds(lambda: b.copy_(a))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--inductor", action="store_true", help="torch.compile beside it")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rate = copy_rate()
    print(f"copy: {rate / 1e9:.2f} TB/s on {torch.cuda.get_device_name()}")
    ways: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {"eager": lambda f: f}
    if chosen.inductor:
        ways["inductor"] = lambda f: torch.compile(f, dynamic=False)
    ways["isthmus"] = lambda f: isthmus.compile(f, dynamic=False)
    ways["with graphs"] = lambda f: isthmus.compile(f, dynamic=False, mode="reduce-overhead")
    print(
        f"{'ms (captured)':16}{'floor':>8}"
        + "".join(f"{name:>18}" for name in ways)
        + f"{'error':>10}{'compile s':>10}"
    )
    for name in chosen.names:
        workload = WORKLOADS[name]()
        row = f"{name:16}{workload.bytes / rate:8.3f}"
        seconds = error = 0.0
        for way, make in ways.items():
            try:
                run = workload.step(make(workload.function))
                begun = time.perf_counter()
                run()
                torch.cuda.synchronize()
                if way == "isthmus":
                    seconds = time.perf_counter() - begun
                run()
                run()
                ms = milliseconds(run)
                graph = captured(run) if way != "with graphs" else None
                row += f"{ms:9.3f} " + (f"({graph:.3f})" if graph is not None else "").rjust(8)
                if (way == "isthmus" and workload.seed is not None) or not workload.wanted:
                    error = (
                        workload.error(isthmus.compile(workload.function, dynamic=False)) if way == "isthmus" else error
                    )
            except Exception as failure:
                row += f"  {type(failure).__name__}".ljust(18)[:18]
                print(f"# {name}, {way}: {str(failure)[:300]}")
        print(f"{row}{error:10.1e}{seconds:10.2f}", flush=True)
        del workload
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
