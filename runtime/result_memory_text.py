"""The text of the machine code that gives large results memory which earlier results have left.

A block is memory mapped for one large result: a header of 64 bytes, then the elements, with huge pages where the system
has them. Its storage's deleter brings it back to the slot of that result, from where the next call takes it. A pool is
an array of words: references (the program's and one per block), the number of slots (0 once the program is gone), then
the slots, each with one block or null. Words are exchanged atomically: threads need no lock, a fork finds none taken.
Words that begin with `$` are filled in by `support.py`; `huge_memory` is in `workspace_text.py`.
"""

from __future__ import annotations

from string import Template

REUSE = Template("""
declare ptr @calloc(i64, i64)

; A pool of so many slots; null where memory is short.
define ptr @isthmus_pool_open(i64 %count) #0 {
entry:
  %words = add i64 %count, 2
  %pool = call ptr @calloc(i64 %words, i64 8)
  %none = icmp eq ptr %pool, null
  br i1 %none, label %done, label %fill
fill:
  store i64 1, ptr %pool
  %a.count = getelementptr i64, ptr %pool, i64 1
  store i64 %count, ptr %a.count
  br label %done
done:
  ret ptr %pool
}

; The program is gone: free what no result uses; the rest follows when its results go.
define void @isthmus_pool_close(ptr %pool) #0 {
entry:
  %a.count = getelementptr i64, ptr %pool, i64 1
  %count = atomicrmw xchg ptr %a.count, i64 0 seq_cst
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %next, %free ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %free, label %all
free:
  %word = add i64 %k, 2
  %slot = getelementptr i64, ptr %pool, i64 %word
  call void @empty_slot(ptr %slot)
  %next = add i64 %k, 1
  br label %head
all:
  call void @let_pool_go(ptr %pool)
  ret void
}

define internal void @let_pool_go(ptr %pool) #0 {
entry:
  %before = atomicrmw sub ptr %pool, i64 1 seq_cst
  %last = icmp eq i64 %before, 1
  br i1 %last, label %free, label %done
free:
  call void @free(ptr %pool)
  br label %done
done:
  ret void
}

; header: pool, slot, bytes mapped from the header on
define internal void @unmap(ptr %block) #0 {
entry:
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %free
free:
  %pool = load ptr, ptr %block
  %a.length = getelementptr i64, ptr %block, i64 2
  %length = load i64, ptr %a.length
  %s = call i32 @munmap(ptr %block, i64 %length)
  call void @let_pool_go(ptr %pool)
  br label %done
done:
  ret void
}

define internal void @empty_slot(ptr %slot) #0 {
entry:
  %word = atomicrmw xchg ptr %slot, i64 0 seq_cst
  %block = inttoptr i64 %word to ptr
  call void @unmap(ptr %block)
  ret void
}

; The deleter of a block's storage: any thread, with or without Python. The slot keeps the block that came last.
define void @isthmus_bring_back(ptr %data) #0 {
entry:
  %block = getelementptr i8, ptr %data, i64 -$header
  %pool = load ptr, ptr %block
  %a.slot = getelementptr ptr, ptr %block, i64 1
  %slot = load ptr, ptr %a.slot
  %held = atomicrmw add ptr %pool, i64 1 seq_cst
  call void @lend(ptr %block)
  %word = ptrtoint ptr %block to i64
  %old = atomicrmw xchg ptr %slot, i64 %word seq_cst
  %other = inttoptr i64 %old to ptr
  call void @unmap(ptr %other)
  %a.count = getelementptr i64, ptr %pool, i64 1
  %count = load atomic i64, ptr %a.count seq_cst, align 8
  %closed = icmp eq i64 %count, 0
  br i1 %closed, label %empty, label %done
empty:
  call void @empty_slot(ptr %slot)
  br label %done
done:
  call void @let_pool_go(ptr %pool)
  ret void
}

; Let the system have the pages of a block if it runs short of memory (MADV_FREE), whole huge pages behind the header's.
define internal void @lend(ptr %block) #0 {
entry:
  %a.length = getelementptr i64, ptr %block, i64 2
  %length = load i64, ptr %a.length
  %long = icmp ugt i64 %length, $huge
  br i1 %long, label %some, label %done
some:
  %first = getelementptr i8, ptr %block, i64 $huge
  %bytes = sub i64 %length, $huge
  %s = call i32 @madvise(ptr %first, i64 %bytes, i32 8)
  br label %done
done:
  ret void
}

; A new block for so many bytes; null where memory is short.
define internal ptr @new_block(ptr %pool, ptr %slot, i64 %bytes) #0 {
entry:
  %with.header = add i64 %bytes, $header
  %up = add i64 %with.header, 4095
  %length = and i64 %up, -4096
  %block = call ptr @huge_memory(i64 %length)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %no, label %made
no:
  ret ptr null
made:
  %held = atomicrmw add ptr %pool, i64 1 seq_cst
  store ptr %pool, ptr %block
  %a.slot = getelementptr ptr, ptr %block, i64 1
  store ptr %slot, ptr %a.slot
  %a.length = getelementptr i64, ptr %block, i64 2
  store i64 %length, ptr %a.length
  ret ptr %block
}

; The block of a slot where it is large enough and not much larger, else a new one.
define internal ptr @some_block(ptr %pool, ptr %slot, i64 %bytes) #0 {
entry:
  %word = atomicrmw xchg ptr %slot, i64 0 seq_cst
  %none = icmp eq i64 %word, 0
  br i1 %none, label %new, label %look
look:
  %block = inttoptr i64 %word to ptr
  %a.length = getelementptr i64, ptr %block, i64 2
  %length = load i64, ptr %a.length
  %needed = add i64 %bytes, $header
  %enough = icmp uge i64 %length, %needed
  %quarter = lshr i64 %length, 2
  %most = sub i64 %length, %quarter
  %near = icmp uge i64 %needed, %most
  %fits = and i1 %enough, %near
  br i1 %fits, label %use, label %drop
use:
  ret ptr %block
drop:
  call void @unmap(ptr %block)
  br label %new
new:
  %made = call ptr @new_block(ptr %pool, ptr %slot, i64 %bytes)
  ret ptr %made
}

; Give a storage that nobody has seen yet the memory of slot `n`; its own is freed. Null (nothing is done) where the
; storage is small or memory is short.
define ptr @isthmus_reuse_one(ptr %pool, i64 %n, ptr %impl) #0 {
entry:
  %a.storage = getelementptr i8, ptr %impl, i64 $storage
  %storage = load ptr, ptr %a.storage
  %a.bytes = getelementptr i8, ptr %storage, i64 $bytes
  %bytes = load i64, ptr %a.bytes
  %large = icmp sge i64 %bytes, $least
  br i1 %large, label %find, label %no
find:
  %at = add i64 %n, 2
  %slot = getelementptr i64, ptr %pool, i64 %at
  %block = call ptr @some_block(ptr %pool, ptr %slot, i64 %bytes)
  %none = icmp eq ptr %block, null
  br i1 %none, label %no, label %swap
swap:
  %data = getelementptr i8, ptr %block, i64 $header
  %a.data = getelementptr i8, ptr %storage, i64 $data
  %a.deleter = getelementptr i8, ptr %storage, i64 $deleter
  %a.context = getelementptr i8, ptr %storage, i64 $context
  %deleter = load ptr, ptr %a.deleter
  %context = load ptr, ptr %a.context
  store ptr %data, ptr %a.data
  store ptr %data, ptr %a.context
  store ptr @isthmus_bring_back, ptr %a.deleter
  call void %deleter(ptr %context)
  ret ptr %data
no:
  ret ptr null
}

; After `isthmus_make` with the same arguments: large results are moved to the pool's memory, if there is a pool.
define void @isthmus_reuse(ptr %pool, ptr %table, ptr %made, ptr %pointers) #0 {
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %all, label %begin
begin:
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  br label %head
head:
  %n = phi i64 [ 0, %begin ], [ %n.next, %next ]
  %at = phi ptr [ %first, %begin ], [ %at.next, %next ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %look, label %all
all:
  ret void
look:
  %slot = getelementptr ptr, ptr %made, i64 %n
  %handle = load ptr, ptr %slot
  %impl = load ptr, ptr %handle
  %data = call ptr @isthmus_reuse_one(ptr %pool, i64 %n, ptr %impl)
  %kept = icmp eq ptr %data, null
  br i1 %kept, label %next, label %moved
moved:
  %number = load i64, ptr %at
  %a.pointer = getelementptr ptr, ptr %pointers, i64 %number
  store ptr %data, ptr %a.pointer
  br label %next
next:
  %a.rank = getelementptr i64, ptr %at, i64 2
  %rank = load i64, ptr %a.rank
  %twice = mul i64 %rank, 2
  %words = add i64 %twice, 3
  %at.next = getelementptr i64, ptr %at, i64 %words
  %n.next = add i64 %n, 1
  br label %head
}
""")
