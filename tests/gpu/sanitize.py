"""One run of each kind of kernel at ragged sizes, for a checker of memory, races and barriers to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --report-api-errors no \
        python -m tests.gpu.sanitize [NAME ...]

Without torch's caching every tensor is memory of its own, so that an access beyond one is seen. Values are compared
with eager's in float64 on the CPU: torch's own kernels have races that a checker reports. Prints a line for each kind;
the exit status is 1 where one is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isthmus

DEVICE = "cuda"


@dataclass(frozen=True)
class Case:
    """A function, its arguments, whether gradients are asked for, what may be off."""

    function: Callable[..., Tensor]
    arguments: Callable[[], Sequence[Tensor]]
    gradients: bool = True
    error: float = 2e-5
    options: dict[str, object] = field(default_factory=dict[str, object])
    dynamic: bool = False


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that a gradient is asked of."""
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def below(bound: int, *shape: int) -> Tensor:
    """Random indices."""
    return torch.randint(0, bound, shape, device=DEVICE)


def odd(*shape: int) -> Tensor:
    """Numbers that begin at an odd address."""
    count = torch.Size(shape).numel()
    return torch.randn(count + 1, device=DEVICE)[1:].view(shape).requires_grad_()


HALF = torch.bfloat16
OWN: dict[str, object] = {"contractions": "own"}

CASES: dict[str, Case] = {
    "pointwise": Case(lambda x, w: F.gelu(x * w) + x, lambda: (normal(37, 1001), normal(1001))),
    "pointwise, half": Case(
        lambda x, w: torch.tanh(x) * w, lambda: (normal(300, 520, dtype=HALF), normal(520)), error=1e-2
    ),
    "odd addresses": Case(lambda x, y: x.exp() * y, lambda: (odd(33, 130), odd(33, 130))),
    "rows in registers": Case(lambda x: torch.softmax(x, -1), lambda: (normal(67, 1000),)),
    "rows of a warp": Case(lambda x: torch.softmax(x, -1), lambda: (normal(1003, 24),)),
    "long rows": Case(lambda x: torch.softmax(x, -1), lambda: (normal(5, 40001),)),
    "long rows, half": Case(
        lambda x: torch.log_softmax(x.float(), -1), lambda: (normal(5, 50304, dtype=HALF),), error=1e-2
    ),
    "layer norm": Case(
        lambda x, w, b: F.layer_norm(x, (768,), w, b), lambda: (normal(1003, 768), normal(768), normal(768))
    ),
    "layer norm, ragged": Case(
        lambda x, w, b: F.layer_norm(x, (333,), w, b), lambda: (normal(517, 333), normal(333), normal(333))
    ),
    "column sums": Case(lambda x: x.exp().sum(0), lambda: (normal(5003, 77),)),
    "sums of all": Case(lambda x: (x * x).sum(), lambda: (normal(1000, 777),), error=1e-4),
    "loss": Case(lambda x, t: F.cross_entropy(x, t), lambda: (normal(131, 1001), below(1001, 131))),
    "loss, half": Case(
        lambda x, t: F.cross_entropy(x.float(), t),
        lambda: (normal(19, 50304, dtype=HALF), below(50304, 19)),
        error=1e-2,
    ),
    "scatter with owners": Case(lambda w, i: F.embedding(i, w), lambda: (normal(1000, 96), below(1000, 3001))),
    "scatter": Case(lambda x, i: torch.gather(x, 1, i), lambda: (normal(50, 70), below(70, 50, 33))),
    "running sums": Case(lambda x: x.cumsum(1), lambda: (normal(33, 1000),)),
    "positions of maxima": Case(lambda x: x.amax(1) + x.argmax(1), lambda: (normal(77, 1003),)),
    "windows": Case(lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (normal(2, 3, 17, 19),)),
    "transposed": Case(lambda x: (x.t() * 2).contiguous().cos(), lambda: (normal(101, 67),)),
    "concatenation": Case(lambda x, y: torch.cat([x, y], 1).sin(), lambda: (normal(10, 21), normal(10, 13))),
    "batch norm": Case(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda: (normal(4, 6, 9, 11), normal(6), normal(6)),
        error=1e-4,
    ),
    "attention": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: tuple(normal(2, 3, 37, 16) for _ in range(3)),
    ),
    "sizes that are symbols": Case(
        lambda x, w: torch.softmax(x * w, -1).sum(0), lambda: (normal(61, 515), normal(515)), dynamic=True
    ),
    "products by boxes": Case(
        lambda a, w, b: F.gelu(F.linear(a, w, b)),
        lambda: (normal(520, 328, dtype=HALF), normal(264, 328, dtype=HALF), normal(264, dtype=HALF)),
        error=2e-2,
        options=OWN,
    ),
    "products by warps": Case(
        lambda a, b: torch.relu(a @ b),
        lambda: (normal(131, 77, dtype=HALF), normal(77, 93, dtype=HALF)),
        error=2e-2,
        options=OWN,
    ),
    "products in batches": Case(
        lambda a, b: a @ b,
        lambda: (normal(3, 70, 72, dtype=HALF), normal(3, 72, 136, dtype=HALF)),
        error=2e-2,
        options=OWN,
    ),
}


