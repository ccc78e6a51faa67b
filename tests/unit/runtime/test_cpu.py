"""Machine code on the host: text to objects, objects to addresses, who keeps what alive."""

import ctypes
import gc
import os
import subprocess
import sys
import threading

import pytest
import torch

from isthmus.diagnostics import IRError
from isthmus.runtime import cpu, symbols
from isthmus.runtime.elf import symbols_of

INT_FN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
ADD = """
define i64 @add{k}(i64 %x) {{
  %y = add i64 %x, {k}
  ret i64 %y
}}
"""


def add_object(k: int, level: int = 1) -> bytes:
    return cpu.compile_text(ADD.format(k=k), cpu.host_target(), level)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_text_becomes_a_function(level: int) -> None:
    loaded = cpu.load([add_object(3, level)])
    assert INT_FN(loaded["add3"])(4) == 7
    assert loaded.names == ("add3",)


def test_target_describes_the_host() -> None:
    target = cpu.host_target()
    assert target.triple.split("-")[0] in target.triple
    assert target.vector_bits in (128, 256, 512)
    assert target.has("avx512f") == (target.vector_bits == 512)
    assert target.cores >= 1 and target.caches.l1 >= 8 << 10
    assert cpu.baseline_target().vector_bits == 128
    assert cpu.baseline_target().key != target.key or target.features == ""


def test_objects_are_reproducible() -> None:
    assert add_object(5) == add_object(5)
    assert add_object(5) != add_object(6)


def test_objects_link_with_each_other_and_with_earlier_ones() -> None:
    caller = """
    declare i64 @add1(i64)
    declare i64 @add2(i64)
    define i64 @both(i64 %x) {
      %a = call i64 @add1(i64 %x)
      %b = call i64 @add2(i64 %a)
      ret i64 %b
    }
    """
    earlier = cpu.load([add_object(2)])
    objects = [cpu.compile_text(caller, cpu.host_target()), add_object(1)]
    loaded = cpu.load(objects, {"add2": earlier["add2"]}, needs=(earlier,))
    del earlier
    gc.collect()
    assert INT_FN(loaded["both"])(10) == 13


def test_refused_text_names_the_line() -> None:
    with pytest.raises(IRError, match="ret i64 %nothing"):
        cpu.compile_text("define i64 @f() {\n  ret i64 %nothing\n}", cpu.host_target())


def test_a_refused_module_does_not_wait_for_the_garbage_collector() -> None:
    """In the frames of a kept exception it would be freed in any order, after its context perhaps."""
    closed: list[bool] = []
    module_class = type(cpu._parse("define void @f() { ret void }"))  # pyright: ignore[reportPrivateUsage]
    text = (
        "define i64 @f(i1 %c) {\n br i1 %c, label %a, label %b\na:\n %x = add i64 1, 2\nret i64 %x\nb:\n ret i64 %x }"
    )
    close = module_class.close
    try:
        module_class.close = lambda self: closed.append(True) or close(self)
        with pytest.raises(IRError):
            cpu.compile_text(text, cpu.host_target())
        assert closed
        closed.clear()
        cpu.compile_text("define void @f() { ret void }", cpu.host_target())
        assert closed
    finally:
        module_class.close = close


SCATTERED = '''
import mmap
from isthmus.runtime import cpu
numbers = ", ".join(f"double {k}.5" for k in range(4000))
text = f"@t = private constant [4000 x double] [{numbers}]\\n" + """
define double @f(i64 %i) {
  %p = getelementptr [4000 x double], ptr @t, i64 0, i64 %i
  %x = load double, ptr %p
  ret double %x
}
"""
target = cpu.host_target()
object_ = cpu.compile_text(text, target)
cpu.load([cpu.compile_text("define void @g() { ret void }", target)])
pages = [mmap.mmap(-1, 4096) for _ in range(4000)]
wall = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for page in pages[::2]:
    page.close()
kept = [cpu.load([object_]) for _ in range(200)]
print(len(kept))
'''


def test_sections_of_an_object_stay_together_in_a_scattered_address_space() -> None:
    """Room for single pages here, for more only 8 GiB away: constants must be in reach of the code all the same."""
    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, env=where)
    assert done.stdout == "200\n", done.stderr


