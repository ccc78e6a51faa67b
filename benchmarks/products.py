"""Who multiplies faster, a kernel of ours or the library: plain products, by shape and layout.

Usage: python benchmarks/products.py [--seconds 0.3] [--dtype f32] [--layouts NN NT TN] [MxNxK ...]

Contestants take turns within one process; figures are the 10 % quantile of process CPU time with one
thread and the share of the machine's peak, which a loop of multiply-adds in registers measures.
`ratio` is ours over the library's: below 1 a kernel of ours is faster. Both write into memory that is there.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import I64, PTR, Function, Module, Type
from isthmus.dialects import kernel, new_context
from isthmus.dialects.target import Target
from isthmus.driver.native import for_host
from isthmus.passes.pipelines import run_passes
from isthmus.runtime import cpu
from isthmus.runtime.support import external_symbols

SHAPES = (
    (128, 128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (1024, 1024, 256),
    (1024, 256, 1024),
    (2048, 256, 1024),
    (64, 784, 128),
    (64, 128, 784),
    (128, 784, 64),
    (8, 1024, 256),
    (16, 1024, 256),
    (32, 1024, 256),
    (64, 1024, 256),
)
LAYOUTS = ("NN", "NT", "TN")
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
Step = Callable[[], object]


def product_text(m: int, n: int, k: int, layout: str, dtype: str = "f32") -> str:
    """A function with one contraction, not yet scheduled."""
    a, b = layout
    left, right = (f"{m}x{k}" if a == "N" else f"{k}x{m}"), (f"{k}x{n}" if b == "N" else f"{n}x{k}")
    return f"""func.func @f(%a: tensor<{left}x{dtype}>, %b: tensor<{right}x{dtype}>) -> tensor<{m}x{n}x{dtype}> {{
  %r = kernel.contract %a, %b {{sizes = [{m}, {n}, {k}], classes = ["m", "n", "k"]}} ({{
    %u = kernel.load {{operand = 0, map = [{"d0, d2" if a == "N" else "d2, d0"}]}} : {dtype}
    %v = kernel.load {{operand = 1, map = [{"d2, d1" if b == "N" else "d1, d2"}]}} : {dtype}
    %y = kernel.dot %u, %v {{dims = [2]}} : {dtype}
    kernel.store %y {{result = 0, map = [d0, d1]}}
  }}) : tensor<{m}x{n}x{dtype}>
  func.return %r : tensor<{m}x{n}x{dtype}>
}}"""


def own_product(text: str, tensors: Sequence[Tensor]) -> tuple[Step, float]:
    """Compile the one kernel of a text; gives a call of all its partitions, and the seconds that compiling took."""
    context = new_context()
    module = Parser(context, text).parse_module()
    run_passes(context, module, [for_host("schedule")])
    (found,) = kernel.launches(ir.function(module, "f"))
    contraction = cast(kernel.ContractOp, found)
    target = cpu.host_target()
    begin = time.perf_counter()
    function = _load(contraction, target)
    seconds = time.perf_counter() - begin
    buffers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
    sizes = (ctypes.c_int64 * 1)()
    count = cast(int, contraction.partitions_)
    return (lambda: function(buffers, sizes, 0, count)), seconds


def _load(contraction: kernel.ContractOp, target: Target) -> Callable[..., None]:
    module = Module(vector_bits=target.vector_bits)
    name = emit_kernel(module, contraction, target)
    loaded = cpu.load([cpu.compile_text(str(module), target)], external_symbols())
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = prototype(loaded[name])
    function.keep = loaded  # pyright: ignore[reportAttributeAccessIssue]
    return function


def peak(target: Target) -> float:
    """Floating-point operations a second of one core: a loop of twelve independent multiply-adds."""
    module = Module(vector_bits=target.vector_bits)
    f = Function(module, "peak", [("x", PTR), ("n", I64)])
    x, n = f.arguments
    lanes, chains, repeats = target.vector_bits // 32, 12, 4
    vector = Type.of("float", lanes)
    factor = f.load(x, vector)
    slots = [f.slot(vector) for _ in range(chains)]
    for slot in slots:
        f.store(factor, slot, 64)
    with f.loop(0, n):
        for slot in slots * repeats:
            f.store(f.fma(factor, factor, f.load(slot, vector, 64)), slot, 64)
    total = f.load(slots[0], vector, 64)
    for slot in slots[1:]:
        total = total + f.load(slot, vector, 64)
    f.store(total, x)
    f.finish()
    loaded = cpu.load([cpu.compile_text(str(module), target)])
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded["peak"])
    memory, steps = torch.zeros(64), 100_000
    (seconds,) = alternating([lambda: run(memory.data_ptr(), steps)], 0.3)
    return 2.0 * lanes * chains * repeats * steps / seconds


def alternating(steps: Sequence[Step], seconds: float) -> list[float]:
    """The 10 % quantile of the time of a call, contestants taking turns for so many seconds each."""
    clock = time.process_time
    repeats: list[int] = []
    for step in steps:  # a sample is at least a millisecond
        step()
        begin = clock()
        step()
        repeats.append(max(1, int(1e-3 / max(clock() - begin, 1e-7))))
    samples: list[list[float]] = [[] for _ in steps]
    stop = time.perf_counter() + seconds * len(steps)
    while time.perf_counter() < stop or len(samples[0]) < 5:
        for step, count, own in zip(steps, repeats, samples, strict=True):
            begin = clock()
            for _ in range(count):
                step()
            own.append((clock() - begin) / count)
    return [sorted(own)[len(own) // 10] for own in samples]


def factors(m: int, n: int, k: int, layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    a = torch.randn(m, k) if layout[0] == "N" else torch.randn(k, m)
    b = torch.randn(k, n) if layout[1] == "N" else torch.randn(n, k)
    return a.to(dtype), b.to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    top = peak(cpu.host_target())
    print(f"peak of one core {top / 1e9:.1f} GFLOPS")
    print(f"{'MxNxK':>16} {'':3} {'library':>14} {'own':>14} {'ratio':>7} {'compiled':>9}")
    shapes = [tuple(map(int, s.split("x"))) for s in options.shapes] or SHAPES
    dtype = DTYPES[options.dtype]
    for m, n, k in shapes:
        tolerance = 1e-5 * k**0.5 + torch.finfo(dtype).eps
        for layout in options.layouts:
            a, b = factors(m, n, k, layout, dtype)
            left, right = (a if layout[0] == "N" else a.t()), (b if layout[1] == "N" else b.t())
            y, z = torch.empty(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
            run, compiled = own_product(product_text(m, n, k, layout, options.dtype), (a, b, z))
            library, own = alternating([lambda: torch.mm(left, right, out=y), run], options.seconds)  # noqa: B023
            assert (y - z).abs().max() <= tolerance * (1 + y.abs().max())
            shares = [2.0 * m * n * k / t / top for t in (library, own)]
            figures = " ".join(f"{t * 1e6:8.0f} us {s:4.0%}" for t, s in zip((library, own), shares, strict=True))
            print(
                f"{m}x{n}x{k}".rjust(16), layout, figures, f"{own / library:7.3f} {compiled * 1e3:6.0f} ms", flush=True
            )


if __name__ == "__main__":
    main()