def _is_exact(case: Case) -> bool:
    """Run a case; whether values and gradients are eager's in float64."""
    torch.manual_seed(0)
    given = case.arguments()
    exact = [t.detach().cpu().double().requires_grad_() if t.is_floating_point() else t.cpu() for t in given]
    compiled = isthmus.compile(case.function, capture="trace", dynamic=case.dynamic, options=case.options)
    found, wanted = compiled(*given), case.function(*exact)
    pairs = [(found, wanted)]
    if case.gradients:
        seed = torch.randn(found.shape, device=DEVICE).to(found.dtype)
        found.backward(seed)
        wanted.backward(seed.cpu().double())
        both = ((a.grad, b.grad) for a, b in zip(given, exact, strict=True))
        pairs += [(a, b) for a, b in both if a is not None and b is not None]
    return all((a.cpu().double() - b).norm() <= case.error * b.norm().clamp_min(1e-30) for a, b in pairs)


def _random_numbers() -> bool:
    x = torch.ones(301, 77, device=DEVICE, requires_grad=True)
    y = isthmus.compile(lambda x: F.dropout(x, 0.25), capture="trace")(x)
    y.sum().backward()
    return x.grad is not None and torch.equal(y, x.grad) and 0.2 < float((y == 0).float().mean()) < 0.3


def _whole_step() -> bool:
    def loss_of(m: nn.Module, x: Tensor) -> Tensor:
        return m(x).square().mean()

    m = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.Linear(65, 7)).to(DEVICE)
    step = isthmus.train_step(m, loss_of, torch.optim.AdamW(m.parameters()), max_norm=1.0, mode="default")
    losses = [float(step(torch.ones(19, 33, device=DEVICE))) for _ in range(3)]
    return losses[2] < losses[0]


def _index_error() -> bool:
    gather = isthmus.compile(lambda w, i: w[i] * 2, capture="trace")
    try:
        gather(torch.ones(50, 8, device=DEVICE), torch.full((9,), 50, device=DEVICE))
    except IndexError:
        return True
    return False


OTHERS: dict[str, Callable[[], bool]] = {
    "random numbers": _random_numbers,
    "whole step": _whole_step,
    "index error": _index_error,
}


def main(names: Sequence[str]) -> int:
    """Run the cases of these names, all by default; gives the exit status."""
    wrong = 0
    for name in names or (*CASES, *OTHERS):
        fine = _is_exact(CASES[name]) if name in CASES else OTHERS[name]()
        torch.cuda.synchronize()
        print(f"{'right' if fine else 'WRONG'}: {name}", flush=True)
        wrong += not fine
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
