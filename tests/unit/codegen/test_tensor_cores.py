"""Contractions by warps on a simulated grid: layouts, dtypes, edges, alignments, what is computed from the product."""

from __future__ import annotations

import pytest
import torch
from contraction_text import contraction
from kernel_text import tensor
from run_grid import on_grid
from run_kernel import TORCH

from isthmus import ir
from isthmus.ir import Literal


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def product(m, n, k, layout="NT", dtype="bf16", body=None, more=(), results=None, batch=()) -> str:
    """A product of matrices as they lie, and `body` after it: %d is the product, operands from 2 on are `more`."""
    rank = len(batch)
    lead = "".join(f"d{i}, " for i in range(rank))
    dm, dn, dk = (f"d{rank + i}" for i in range(3))
    maps = [f"{lead}{dm}, {dk}" if layout[0] == "N" else f"{lead}{dk}, {dm}"]
    maps.append(f"{lead}{dk}, {dn}" if layout[1] == "N" else f"{lead}{dn}, {dk}")
    shapes = [[m, k] if layout[0] == "N" else [k, m], [k, n] if layout[1] == "N" else [n, k]]
    text = f"""
    %a = kernel.load {{operand = 0, map = [{maps[0]}]}} : {dtype}
    %b = kernel.load {{operand = 1, map = [{maps[1]}]}} : {dtype}
    %d = kernel.dot %a, %b {{dims = [{rank + 2}]{', precision = "tf32"' if dtype == "f32" else ""}}} : {dtype}"""
    text += body or f"\n    kernel.store %d {{result = 0, map = [{lead}{dm}, {dn}]}}"
    operands = [tensor([*batch, *s], dtype) for s in shapes]
    results = results or [tensor([*batch, m, n], dtype)]
    return contraction([*operands, *more], results, [*batch, m, n, k], text)


def run(text: str, *inputs: torch.Tensor, columns: int = 64, aligned: bool = True):
    """Simulated and interpreted results, with tiles of so many columns."""
    case = on_grid(text)
    op = case.kernel
    batch = 1
    for d in op.batch:
        batch *= op.sizes_[d]
    m, n, _ = (op.sizes_[d] for d in op.mnk)
    grid = (batch, -(-m // 128), -(-n // columns))
    op.properties.pop("block")
    depth = 128 // ir.itemsize(ir.dtype_of(op.dot.y))
    op.properties |= {"tile": Literal.of((128, columns, depth)), "grid": Literal.of(grid)}
    op.properties["partitions"] = Literal.of(grid[0] * grid[1] * grid[2])
    return case(*inputs, aligned=aligned), case.interpreted(*inputs)


def factors(m, n, k, layout="NT", dtype="bf16", batch=()):
    a, b = torch.randn(*batch, m, k), torch.randn(*batch, k, n)
    pairs = zip((a, b), layout, strict=True)
    return [(x if way == "N" else x.mT.contiguous()).to(TORCH[dtype]) for x, way in pairs]


def close(found, wanted, dtype="bf16") -> None:
    """Equal up to the order of a sum and one rounding."""
    assert not found.isnan().any()
    error = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 1e-5}[dtype]
    torch.testing.assert_close(found.double(), wanted.double(), rtol=error, atol=error * 8)


@pytest.mark.parametrize("layout,columns", [("NN", 64), ("NT", 256), ("TN", 192), ("TT", 128), ("TN", 64), ("NN", 256)])
def test_every_layout(layout, columns):
    (y,), (wanted,) = run(product(128, columns, 128, layout), *factors(128, columns, 128, layout), columns=columns)
    close(y, wanted)


@pytest.mark.parametrize("layout,dtype", [("NN", "bf16"), ("NT", "f16"), ("TN", "bf16"), ("TT", "f16")])
@pytest.mark.parametrize("m,n,k", [(40, 72, 200), (130, 66, 36), (33, 35, 77)])
def test_edges_and_alignments(m, n, k, layout, dtype):
    (y,), (wanted,) = run(product(m, n, k, layout, dtype), *factors(m, n, k, layout, dtype))
    close(y, wanted, dtype)


def test_factors_in_f32_are_rounded_to_tf32():
    m, n, k = 130, 66, 77
    a, b = factors(m, n, k, dtype="f32")
    (y,), _ = run(product(m, n, k, dtype="f32"), a, b)
    rounded = [((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32) for x in (a, b)]
    close(y, rounded[0].double() @ rounded[1].double().T, "f32")
    assert (y - a @ b.T).abs().max() > 1e-4  # else nothing is tested


@pytest.mark.parametrize("columns", [64, 128, 192, 256])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_product_in_tf32(columns, aligned):
    a, b = (x.bfloat16().float() for x in factors(128, columns, 96, dtype="f32"))
    (y,), (wanted,) = run(product(128, columns, 96, dtype="f32"), a, b, columns=columns, aligned=aligned)
    close(y, wanted, "f32")


def test_more_tiles_than_a_group_of_rows_and_unaligned_buffers():
    inputs = factors(17 * 128 + 8, 72, 64)
    (y,), (wanted,) = run(product(17 * 128 + 8, 72, 64), *inputs)
    close(y, wanted)
    (y,), (wanted,) = run(product(40, 72, 64), *factors(40, 72, 64), aligned=False)
    close(y, wanted)


def test_batches():
    inputs = factors(40, 64, 72, "NN", batch=(2, 3))
    (y,), (wanted,) = run(product(40, 64, 72, "NN", batch=(2, 3)), *inputs)
    close(y, wanted)


AROUND = """
    %w = prim.convert %d : f32
    %c = kernel.load {operand = 2, map = [d1]} : f32
    %z = prim.add %w, %c : f32
    %g = prim.tanh %z : f32
    %s = kernel.load {operand = 3, map = [d0]} : f32
    %h = prim.mul %g, %s : f32
    %r = kernel.load {operand = 4, map = [d0, d1]} : bf16
    %q = prim.convert %r : f32
    %o = prim.add %h, %q : f32
    %n = prim.convert %o : bf16
    kernel.store %n {result = 0, map = [d0, d1]}
    kernel.store %o {result = 1, map = [d0, d1]}
    kernel.accumulate %o {result = 2, map = [d1], kind = "add"}"""


@pytest.mark.parametrize("m,n", [(130, 72), (256, 128), (40, 33)])
def test_what_is_computed_from_the_product(m, n):
    more = [tensor([n]), tensor([m]), tensor([m, n], "bf16")]
    results = [tensor([m, n], "bf16"), tensor([m, n]), tensor([5, n])]
    inputs = [*factors(m, n, 64), torch.randn(n), torch.randn(m), torch.randn(m, n).bfloat16()]
    found, wanted = run(product(m, n, 64, body=AROUND, more=more, results=results), *inputs)
    for y, w, dtype in zip(found, wanted, ("bf16", "f32", "f32"), strict=True):
        torch.testing.assert_close(y.double(), w.double(), rtol=2e-2, atol=5e-2 if dtype == "bf16" else 0.5)
    torch.testing.assert_close(found[2].sum(0), found[1].sum(0), rtol=1e-4, atol=1e-3)
    assert not found[2][-(-m // 128) :].any()
