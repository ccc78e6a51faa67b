"""PTX of contractions: ptxas takes it for every architecture, keeps sums in registers and products under way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kernel_text import tensor
from run_grid import on_grid
from test_ptx import ARCHES, PTXAS
from test_tensor_cores import AROUND, product

from isthmus import ir
from isthmus.codegen import nvptx
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.ir import Literal
from isthmus.passes.memory.contract_schedule_gpu import schedule_contraction
from isthmus.sizes import Size

WIDTHS, LAYOUTS = (256, 192, 128, 64), ("NN", "NT", "TN", "NT")


def scheduled(text: str, columns: int | None = None) -> k.ContractOp:
    """The contraction of a text, in tiles of so many columns or of what the schedule says."""
    op = on_grid(text).kernel
    assert isinstance(op, k.ContractOp)
    op.properties.pop("block")
    schedule_contraction(op)
    if columns is not None:
        batch, down, _ = op.grid.data  # type: ignore[union-attr]
        across = -(-op.sizes_[op.mnk[1]] // columns)  # type: ignore[operator]
        depth = 128 // ir.itemsize(ir.dtype_of(op.dot.y))
        op.properties |= {"tile": Literal.of((128, columns, depth)), "grid": Literal.of((batch, down, across))}
        op.properties["partitions"] = Literal.of(batch * down * across)
    return op


def around(m: int, n: int) -> str:
    more = [tensor([n]), tensor([m]), tensor([m, n], "bf16")]
    results = [tensor([m, n], "bf16"), tensor([m, n]), tensor([9, n])]
    return product(m, n, 320, body=AROUND, more=more, results=results)


def collected() -> list[k.ContractOp]:
    """All widths of tiles, layouts, dtypes; edges, batches, epilogues."""
    found = [scheduled(product(1024, 1024, 512, layout), c) for layout, c in zip(LAYOUTS, WIDTHS, strict=True)]
    found += [scheduled(product(512, 1000, 72, "TT", "f16"), c) for c in (192, 128)]
    found += [scheduled(around(1024, 768), c) for c in (256, 128)]
    found += [scheduled(product(1024, 1000, 96, dtype="f32"), c) for c in WIDTHS]
    found += [
        scheduled(product(1000, 200, 33, dtype="f32"), 64),
        scheduled(around(1000, 200)),
        scheduled(product(40, 64, 72, "NN", batch=(2, 3))),
    ]
    return found


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_every_contraction(arch: str, tmp_path: Path) -> None:
    assert PTXAS is not None
    source = tmp_path / "kernels.ptx"
    module = nvptx.emit(collected(), arch)
    source.write_text(module.ptx)
    command = [PTXAS, f"-arch={arch}", "-v", str(source), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Compiling entry function") == len(module.kernels) == 15
    assert "arning" not in done.stderr  # such as products that had to wait for each other
    spilled = [line for line in done.stderr.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
    assert len(spilled) <= 1, spilled


@pytest.mark.parametrize("aligned", [True, False])
def test_what_a_launch_is_given(aligned: bool) -> None:
    op = scheduled(product(1024, 512, 256, "NN"), 128)
    (made,) = nvptx.emit([op], "sm_90a", aligned=aligned).kernels.values()
    assert made.grid == 32
    if not aligned:  # rows that begin anywhere are copied by threads
        assert made.maps == () and made.resident == 0 and made.alignment == 1
        return
    a, b, c = made.maps
    assert made.resident == 1 and made.block == 384 and made.shared_bytes <= 227 << 10
    assert (a.buffer, a.shape, a.strides, a.box) == (0, (256, 1024), (512,), (64, 128))
    assert (b.buffer, b.shape, b.strides, b.box) == (1, (512, 256), (1024,), (64, 64))
    assert (c.buffer, c.shape, c.strides, c.box) == (2, (512, 1024), (1024,), (64, 64))


def test_factors_in_f32_arrive_rounded_to_tf32() -> None:
    op = scheduled(product(1024, 512, 256, "NT", "f32"), 128)
    module = nvptx.emit([op], "sm_90a")
    (made,) = module.kernels.values()
    assert [(m.dtype, m.box) for m in made.maps] == [("tf32", (32, 128)), ("tf32", (32, 128))]
    assert "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32" in module.ptx


@pytest.mark.parametrize("change", ["exact", "NN", "TN"])
def test_what_has_no_code_in_tf32(change: str) -> None:
    text = product(128, 128, 64, "NT" if change == "exact" else change, "f32")
    op = scheduled(text.replace(', precision = "tf32"', "") if change == "exact" else text, 128)
    with pytest.raises(UnsupportedError, match=r"tensor cores of f32|do not run along k"):
        nvptx.emit([op], "sm_90a")


def test_an_operand_of_the_epilogue_comes_as_boxes() -> None:
    (made,) = nvptx.emit([scheduled(around(1024, 768), 128)], "sm_90a").kernels.values()
    assert [m.buffer for m in made.maps] == [0, 1, 5, 4]


def test_sizes_that_a_launch_tells() -> None:
    text = product(128, 256, 64, "NN", batch=("s0",)).replace("grid = ", 'symbols = ["s0"], grid = ')
    op = scheduled(text, 128)
    (made,) = nvptx.emit([op], "sm_90a").kernels.values()
    assert made.symbols == ("s0",) and made.grid == 2 * Size.symbol("s0")
    assert [m.shape[-1] for m in made.maps] == [Size.symbol("s0")] * 3
    assert "cp.async.bulk.tensor.3d" in nvptx.emit([op], "sm_90a").ptx


def test_a_factor_that_is_the_same_for_all_rows_is_copied_by_threads() -> None:
    text = product(128, 128, 64).replace("map = [d0, d2]", "map = [0, d2]")
    (made,) = nvptx.emit([scheduled(text, 128)], "sm_90a").kernels.values()
    assert made.maps == ()
