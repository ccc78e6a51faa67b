"""Building programs: what is compiled, what is found in a cache, by this process or by another."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from isthmus.runtime import build, cache, cpu
from isthmus.runtime.call import NativeProgram, external_symbols
from isthmus.runtime.convention import Convention, UserOutput
from isthmus.runtime.stored import dump, restore
from isthmus.sizes import Size

Native = Callable[..., NativeProgram]


def scaled(factor: float) -> str:
    return f"""
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %y = kernel.fused %x {{sizes = [4], classes = ["parallel"], places = [["output", 0]]}} ({{
    %v = kernel.load {{operand = 0, map = [d0]}} : f32
    %c = prim.const {{value = {factor}}} : f32
    %w = prim.mul %v, %c : f32
    kernel.store %w {{result = 0, map = [d0]}}
  }}) : tensor<4xf32>
  func.return %y : tensor<4xf32>
}}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cache.Cache:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    return cache.current()


@pytest.mark.row("R2")
def test_equal_kernels_are_compiled_and_loaded_once(store: cache.Cache, native: Native) -> None:
    external_symbols()  # the code that all programs share
    before = store.counters.misses
    first, second = native(scaled(3.25)), native(scaled(3.25))
    assert store.counters.misses == before + 2  # a kernel and a program
    x = torch.randn(4)
    assert torch.equal(first([x])[0], second([x])[0])
    del first
    torch.testing.assert_close(second([x])[0], 3.25 * x)


def test_kernels_go_with_their_last_program(store: cache.Cache, native: Native) -> None:
    program = native(scaled(7.125))
    (name,) = program.program.kernels
    key = (cpu.host_target().key, name)
    assert key in build._kernels  # type: ignore[attr-defined]
    del program
    assert key not in build._kernels  # type: ignore[attr-defined]


CALLED = "define double @contract_third(double %x) {\n  %y = fmul double %x, 3.0\n  ret double %y\n}\n"
CALLER = """declare double @contract_third(double)
define double @kernel_calls(double %x) {
  %y = call double @contract_third(double %x)
  ret double %y
}
"""


def never() -> str:
    raise AssertionError("its object is kept")


def test_what_kernels_share_is_found_where_they_are(store: cache.Cache) -> None:
    import ctypes

    def run(loaded: cpu.Loaded) -> float:
        return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded["kernel_calls"])(2.0)

    target = cpu.host_target()
    together = build.load_kernels({"contract_third": lambda: CALLED, "kernel_calls": lambda: CALLER}, target)
    assert run(together["kernel_calls"]) == 6.0
    del together  # as in another process: both are kept, and the caller alone is asked for
    assert not [name for _, name in build._kernels if name == "contract_third"]  # type: ignore[attr-defined]
    alone = build.load_kernels({"kernel_calls": never}, target)
    assert run(alone["kernel_calls"]) == 6.0


def test_a_kernel_without_what_it_shares_is_refused(store: cache.Cache) -> None:
    with pytest.raises(KeyError, match="contract_third"):
        build.load_kernels({"kernel_calls": lambda: CALLER}, cpu.host_target())


def test_kernels_that_were_compiled_together_are_found_one_by_one(store: cache.Cache) -> None:
    target = cpu.host_target()
    texts = {name: CALLED.replace("contract_third", name) for name in ("kernel_a", "kernel_b")}
    made = build.load_kernels({name: lambda text=text: text for name, text in texts.items()}, target)
    assert made["kernel_a"] is made["kernel_b"]  # one object
    del made
    assert "kernel_b" in build.load_kernels({"kernel_b": never}, target)["kernel_b"]
    memory = store._memory  # type: ignore[attr-defined]
    (together,) = [k for k, data in memory.items() if not data.startswith(build.REFERENCE)]
    memory.pop(together)
    store._path(together).unlink()  # type: ignore[attr-defined]  # as the bound of the cache may do
    assert build.load_kernels({"kernel_b": lambda: texts["kernel_b"]}, target)["kernel_b"]["kernel_b"]


