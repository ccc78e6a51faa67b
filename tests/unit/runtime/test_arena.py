"""Arenas: who has one, when it returns, and that memory somebody looks at is not reused."""

import gc
import threading
import weakref

import torch

from isthmus.runtime.arena import ALIGNMENT, ArenaPool


def test_arena_is_reused_and_aligned() -> None:
    pool = ArenaPool()
    first = pool.take(1000)
    address = first.data_ptr()
    assert address % ALIGNMENT == 0 and first.dtype == torch.uint8
    pool.give(first)
    assert pool.take(500).data_ptr() == address


def test_second_call_gets_its_own() -> None:
    pool = ArenaPool()
    a, b = pool.take(64), pool.take(64)
    assert a.data_ptr() != b.data_ptr()


def test_arenas_grow_and_small_ones_are_dropped() -> None:
    pool = ArenaPool()
    small = pool.take(100)
    large = pool.take(1000)
    pool.give(large)
    pool.give(small)
    assert pool.free_bytes == 1000
    pool.give(pool.take(2000))
    assert pool.free_bytes == 2000
    assert pool.take(10).numel() == 2000


def test_few_are_kept() -> None:
    pool = ArenaPool(keep=2)
    for arena in [pool.take(64) for _ in range(5)]:
        pool.give(arena)
    assert pool.free_bytes == 128
    pool.clear()
    assert pool.free_bytes == 0


def test_lease_returns_once() -> None:
    pool = ArenaPool()
    lease = pool.lend(64)
    lease.release()
    lease.release()
    assert pool.free_bytes == 64 and lease.tensor is None


def test_lease_returns_when_its_owner_goes() -> None:
    pool = ArenaPool()
    lease = pool.lend(64)
    gone = weakref.ref(lease)
    del lease
    assert gone() is None and pool.free_bytes == 64


def test_memory_that_a_view_looks_at_is_not_reused() -> None:
    pool = ArenaPool()
    lease = pool.lend(64)
    assert lease.tensor is not None
    view = lease.tensor[8:16]
    lease.release()
    assert pool.free_bytes == 0
    assert view.numel() == 8


def test_pool_goes_with_its_owner() -> None:
    pool = ArenaPool()
    arena = pool.take(64)
    gone = weakref.ref(arena)
    pool.give(arena)
    del arena, pool
    gc.collect()
    assert gone() is None


def test_arena_taken_in_inference_mode_can_be_saved() -> None:
    with torch.inference_mode():
        assert not ArenaPool().take(8).is_inference()


def test_threads_never_share_an_arena() -> None:
    pool = ArenaPool(keep=3)
    clashes: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            arena = pool.take(256)
            arena.fill_(mark)
            if not bool((arena == mark).all()):
                clashes.append(mark)
            pool.give(arena)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not clashes
