"""PTX of a set of kernels: nothing outside is called, and ptxas takes it for every architecture."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import named_kernels as named
import pytest
import test_elementwise
import test_kernels
from kernel_text import PARALLEL, ROW, element, function, tensor
from run_grid import on_grid
from run_kernel import TORCH

from isthmus.codegen import nvptx
from isthmus.dialects import prim
from isthmus.passes.memory.schedule_gpu import schedule

ARCHES = ("sm_80", "sm_90a", "sm_100")


def assembler() -> str | None:
    """Where ptxas is: on the path, or in the wheel of the CUDA compiler."""
    found = shutil.which("ptxas")
    if found is None:
        places = (Path(p) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas" for p in sys.path)
        found = next((str(p) for p in places if p.exists()), None)
    return found


PTXAS = assembler()


def scheduled(text: str):
    kernel = on_grid(text).kernel
    schedule(kernel)
    return kernel


def row_kernel(dtype: str, n: int) -> str:
    t = element(dtype)
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : {t}
    %w = kernel.load {{operand = 1, map = [d1]}} : {t}
    %a = prim.mul %v, %w : {t}
    %s = kernel.reduce %a {{kind = "add", dims = [1]}} : {t}
    %d = prim.sub %v, %s : {t}
    kernel.store %d {{result = 0, map = [d0, d1]}}
    kernel.accumulate %v {{result = 1, kind = "add", map = [d1]}}"""
    results = [tensor([64, n], dtype), tensor([8, n], dtype)]
    return function([tensor([64, n], dtype), tensor([n], dtype)], results, [64, n], [PARALLEL, ROW], body, partitions=8)


def points_kernel(dtype: str) -> str:
    body = f"""
    %v = kernel.load {{operand = 0, map = [d0]}} : {element(dtype)}
    %a = prim.add %v, %v : {element(dtype)}
    kernel.store %a {{result = 0, map = [d0]}}"""
    return function([tensor([5000], dtype)], [tensor([5000], dtype)], [5000], [PARALLEL], body)


SCATTER = function(
    [tensor([60, 48]), tensor([900, 48]), tensor([900], "i64")],
    [tensor([60, 48])],
    [48, 900],
    [PARALLEL, ROW],
    """
    %i = kernel.load {operand = 2, map = [d1]} : i64
    %c = kernel.check %i {bound = 60, dim = 0} : i64
    %v = kernel.load {operand = 1, map = [d1, d0]} : f32
    kernel.store %v, %c {result = 0, map = [v0, d0], kind = "add"}""",
    more=", initial = [0]",
)


def collected() -> dict[str, str]:
    """Texts of all kinds of kernels."""
    texts = {n.lower(): getattr(named, n) for n in ("SOFTMAX", "LAYER_NORM", "LAYER_NORM_BACKWARD", "GELU")}
    texts |= {f"points {d}": points_kernel(d) for d in TORCH if d != "i1"}
    texts |= {
        f"rows {d} {n}": row_kernel(d, n) for d in ("f32", "bf16", "f16", "f64", "c64") for n in (24, 1000, 60000)
    }
    texts["scatter"] = SCATTER
    texts["all sums"] = test_kernels.softmax(17, 100)
    texts["symbols"] = test_kernels.softmax("s0", "s1", more=', symbols = ["s1", "s0"]')
    return texts


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_every_kernel(arch, tmp_path):
    assert PTXAS is not None
    kernels = [scheduled(text) for text in collected().values()]
    module = nvptx.emit(kernels, arch)
    source = tmp_path / "kernels.ptx"
    source.write_text(module.ptx)
    done = subprocess.run(
        [PTXAS, f"-arch={arch}", "-v", str(source), "-o", str(tmp_path / "kernels.cubin")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Compiling entry function") == len(module.kernels) > 30


@pytest.mark.parametrize("cls,dtype", test_elementwise.CASES, ids=lambda v: v if isinstance(v, str) else v.name)
def test_every_elementwise_primitive_is_in_line(cls, dtype):
    predicate = '{predicate = "eq"} ' if cls is prim.CmpOp else ""
    count = len(test_elementwise.inputs(cls, dtype))
    result = test_elementwise.result_dtype(cls, dtype)
    kernel = scheduled(test_elementwise.kernel(cls.name, [dtype] * count, result, 100, predicate))
    text = nvptx.emit([kernel], "sm_90").ptx
    assert "call" not in text and ".local" not in text
