"""Memory that kernels pack blocks in: kept for the next kernel, nobody's twice, no page faults once it is there."""

import ctypes
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import isthmus
from isthmus.runtime.support import support
from isthmus.runtime.workspace_text import MOST

HUGE = 2 << 20

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kept on Linux only")


def functions():
    """The two functions of the runtime."""
    code = support()
    take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(code["isthmus_workspace"])
    leave = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code["isthmus_leave"])
    return take, leave


def test_a_workspace_is_used_again_and_grows():
    take, leave = functions()
    first = take(100)
    assert first % 64 == 0
    ctypes.memset(first, 1, HUGE - 64)  # whole huge pages
    leave(first)
    assert take(HUGE - 64) == first
    leave(first)
    second = take(3 * HUGE)
    ctypes.memset(second, 1, 3 * HUGE)
    leave(second)
    assert take(100) == second
    leave(second)


def test_a_very_large_workspace_is_given_back():
    take, leave = functions()
    kept = take(100)
    leave(kept)
    large = take(MOST + 1)
    ctypes.memset(large, 1, MOST + 1)
    assert take(100) == kept
    leave(kept)
    leave(large)
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    assert not any(int(low, 16) <= large < int(high, 16) for low, high in ranges)


def test_workspaces_in_use_lie_apart():
    take, leave = functions()
    taken = [take(HUGE * (1 + n % 2)) for n in range(9)]  # more than there are slots to try
    for n, place in enumerate(taken):
        ctypes.memset(place, n, HUGE * (1 + n % 2))
    assert [ctypes.c_ubyte.from_address(place + HUGE - 1).value for place in taken] == list(range(9))
    for place in taken:
        leave(place)


def test_threads_never_share_a_workspace():
    take, leave = functions()

    def work(n: int) -> bool:
        mine = True
        for _ in range(200):
            place = take(4096)
            ctypes.memset(place, n, 4096)
            mine = mine and ctypes.string_at(place, 4096) == bytes([n]) * 4096
            leave(place)
        return mine

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_products_of_a_step_find_their_pages():
    """Packed blocks and sums of 3 MB and more: from a heap that is trimmed they cost hundreds of faults a step."""
    trim = ctypes.CDLL(None).malloc_trim
    weights = [torch.randn(512, 1536, requires_grad=True), torch.randn(1536, 512, requires_grad=True)]
    x, tangent = torch.randn(512, 512), torch.randn(512, 512)

    compiled = isthmus.compile(lambda x, a, b: torch.nn.functional.gelu(x @ a) @ b)

    def step() -> int:
        trim(0)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for w in weights:
            w.grad = None
        compiled(x, *weights).backward(tangent)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    faults = [step() for _ in range(8)]
    assert max(faults[3:]) < 50