def test_missing_symbol_is_named() -> None:
    text = "declare void @isthmus_nowhere()\ndefine void @f() {\n call void @isthmus_nowhere()\n ret void\n}"
    with pytest.raises(LookupError, match="isthmus_nowhere"):
        cpu.load([cpu.compile_text(text, cpu.host_target())])


def test_not_an_object() -> None:
    with pytest.raises(ValueError, match="ELF"):
        symbols_of(b"MZ rubbish")
    with pytest.raises(ValueError, match="ELF"):
        symbols_of(add_object(1)[:100])


def test_threads_compile_and_load_at_once() -> None:
    results: dict[int, int] = {}

    def work(k: int) -> None:
        for j in range(5):
            n = 100 * k + j
            loaded = cpu.load([add_object(n)])
            results[n] = INT_FN(loaded[f"add{n}"])(1)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {n: n + 1 for n in results} and len(results) == 20


def test_compile_all_on_threads_gives_the_same_objects() -> None:
    groups = [[ADD.format(k=k), ADD.format(k=k + 10)] for k in range(8)]
    target = cpu.host_target()
    assert cpu.compile_all(groups, target, threads=3) == cpu.compile_all(groups, target)


def test_parallel_regions_use_torchs_own_pool() -> None:
    """torch.set_num_threads governs the regions of compiled code (same libgomp)."""
    text = """
    declare void @GOMP_parallel(ptr, ptr, i32, i32)
    define internal void @body(ptr %counter) {
      %old = atomicrmw add ptr %counter, i64 1 seq_cst
      ret void
    }
    define i64 @region(i64 %address) {
      %counter = inttoptr i64 %address to ptr
      call void @GOMP_parallel(ptr @body, ptr %counter, i32 0, i32 0)
      ret i64 0
    }
    """
    loaded = cpu.load([cpu.compile_text(text, cpu.host_target())])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            counter = ctypes.c_int64(0)
            INT_FN(loaded["region"])(ctypes.addressof(counter))
            assert counter.value == threads
    finally:
        torch.set_num_threads(before)


def test_torchs_c_functions_are_found() -> None:
    assert symbols.has("aoti_torch_call_dispatcher", "GOMP_parallel", "sgemm_", "PyErr_Clear")
    assert not symbols.has("isthmus_nowhere")


SUM = """
define float @sum(ptr %x, ptr %y, i64 %n, i64 %far) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %s = phi float [ 0.0, %entry ], [ %more, %body ]
  %at = mul i64 %i, %far
  %p = getelementptr float, ptr %x, i64 %at
  %q = getelementptr float, ptr %y, i64 %i
  %a = load float, ptr %p
  %b = load float, ptr %q
  %c = fadd float %a, %b
  %more = fadd float %s, %c
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, %n
  br i1 %again, label %body, label %done
done:
  ret float %more
}
"""


def test_addresses_stay_as_written_where_the_text_says_so_and_nowhere_else() -> None:
    target = cpu.host_target()
    before = cpu.assembly(SUM, target)
    kept = cpu.assembly(cpu.ADDRESSES_AS_WRITTEN + SUM, target)
    assert "imul" in kept and "imul" not in before
    assert cpu.assembly(SUM, target) == before


SCALED = """
define void @scaled(ptr %x, i64 %n) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %p = getelementptr <4 x float>, ptr %x, i64 %i
  %a = load <4 x float>, ptr %p
  %b = fmul <4 x float> %a, splat (float 0x3FF8000000000000)
  %c = fadd <4 x float> %b, splat (float 0x4004000000000000)
  store <4 x float> %c, ptr %p
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, %n
  br i1 %again, label %body, label %done
done:
  ret void
}
"""


def test_constants_are_loaded_where_they_are_used_if_the_text_says_so_and_nowhere_else() -> None:
    def loads_inside(text: str) -> bool:
        return "(%rip)" in cpu.assembly(text, cpu.host_target()).split("\n.LBB0_1:")[1]

    assert not loads_inside(SCALED)
    assert loads_inside(cpu.CONSTANTS_WHERE_USED + SCALED)
    assert not loads_inside(SCALED)
