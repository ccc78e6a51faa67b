"""Text of a kernel, linked, loaded and launched by the real driver."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from isthmus.diagnostics import CompileError
from isthmus.runtime import cache
from isthmus.runtime.cuda_driver import driver
from isthmus.runtime.cuda_kernels import Generated, KernelLoader, LaunchFacts, Loaded
from isthmus.runtime.cuda_launch import Launcher
from isthmus.runtime.torch_private import current_stream
from isthmus.sizes import Size

FILL = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 p, .param .u64 n) {
  .reg .b64 %r<8>; .reg .b32 %i<4>;
  ld.param.u64 %r1, [p];
  ld.param.u64 %r2, [n];
  cvta.to.global.u64 %r1, %r1;
  mov.u32 %i1, %ctaid.x;
  mul.wide.u32 %r3, %i1, 8;
  add.u64 %r1, %r1, %r3;
  st.global.u64 [%r1], %r2;
  ret;
}
"""


def fill(arch: str, aligned: bool) -> Generated:
    return Generated(lambda: FILL, LaunchFacts("fill", 1, Size.symbol("n"), 0, 16 if aligned else 1, ("n",)))


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelLoader:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    return KernelLoader(driver(), 0)


def launcher(loader: KernelLoader) -> Launcher:
    made = loader.load({"fill": fill})["fill"]
    assert isinstance(made, Loaded)
    return Launcher(loader, "fill", fill, made)


def test_a_launch_writes_what_its_parameters_say(loader: KernelLoader) -> None:
    run = launcher(loader)
    x = torch.zeros(9, dtype=torch.int64, device="cuda")
    run([x.data_ptr()], {"s0": 7}, ["s0"], current_stream(x.device))
    assert x.tolist() == [7] * 7 + [0, 0]
    run([x.data_ptr() + 8], {"s0": 3}, ["s0"], current_stream(x.device))  # another alignment
    assert x.tolist() == [7, 3, 3, 3, 7, 7, 7, 0, 0]
    run([x.data_ptr()], {"s0": 0}, ["s0"], current_stream(x.device))  # nothing to do


def test_linked_code_is_kept_on_disk(loader: KernelLoader) -> None:
    launcher(loader)
    gc.collect()
    cache.current().forget_memory()
    before = cache.current().counters.disk_hits
    launcher(loader)
    assert cache.current().counters.disk_hits == before + 1


def test_the_text_that_is_refused_is_named(loader: KernelLoader) -> None:
    broken = Generated(lambda: FILL.replace("st.global", "st.nowhere"), LaunchFacts("fill", 1, 1, 0, 1))
    with pytest.raises((CompileError, RuntimeError), match=r"st\.nowhere|PTX|ptx"):
        loader.load({"broken": lambda arch, aligned: broken})


def test_a_launch_is_captured_in_a_graph(loader: KernelLoader) -> None:
    run = launcher(loader)
    x = torch.zeros(4, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run([x.data_ptr()], {"s0": 4}, ["s0"], current_stream(x.device))
    assert x.tolist() == [0] * 4
    graph.replay()
    assert x.tolist() == [4] * 4
