"""Launches with tensor maps: described once per addresses, handed over aligned; blocks that stay, as many as fit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from isthmus.dialects.program import TensorMap
from isthmus.runtime.cuda_kernels import Generated, KernelLoader, LaunchFacts, Loaded
from isthmus.runtime.cuda_launch import Launcher
from isthmus.sizes import Size
from tests.unit.runtime.fake_cuda import FakeDriver

N = Size.symbol("s0")
MAP = TensorMap(buffer=1, dtype="bf16", shape=(64, N), strides=(128,), box=(64, 16), offset=32)


@dataclass
class MapDriver(FakeDriver):
    """Notes what it describes, and reads the parameters of a launch of two pointers, one size and one map."""

    described: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    seen: list[tuple[list[int], bytes, int]] = field(default_factory=list[tuple[list[int], bytes, int]])

    def processors(self, device: int) -> int:
        return 4

    def tensor_map(
        self, dtype: str, address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
    ) -> bytes:
        self.described.append((dtype, address, tuple(shape), tuple(strides), tuple(box)))
        return bytes([len(self.described)]) * 128

    def launch(self, function: object, grid: int, block: int, shared: int, stream: int, parameters: int) -> None:
        places = list((ctypes.c_void_p * 4).from_address(parameters))
        words = [ctypes.c_uint64.from_address(p or 0).value for p in places[:3]]
        assert (places[3] or 0) % 64 == 0
        self.seen.append((words, ctypes.string_at(places[3] or 0, 128), grid))


@pytest.fixture
def driver() -> MapDriver:
    return MapDriver()


def launcher(driver: MapDriver) -> Launcher:
    facts = LaunchFacts("f", 384, N, 0, 16, ("s0",), maps=(MAP,), resident=2)
    loader = KernelLoader(driver, 0, use_cache=False)
    made = loader.load({"f": lambda arch, aligned: Generated(lambda: "f", facts)})["f"]
    assert isinstance(made, Loaded)
    return Launcher(loader, "f", lambda arch, aligned: Generated(lambda: "f", facts), made)


def test_maps_follow_the_addresses_and_sizes(driver: MapDriver) -> None:
    run = launcher(driver)
    run([256, 1024], {"n": 7}, ["n"], 0)
    run([256, 1024], {"n": 7}, ["n"], 0)
    assert driver.described == [("bf16", 1056, (64, 7), (128,), (64, 16))]
    run([256, 2048], {"n": 7}, ["n"], 0)
    run([256, 2048], {"n": 8}, ["n"], 0)
    assert driver.described[1:] == [("bf16", 2080, (64, n), (128,), (64, 16)) for n in (7, 8)]
    assert [words for words, _, _ in driver.seen] == [[256, 1024, 7]] * 2 + [[256, 2048, 7], [256, 2048, 8]]
    assert [map_[0] for _, map_, _ in driver.seen] == [1, 1, 2, 3]


def test_blocks_that_stay_are_no_more_than_fit(driver: MapDriver) -> None:
    run = launcher(driver)
    for n in (3, 8, 9, 1000):
        run([256, 1024], {"n": n}, ["n"], 0)
    run([256, 1024], {"n": 0}, ["n"], 0)
    assert [grid for _, _, grid in driver.seen] == [3, 8, 8, 8]
