"""The text of the memory that kernels pack blocks in: kept by the process, one block for each running thread.

`malloc` would take it from the end of the heap and give it back to the system with whatever large lies beside it, so
that each kernel pays for its pages anew. A block is a header of 64 bytes (its length), then what the kernel gets, in
huge pages where the system has them. Who leaves a block puts it into the slot of its thread or one of the next; who
needs one takes it from there. Words are exchanged atomically: threads need no lock, a fork finds none taken.
"""

from __future__ import annotations

import sys

MOST = 64 << 20
"""Bytes of a block above which it is given back to the system at once."""

_HUGE_MEMORY = """
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @madvise(ptr, i64, i32)
declare void @free(ptr)

; Fresh memory of so many bytes (whole pages) that begins with a huge page; null where memory is short.
define internal ptr @huge_memory(i64 %length) #0 {
entry:
  %reserved = add i64 %length, 2097152
  %mapped = call ptr @mmap(ptr null, i64 %reserved, i32 3, i32 34, i32 -1, i64 0)
  %first = ptrtoint ptr %mapped to i64
  %failed = icmp eq i64 %first, -1
  br i1 %failed, label %no, label %align
no:
  ret ptr null
align:
  %first.up = add i64 %first, 2097151
  %begin = and i64 %first.up, -2097152
  %before = sub i64 %begin, %first
  %end = add i64 %begin, %length
  %rest = add i64 %before, %length
  %after = sub i64 %reserved, %rest
  %block = inttoptr i64 %begin to ptr
  %behind = inttoptr i64 %end to ptr
  %some = icmp ne i64 %before, 0
  br i1 %some, label %trim, label %trim.end
trim:
  %s0 = call i32 @munmap(ptr %mapped, i64 %before)
  br label %trim.end
trim.end:
  %more = icmp ne i64 %after, 0
  br i1 %more, label %trim.it, label %advise
trim.it:
  %s1 = call i32 @munmap(ptr %behind, i64 %after)
  br label %advise
advise:
  %s2 = call i32 @madvise(ptr %block, i64 %length, i32 14)
  ret ptr %block
}
"""

_KEPT = f"""
declare i32 @omp_get_thread_num()

@workspaces = internal global [64 x i64] zeroinitializer, align 64

; At least so many bytes from the start of a cache line on, their content undefined; null where memory is short.
define ptr @isthmus_workspace(i64 %bytes) #0 {{
entry:
  %with.header = add i64 %bytes, 64
  %up = add i64 %with.header, 2097151
  %length = and i64 %up, -2097152
  %thread = call i32 @omp_get_thread_num()
  %own = zext i32 %thread to i64
  %large = icmp ugt i64 %length, {MOST}
  br i1 %large, label %new, label %try
try:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %n = add i64 %own, %k
  %at = and i64 %n, 63
  %slot = getelementptr i64, ptr @workspaces, i64 %at
  %word = atomicrmw xchg ptr %slot, i64 0 acq_rel
  %none = icmp eq i64 %word, 0
  br i1 %none, label %next, label %look
look:
  %kept = inttoptr i64 %word to ptr
  %have = load i64, ptr %kept
  %enough = icmp uge i64 %have, %length
  br i1 %enough, label %use, label %small
use:
  %room = getelementptr i8, ptr %kept, i64 64
  ret ptr %room
small:
  %s = call i32 @munmap(ptr %kept, i64 %have)
  br label %new
next:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, 4
  br i1 %more, label %try, label %new
new:
  %block = call ptr @huge_memory(i64 %length)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %no, label %made
no:
  ret ptr null
made:
  store i64 %length, ptr %block
  %fresh = getelementptr i8, ptr %block, i64 64
  ret ptr %fresh
}}

; Leave what @isthmus_workspace gave.
define void @isthmus_leave(ptr %room) #0 {{
entry:
  %block = getelementptr i8, ptr %room, i64 -64
  %word = ptrtoint ptr %block to i64
  %thread = call i32 @omp_get_thread_num()
  %own = zext i32 %thread to i64
  %length = load i64, ptr %block
  %large = icmp ugt i64 %length, {MOST}
  br i1 %large, label %unmap, label %try
try:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %n = add i64 %own, %k
  %at = and i64 %n, 63
  %slot = getelementptr i64, ptr @workspaces, i64 %at
  %seen = cmpxchg ptr %slot, i64 0, i64 %word acq_rel monotonic
  %put = extractvalue {{ i64, i1 }} %seen, 1
  br i1 %put, label %done, label %next
next:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, 4
  br i1 %more, label %try, label %unmap
unmap:
  %s = call i32 @munmap(ptr %block, i64 %length)
  br label %done
done:
  ret void
}}
"""

_PLAIN = """
declare i32 @posix_memalign(ptr, i64, i64)

define ptr @isthmus_workspace(i64 %bytes) #0 {
entry:
  %made = alloca ptr
  store ptr null, ptr %made
  %s = call i32 @posix_memalign(ptr %made, i64 64, i64 %bytes)
  %room = load ptr, ptr %made
  ret ptr %room
}

define void @isthmus_leave(ptr %room) #0 {
entry:
  call void @free(ptr %room)
  ret void
}
"""

WORKSPACE = _HUGE_MEMORY + (_KEPT if sys.platform.startswith("linux") else _PLAIN)
"""`isthmus_workspace`, `isthmus_leave`, and what results' memory needs; attributes #0 are its module's."""
