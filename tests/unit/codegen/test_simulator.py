"""The simulated GPU refuses what a real one would not forgive."""

from __future__ import annotations

import numpy as np
import pytest
from simulate_grid import Grid, SimulationError
from simulate_memory import Memory, MemoryError_
from simulate_text import parse

HEAD = """
@red = internal addrspace(3) global [64 x i32] undef, align 16
define ptx_kernel void @k(ptr %x, ptr %y) #0 {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %w = zext i32 %t to i64
  %p = getelementptr i32, ptr %x, i64 %w
  %mine = getelementptr i32, ptr addrspacecast (ptr addrspace(3) @red to ptr), i64 %w
  %n = xor i64 %w, 63
  %other = getelementptr i32, ptr addrspacecast (ptr addrspace(3) @red to ptr), i64 %n
"""
BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"


def run(body: str, blocks: int = 1) -> np.ndarray:
    code = parse(HEAD + body + "\n}\n")
    x = np.arange(64, dtype=np.uint32)
    memory = Memory([x.view(np.uint8), np.zeros(256, np.uint8)], blocks, 64, code.shared_bytes, {})
    Grid(code, blocks, 64, memory, memory.addresses).run()
    return memory.buffer(1, 256).view(np.uint32)


def reversed_through_shared(between: str) -> str:
    return f"""
  %v = load i32, ptr %p, align 4
  store i32 %v, ptr %mine, align 4
{between}
  %u = load i32, ptr %other, align 4
  %q = getelementptr i32, ptr %y, i64 %w
  store i32 %u, ptr %q, align 4
  ret void"""


def test_threads_exchange_through_shared_memory():
    assert run(reversed_through_shared(BARRIER)).tolist() == list(range(63, -1, -1))


def test_a_missing_barrier():
    with pytest.raises(MemoryError_, match="no barrier between"):
        run(reversed_through_shared(""))


def test_a_barrier_that_some_leave_out():
    body = f"""
  %c = icmp ult i32 %t, 40
  br i1 %c, label %then, label %after
then:
{BARRIER}
  br label %after
after:
  ret void"""
    with pytest.raises(SimulationError, match="barrier"):
        run(body)


def test_blocks_that_write_one_place():
    body = "  store i32 %b, ptr %y, align 4\n  ret void"
    with pytest.raises(MemoryError_, match="two threads"):
        run(body, blocks=2)


@pytest.mark.parametrize("offset,what", [(64, "outside"), (-1, "outside")])
def test_an_address_outside(offset, what):
    body = f"""
  %o = add i64 %w, {offset}
  %q = getelementptr i32, ptr %y, i64 %o
  store i32 %t, ptr %q, align 4
  ret void"""
    with pytest.raises(MemoryError_, match=what):
        run(body)


def test_an_address_that_is_not_aligned():
    body = "  %v = load <2 x i32>, ptr %p, align 8\n  ret void"
    with pytest.raises(MemoryError_, match="aligned"):
        run(body)


def test_a_shuffle_that_some_leave_out():
    body = """
  %c = icmp ult i32 %t, 7
  br i1 %c, label %then, label %after
then:
  %s = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %t, i32 1, i32 31)
  br label %after
after:
  ret void"""
    with pytest.raises(SimulationError, match="shuffle"):
        run(body)


def test_divergent_threads_meet_again():
    body = f"""
  %c = icmp ult i32 %t, 7
  br i1 %c, label %then, label %otherwise
then:
  br label %loop
loop:
  %i = phi i32 [ 0, %then ], [ %j, %loop ]
  %j = add i32 %i, 1
  %again = icmp ult i32 %j, %t
  br i1 %again, label %loop, label %after
otherwise:
  br label %after
after:
  %r = phi i32 [ %j, %loop ], [ 100, %otherwise ]
{BARRIER}
  %q = getelementptr i32, ptr %y, i64 %w
  store i32 %r, ptr %q, align 4
  ret void"""
    assert run(body).tolist() == [1, 1, 2, 3, 4, 5, 6, *[100] * 57]
