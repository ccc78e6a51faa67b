"""Who multiplies faster on a GPU, a kernel of ours or cuBLAS: products in bf16 and TF32, and with epilogues.

    python benchmarks/gpu_products.py [--columns 256 192 128 64]

TFLOP/s, the median of rounds in which the contestants take turns without a pause, in CUDA graphs: a GPU that has rested
is faster for a while. `ours` has the tile that the schedule chooses; --columns times others, too. Every result is
compared with the library's. Then layers with something around the product: milliseconds, eager and compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.parser import Parser

import isthmus
from isthmus import ir
from isthmus.codegen.cpu.kernel import kernel_name
from isthmus.dialects import kernel, new_context
from isthmus.driver.on_device import _generator  # pyright: ignore[reportPrivateUsage]
from isthmus.ir import Literal
from isthmus.passes.memory.contract_schedule_gpu import schedule_contraction
from isthmus.runtime.cuda_driver import driver
from isthmus.runtime.cuda_kernels import KernelLoader, Loaded
from isthmus.runtime.cuda_launch import Launcher
from isthmus.runtime.torch_private import current_stream

Step = Callable[[], object]
SHAPES = (
    *(f"{layout} {n} {n} {n}" for n in (8192, 4096) for layout in ("NT", "NN", "TN")),
    "NT 1024 1024 1024",
    *(f"NT 8192 {n} {k}" for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768))),
    *(f"NN 8192 {n} {k}" for n, k in ((768, 2304), (768, 3072), (3072, 768), (768, 50304))),
    *(f"TN {m} {n} 8192" for m, n in ((2304, 768), (768, 3072), (50304, 768))),
)
TF32_SHAPES = (
    *(f"NT {n} {n} {n}" for n in (8192, 4096, 1024)),
    *(f"NT 8192 {n} {k}" for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (4096, 4096))),
)
"""Of f32 a kernel of ours takes factors that run along k."""
LAYERS = ((8192, 8192, 8192), (8192, 3072, 768), (8192, 768, 3072), (8192, 4096, 4096), (1000, 1096, 328))


def product(layout: str, m: int, n: int, k: int, columns: int | None = None, dtype: str = "bf16") -> kernel.ContractOp:
    """A scheduled product of matrices as they lie; in tiles of so many columns, or of what the schedule chooses."""
    shapes = ((m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k))
    maps = ("d0, d2" if layout[0] == "N" else "d2, d0", "d2, d1" if layout[1] == "N" else "d1, d2")
    types = [f"tensor<{rows}x{width}x{dtype}>" for rows, width in (*shapes, (m, n))]
    text = f"""func.func @f(%a: {types[0]}, %b: {types[1]}) -> {types[2]} {{
  %r = kernel.contract %a, %b {{sizes = [{m}, {n}, {k}], classes = ["m", "n", "k"]}} ({{
    %u = kernel.load {{operand = 0, map = [{maps[0]}]}} : {dtype}
    %v = kernel.load {{operand = 1, map = [{maps[1]}]}} : {dtype}
    %y = kernel.dot %u, %v {{dims = [2]{', precision = "tf32"' if dtype == "f32" else ""}}} : {dtype}
    kernel.store %y {{result = 0, map = [d0, d1]}}
  }}) : {types[2]}
  func.return %r : {types[2]}
}}"""
    function = ir.function(Parser(new_context(), text).parse_module(), "f")
    (op,) = kernel.launches(function)
    assert isinstance(op, kernel.ContractOp)
    op.detach()
    schedule_contraction(op)
    if columns is not None:
        grid = (1, -(-m // 128), -(-n // columns))
        depth = 128 // ir.itemsize(dtype)
        op.properties |= {"tile": Literal.of((128, columns, depth)), "grid": Literal.of(grid)}
        op.properties["partitions"] = Literal.of(grid[1] * grid[2])
    return op


def launcher(op: kernel.ContractOp, tensors: list[Tensor]) -> Step:
    """Compile a product; gives what launches it on these tensors."""
    loader, name, generate = KernelLoader(driver(), 0), kernel_name(op), _generator(op)
    made = loader.load({name: generate})[name]
    assert isinstance(made, Loaded), made
    launch, pointers = Launcher(loader, name, generate, made), [t.data_ptr() for t in tensors]
    return lambda: launch(pointers, {}, (), current_stream(tensors[0].device))


def race(steps: Mapping[str, Step], milliseconds: float = 6.0, rounds: int = 5) -> dict[str, float]:
    """Milliseconds of each contestant."""
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
    for name, step in steps.items():
        step()
        count = max(2, min(200, int(milliseconds / max(1e-3, _elapsed(step)))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                step()
        graphs[name] = graph, count
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, (graph, count) in graphs.items():
            times[name].append(_elapsed(graph.replay) / count)
    return {name: sorted(t[1:])[rounds // 2] for name, t in times.items()}


def _elapsed(step: Step) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def products(shape: str, columns: list[int], dtype: str = "bf16") -> None:
    """Print a line of the table of products."""
    number = torch.bfloat16 if dtype == "bf16" else torch.float32
    layout, *sizes = shape.split()
    m, n, k = map(int, sizes)
    a = torch.randn((m, k) if layout[0] == "N" else (k, m), device="cuda").to(number)
    b = torch.randn((k, n) if layout[1] == "N" else (n, k), device="cuda").to(number)
    left, right = a if layout[0] == "N" else a.t(), b if layout[1] == "N" else b.t()
    wanted, found = (torch.full((m, n), float("nan"), device="cuda", dtype=number) for _ in range(2))
    steps: dict[str, Step] = {"cublas": lambda: torch.mm(left, right, out=wanted)}
    steps["cublas"]()
    chosen = product(layout, m, n, k, dtype=dtype)
    for name, op in (("ours", chosen), *((str(c), product(layout, m, n, k, c, dtype)) for c in columns)):
        steps[name] = launcher(op, [a, b, found.fill_(float("nan"))])
        steps[name]()
        assert float((found - wanted).norm() / wanted.norm()) < 2e-3, (shape, name)
    times = race(steps)
    rates = "  ".join(f"{name} {2e-9 * m * n * k / t:6.1f}" for name, t in times.items())
    tile = chosen.tile.data[1] if chosen.tile is not None else 0  # pyright: ignore
    print(f"{shape:22}  {rates}  ratio {times['cublas'] / times['ours']:.3f}  ({tile} columns)", flush=True)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    "tanh gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "residual": lambda x, w, b, r: F.linear(x, w, b) + r,
}


def layer(m: int, n: int, k: int, name: str, dtype: torch.dtype) -> None:
    """Print a layer with something around the product."""
    given = [torch.randn(*s, device="cuda").to(dtype) for s in ((m, k), (n, k), (n,), (m, n))]
    given[0] /= k**0.5

    def step(how: str | None) -> Step:
        run = FUNCTIONS[name]
        if how is not None:
            run = isthmus.compile(run, dynamic=False, options={"contractions": how})
        return lambda: run(*given)

    with torch.no_grad():
        times = race({how or "eager": step(how) for how in (None, "library", "joined")}, 3.0)
    print(
        f"{str(dtype)[6:]:9}{m}x{n}x{k} {name:9}  " + "  ".join(f"{how} {t:.4f}" for how, t in times.items()),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="*", default=[])
    chosen: list[int] = parser.parse_args().columns
    for shape in SHAPES:
        products(shape, chosen)
    torch.backends.cuda.matmul.allow_tf32 = True
    print("TF32")
    for shape in TF32_SHAPES:
        products(shape, chosen, "f32")
    for dtype in (torch.bfloat16, torch.float32):
        for sizes in LAYERS:
            for name in FUNCTIONS:
                layer(*sizes, name, dtype)


if __name__ == "__main__":
    main()
