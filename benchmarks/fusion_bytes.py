"""How many kernels a training step becomes and how many bytes they move, from the index maps; no timing.

Usage: python benchmarks/fusion_bytes.py [--native] [--strategy min-traffic] [--contractions large] [name ...]
`--native` runs the programs as machine code and compares with eager. The last columns are what another compiler's own
scheduler counts on the same programs, where it was measured (kernels and megabytes, forward / backward).

Bytes of library calls are not counted: they are the same whoever fuses. Of a contraction of our own that is counted
which a library call would not have moved: what its prologue reads of each factor beyond the factor's own bytes, and
what its epilogue reads and writes beyond one product. What is saved below the library's bytes is not credited.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.passes.analysis import cost


@dataclass(frozen=True)
class Case:
    """A program, and what to compare with: kernels and MB of forward and backward, a prototype's and a peer's."""

    make: Callable[[], tuple[Callable[..., Tensor], list[Tensor]]]
    target: str
    peer: str


def _leaf(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, requires_grad=grad)


def layernorm_residual() -> tuple[Callable[..., Tensor], list[Tensor]]:
    def f(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return F.layer_norm(h, (768,), w, b), h

    return f, [_leaf(2048, 768), _leaf(2048, 768), _leaf(768), _leaf(768)]


def cross_entropy() -> tuple[Callable[..., Tensor], list[Tensor]]:
    target = torch.randint(0, 8192, (1024,))
    return F.cross_entropy, [_leaf(1024, 8192), target]


def batch_norm_relu() -> tuple[Callable[..., Tensor], list[Tensor]]:
    bn = nn.BatchNorm2d(64)
    return (lambda x: F.relu(bn(x))), [_leaf(16, 64, 56, 56)]


def rmsnorm_swiglu() -> tuple[Callable[..., Tensor], list[Tensor]]:
    def f(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w
        return F.silu(h) * g

    return f, [_leaf(2048, 1024), _leaf(1024), _leaf(2048, 1024)]


def chain() -> tuple[Callable[..., Tensor], list[Tensor]]:
    def f(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        h = torch.tanh(x + b) * y
        h = torch.sigmoid(h) + x * 0.5
        return F.gelu(h - b) * y

    return f, [_leaf(2048, 1024), _leaf(2048, 1024), _leaf(1024)]


def gelu_mlp() -> tuple[Callable[..., Tensor], list[Tensor]]:
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    return (lambda x: x + model(x)), [_leaf(1024, 256)]


class Gated(nn.Module):
    """The second half of a layer of a Llama."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.scale
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def swiglu_block() -> tuple[Callable[..., Tensor], list[Tensor]]:
    return Gated(512, 1024), [_leaf(1024, 512)]


def softmax() -> tuple[Callable[..., Tensor], list[Tensor]]:
    return (lambda x: torch.softmax(x, -1)), [_leaf(4096, 1024)]


class Block(nn.Module):
    """A transformer layer with attention of the library."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        heads = [z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """A small language model and its loss."""

    def __init__(self, layers: int, d: int = 256, heads: int = 4, vocabulary: int = 4096, length: int = 256) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


def gpt(layers: int = 4) -> tuple[Callable[..., Tensor], list[Tensor]]:
    tokens = torch.randint(0, 4096, (4, 256))
    return GPT(layers), [tokens, tokens.roll(-1)]


CASES = {
    "layernorm+residual": Case(layernorm_residual, "1, 1; 25.2, 25.2", "2, 2; 31.5, 37.8"),
    "cross-entropy": Case(cross_entropy, "2, 1; 33.6, 67.1", "3, 3; 67.1, 134.3"),
    "batch norm+relu": Case(batch_norm_relu, "1, 1; 28.9, 41.7", "2, 2; 41.7, 70.7"),
    "rmsnorm+swiglu": Case(rmsnorm_swiglu, "1, 1; 33.6, 58.7", "1, 3; 33.6, 83.9"),
    "chain": Case(chain, "1, 1; 25.2, 42.0", "1, 2; 25.2, 75.5"),
    "softmax": Case(softmax, "1, 1; 33.6, 50.3", ""),
    "gelu mlp": Case(gelu_mlp, "2, 2; 11.5, 15.7", "2, 3; 11.5, 17.8"),
    "swiglu block": Case(swiglu_block, "3, 2; 23.1, 31.5", "2, 3; 16.8, 33.6"),
    "gpt": Case(gpt, "17, 25; 95.5, 160.0", "33, 67; 130.7, 248.0"),
    "gpt 12": Case(lambda: gpt(12), "", ""),
}


def moved(func: FuncOp) -> tuple[int, int, int, float]:
    """Give kernels, distinct kernels, library calls, and the megabytes that kernels move."""
    kernels = [op for op in kernel.launches(func) if isinstance(op, kernel.LoopNest)]
    externs = sum(isinstance(op, kernel.ExternOp) for op in kernel.launches(func))
    total = sum(moved_op(op) for op in kernels)
    return len(kernels), len({kernel.key(op) for op in kernels}), externs, total / 1e6


def moved_op(op: kernel.LoopNest) -> int:
    """Give the bytes that one kernel moves, of a contraction those that a library call would not."""
    written = sum(cost.numeric(ir.nbytes(r)) for r in op.results)
    if isinstance(op, kernel.FusedOp):
        return read(op, op.block.ops) + written
    *batch, m, n, k = (cost.numeric(size) for size in op.sizes_)
    itemsize = math.prod(batch) * ir.itemsize(ir.dtype_of(op.dot.y))
    first, second = computing(op.dot.a), computing(op.dot.b)
    after = [o for o in op.block.ops if o not in first and o not in second]
    moves = (read(op, first), m * k), (read(op, second), k * n), (read(op, after) + written, m * n)
    return sum(max(0, own - elements * itemsize) for own, elements in moves)


def computing(value: SSAValue) -> set[Operation]:
    """Give the ops of a kernel's body that a value is computed from."""
    found: set[Operation] = set()
    stack = [value]
    while stack:
        op = stack.pop().owner
        if isinstance(op, Operation) and op not in found:
            found.add(op)
            stack += op.operands
    return found