def test_kernels_that_two_processes_compiled_along_with_others_load_together(store: cache.Cache) -> None:
    def compiled(*names: str) -> dict[str, cpu.Loaded]:
        texts = {name: CALLED.replace("contract_third", name) for name in names}
        return build.load_kernels({name: lambda text=text: text for name, text in texts.items()}, cpu.host_target())

    compiled("kernel_a", "kernel_b")
    key = cache.digest("kernel", "kernel_a", *build.versions(cpu.host_target()))
    store._memory.pop(key)  # type: ignore[attr-defined]  # as where another process compiles at the same time
    store._path(key).unlink()  # type: ignore[attr-defined]
    compiled("kernel_a", "kernel_c")
    found = compiled("kernel_a", "kernel_b", "kernel_c")  # of two objects that define the first
    assert all(found[name][name] for name in ("kernel_a", "kernel_b", "kernel_c"))


def test_without_the_cache_everything_is_compiled(store: cache.Cache) -> None:
    program = _parts()
    made = build.build(*program, cpu.host_target(), use_cache=False)
    x = torch.randn(4)
    torch.testing.assert_close(made([x])[0], 2.5 * x)
    assert store.counters.misses == store.counters.written == 0


def _parts() -> tuple[object, str, dict[str, Callable[[], str]]]:
    from xdsl.parser import Parser

    from isthmus import ir
    from isthmus.codegen.cpu.kernel import emit_kernel
    from isthmus.codegen.cpu.program import program_text
    from isthmus.codegen.cpu.read_program import kernels_of, read_program
    from isthmus.codegen.llvm_text import Module
    from isthmus.dialects import new_context
    from isthmus.runtime.layout import native_facts

    func = ir.function(Parser(new_context(), scaled(2.5)).parse_module(), "main")
    program = read_program(func)

    def text(op: object) -> str:
        module = Module()
        emit_kernel(module, op, cpu.host_target())  # type: ignore[arg-type]
        return str(module)

    kernels = {name: (lambda op=op: text(op)) for name, op in kernels_of(func).items()}
    return program, program_text(program, native_facts()), kernels


WARM = """
import torch
from isthmus.runtime import build, cache, cpu
from isthmus.runtime.call import external_symbols
external_symbols()  # the code that all programs share is the one thing this folder may lack
before = cache.current().counters.misses
found = build.stored("my program", cpu.host_target())
assert found is not None
program, more = found
x = torch.arange(4.0)
assert torch.equal(program([x])[0], 2.5 * x), program([x])
print(cache.current().counters.misses - before, more.results)
"""


@pytest.mark.row("R2")
def test_another_process_runs_a_stored_program_without_compiling(store: cache.Cache) -> None:
    program, text, kernels = _parts()
    target = cpu.host_target()
    build.build(program, text, kernels, target)  # type: ignore[arg-type]
    more = Convention(1, 1, (UserOutput("value", 0),))
    build.store("my program", program, text, target, more)  # type: ignore[arg-type]
    command = [sys.executable, "-c", WARM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1"]


def test_stored_program_without_its_kernels_is_absent(store: cache.Cache) -> None:
    program, text, kernels = _parts()
    target = cpu.host_target()
    build.store("another", program, text, target)  # type: ignore[arg-type]
    assert build.stored("another", target) is None
    build.build(program, text, kernels, target)  # type: ignore[arg-type]
    assert build.stored("another", target) is not None
    assert build.stored("unknown", target) is None


def test_stored_values_hold_only_this_packages_classes() -> None:
    value = {"a": (Size.symbol("s0") * 2, Convention(1, 1, ()), frozenset({1}), 1 + 2j, None)}
    assert restore(dump(value)) == value
    for bad in (os.system, Path("x"), torch.float32):
        with pytest.raises(pickle.UnpicklingError):
            restore(pickle.dumps(bad))


def test_versions_tell_code_apart() -> None:
    host, base = cpu.host_target(), cpu.baseline_target()
    assert build.versions(host) != build.versions(base) or host.key == base.key
    assert build.source_version() == build.source_version()


@pytest.mark.parametrize(
    "part", ["sizes", "ir.types", "dialects.prim.elementwise", "codegen.cpu.sizes", "driver.native"]
)
def test_an_edit_of_what_makes_code_makes_kept_code_old(part: str, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    monkeypatch.setattr(build, "digest_of_files", lambda paths, below, *more: read.extend(paths))
    build.source_version.__wrapped__()
    assert os.path.join("isthmus", *part.split(".")) + ".py" in [p[p.rindex("isthmus") :] for p in read]