def read(op: kernel.LoopNest, ops: Iterable[Operation]) -> int:
    """Give the bytes that these ops of a kernel's body read, of each buffer at most all."""
    touched: dict[SSAValue, int] = {}
    varying = kernel.varying(op)
    for access in ops:
        if isinstance(access, kernel.LoadOp):
            points = cost.product(tuple(op.sizes_[d] for d in varying[access.y]))
            source = op.inputs[cast(int, access.operand.data)]
            touched[source] = touched.get(source, 0) + cost.numeric(points) * ir.itemsize(ir.dtype_of(source))
    return sum(min(n, cost.numeric(ir.nbytes(v))) for v, n in touched.items())


def kernels_of(
    f: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    backend: str,
    strategy: str = "min-cut",
    contractions: str = "library",
) -> tuple[dict[str, ModuleOp], list[Tensor]]:
    """Compile and run forward and backward; gives the kernels, and outputs with gradients."""
    session = Session(Options(backend=backend, strategy=strategy, contractions=contractions))
    compiled, _ = compile_in(session, f, "dynamo")
    results = step(compiled, f, inputs)
    (program,) = session.programs
    return program.lowering.kernels, results


def step(run: Callable[..., Tensor], f: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs and gradients of sum(out · fixed)."""
    outputs = run(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    leaves = [x for x in inputs if x.requires_grad]
    leaves += list(f.parameters()) if isinstance(f, nn.Module) else []
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(o.shape, generator=generator) for o in outputs]
    gradients = torch.autograd.grad(outputs, leaves, seeds)
    return [o.detach() for o in outputs] + list(gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--strategy", default="min-cut", help="how forward and backward are cut")
    who = ("auto", "library", "large", "own")
    parser.add_argument("--contractions", default="auto", choices=who, help="who multiplies")
    options = parser.parse_args()
    print(
        f"{'program':20} {'kernels f, b':>14} {'distinct':>9} {'calls':>8} {'MB f, b':>16} {'target':>22} {'peer':>22}"
    )
    for name, case in CASES.items():
        if options.names and name not in options.names:
            continue
        torch.manual_seed(0)
        f, inputs = case.make()
        begin = time.perf_counter()
        kernels, results = kernels_of(f, inputs, "native", options.strategy, options.contractions)
        seconds = time.perf_counter() - begin
        rows = [moved(ir.function(kernels[d], d)) for d in ("forward", "backward")]
        counts, distinct, calls = (", ".join(str(r[k]) for r in rows) for k in range(3))
        megabytes = ", ".join(f"{r[3]:.1f}" for r in rows)
        print(f"{name:20} {counts:>14} {distinct:>9} {calls:>8} {megabytes:>16} {case.target:>22} {case.peer:>22}")
        if options.native:
            error = max(
                ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item()
                for a, b in zip(results, step(f, f, inputs), strict=True)
            )
            print(f"{'':20} largest relative difference from eager {error:.1e}, compiled in {seconds:.1f} s")


if __name__ == "__main__":
    main()
