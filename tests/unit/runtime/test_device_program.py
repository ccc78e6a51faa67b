"""Programs on a device, by a double of the driver: pointers, sizes, memory, errors, control flow, what is cached."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from isthmus.codegen.nvptx import host_program
from isthmus.diagnostics import IRError
from isthmus.dialects.program import Buffer, LibraryCall, Place
from isthmus.driver.kept_on_device import keep_on_device, kept_on_device
from isthmus.runtime import cache, device_library
from isthmus.runtime.device_library import library_call
from tests.unit.runtime.fake_cuda import FakeDriver, on_fake_device
from tests.unit.runtime.test_call import CHAIN, GATHER, SYMBOLIC, chain, inputs
from tests.unit.runtime.test_call_control_flow import WHILE
from tests.unit.runtime.test_call_results import PAIR


@pytest.fixture(params=[False, True], ids=["python", "native"])
def driver(request: pytest.FixtureRequest) -> FakeDriver:
    return FakeDriver(native=request.param)


def test_launches_in_order_on_fresh_results(driver: FakeDriver) -> None:
    program, x = on_fake_device(CHAIN, driver), inputs()
    first, second = program([*x]), program([*x])
    torch.testing.assert_close(first, chain(*x))
    torch.testing.assert_close(second, first)
    assert len({t.untyped_storage().data_ptr() for t in [*x, *first, *second]}) == 7
    assert program.native and program.fresh and not program.fallbacks
    names = [name for name, _ in driver.launched]
    assert len(names) == 4 and names[:2] == names[2:]
    assert driver.natively == (4 if driver.native else 0)


def test_a_launch_that_the_driver_refuses_is_an_error(driver: FakeDriver) -> None:
    if not driver.native:
        pytest.skip("the driver itself raises")
    program = on_fake_device(CHAIN, driver)
    driver.refuses = 700
    with pytest.raises(RuntimeError, match=r"launching kernel_.*: 700"):
        program([*inputs()])
    driver.refuses = 201  # no context on this thread: Python makes it current
    torch.testing.assert_close(program([*inputs()]), chain(*inputs()))
    assert driver.natively == 2 and len(driver.launched) == 2


def test_arguments_that_do_not_fit_are_refused_by_name(driver: FakeDriver) -> None:
    program = on_fake_device(CHAIN, driver)
    x, y, b = inputs()
    for bad in (b.double(), torch.randn(5), torch.randn(4, device="meta")):
        with pytest.raises(IRError, match="argument 2"):
            program([x, y, bad])
    torch.testing.assert_close(program([x.t().contiguous().t(), y, b]), chain(x, y, b))


def test_buffers_at_odd_addresses_get_code_of_their_own(driver: FakeDriver) -> None:
    program = on_fake_device(CHAIN, driver)
    x, y, _ = inputs()
    b = torch.randn(5)[1:]
    assert b.data_ptr() % 16
    torch.testing.assert_close(program([x, y, b]), chain(x, y, b))
    assert [name.endswith(" aligned") for name, _ in driver.launched] == [True, False]
    program([x, y, b])
    assert len(driver.linked) == 3  # two kernels, one of them twice


def test_sizes_are_parameters_and_nothing_is_launched_for_nothing(driver: FakeDriver) -> None:
    program = on_fake_device(SYMBOLIC, driver)
    for rows in (4, 1, 9, 700):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program([x, 5]), [2 * x * 5, 2 * x])
    with pytest.raises(IRError, match="3"):
        program([torch.randn(2, 4), 5])
    before = len(driver.launched)
    program([torch.randn(0, 3), 5])
    assert len(driver.launched) == before


def test_index_out_of_range_is_eagers_error(driver: FakeDriver) -> None:
    program, x, one = on_fake_device(GATHER, driver), torch.arange(5.0), torch.ones(3, dtype=torch.int64)
    good = torch.tensor([4, 0, 2])
    torch.testing.assert_close(program([x, good, one])[0], x[good])
    for bad in (5, -7):
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension 0 with size 5"):
            program([x, torch.tensor([0, bad, 1]), one])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        program([x, good, torch.tensor([1, 0, 1])])
    torch.testing.assert_close(program([x, good, one])[0], x[good])


def test_errors_come_before_writes_to_the_callers_tensors(driver: FakeDriver) -> None:
    program = on_fake_device(
        """
func.func @main(%x: tensor<5xf32>, %i: tensor<5xi64>) -> (tensor<5xf32> {isthmus.mutated = 0})
    attributes {isthmus.temporary_bytes = #isthmus.lit<64>} {
  %t = kernel.fused %x, %i {sizes = [5], classes = ["parallel"], places = [["temporary", 0]]} ({
    %n = kernel.load {operand = 1, map = [d0]} : i64
    %c = kernel.check %n {bound = 5, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<5xf32>
  %y = kernel.fused %t {sizes = [5], classes = ["parallel"], places = [["argument", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<5xf32>
  func.return %y : tensor<5xf32>
}
""",
        driver,
    )
    x = torch.arange(5.0)
    with pytest.raises(IndexError):
        program([x, torch.tensor([0, 1, 2, 3, 5])])
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert program([x, torch.tensor([4, 3, 2, 1, 0])])[0] is x and x.tolist() == [-4, -3, -2, -1, 0]


@pytest.mark.parametrize("n", [3, 50, 1])
def test_saved_values_cross_in_the_arena_or_as_tensors(driver: FakeDriver, n: int) -> None:
    forward = on_fake_device(PAIR, driver, "forward")
    backward = on_fake_device(PAIR, driver, "backward", saved_at=dict(forward.program.saved_at))
    assert forward.saves_in_arena and backward.sizes_wanted == ("s0",)
    x = torch.randn(n)
    (y,), lease = forward.save_in_arena([x])
    assert lease is not None and lease.tensor is not None
    torch.testing.assert_close(y, x.sin())
    torch.testing.assert_close(backward.run_from_arena([n], lease.tensor)[0], -x.cos())
    y, kept, cosine = forward([x])
    assert kept is x
    torch.testing.assert_close(cosine, x.cos())
    torch.testing.assert_close(backward([cosine])[0], -x.cos())


@pytest.mark.parametrize("second", ["a", "d"])
def test_while_reads_its_flag(second: str, driver: FakeDriver) -> None:
    program = on_fake_device(WHILE.replace("%SECOND", f"%{second}"), driver)
    x, y = torch.randn(3), -torch.rand(3)
    for n in (0, 1, 2, 5):
        a, b = x, y
        for _ in range(n):
            a, b = b, (a if second == "a" else b.exp())
        torch.testing.assert_close(program([torch.tensor(n), x, y]), [torch.tensor(0), a, b])


def test_products_of_matrices_go_into_the_program_s_memory(driver: FakeDriver) -> None:
    program = on_fake_device(
        """
func.func @main(%a: tensor<2x5x3xf32>, %b: tensor<4x3xf32>, %c: tensor<4xf32>) -> tensor<2x5x4xf32> {
  %y = kernel.extern %a, %b, %c {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [2]],
                                 ["contract_b", [1]], ["bias", "c"]], places = [["output", 0]]} : tensor<2x5x4xf32>
  func.return %y : tensor<2x5x4xf32>
}
""",
        driver,
    )
    a, b, c = torch.randn(2, 5, 3), torch.randn(4, 3), torch.randn(4)
    torch.testing.assert_close(program([a, b, c])[0], torch.nn.functional.linear(a, b, c))
    assert program.native


def test_linked_code_is_kept_and_modules_go_with_the_program(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    first = on_fake_device(CHAIN, driver, use_cache=True)
    again = on_fake_device(CHAIN, driver, use_cache=True)
    assert len(driver.linked) == 2  # loaded once for both
    del first, again
    gc.collect()
    cache.current().forget_memory()
    third = on_fake_device(CHAIN, driver, use_cache=True)
    assert len(driver.linked) == 2 and len(driver.unloaded) == 2  # from the disk; the old modules are unloaded
    torch.testing.assert_close(third([*inputs()]), chain(*inputs()))
    driver.linker = "fake 2"
    on_fake_device(SYMBOLIC, driver, use_cache=True)
    assert len(driver.linked) == 4


def test_programs_share_a_kernel_and_call_its_sizes_otherwise(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    one = on_fake_device(SYMBOLIC, driver, use_cache=True)
    other = on_fake_device(SYMBOLIC.replace("s0", "t0").replace("s1", "t1"), driver, use_cache=True)
    x = torch.randn(6, 3)
    for program in (one, other):
        torch.testing.assert_close(program([x, 5]), [2 * x * 5, 2 * x])
    assert len(driver.linked) == 2


def test_a_program_from_disk_needs_no_kernel_again(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not driver.native:
        pytest.skip("only native calls are kept")
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    first = on_fake_device(CHAIN, driver, use_cache=True)
    keep_on_device("key", first.program, first.device, ("more", 1), with_driver=driver)
    del first
    gc.collect()
    cache.current().forget_memory()
    linked = len(driver.linked)
    found = kept_on_device("key", torch.device("cpu"), with_driver=driver)
    assert found is not None and found[1] == ("more", 1) and found[0].is_one_call
    program, (x, y, b) = found[0], inputs()
    torch.testing.assert_close(program([x, y, b]), chain(x, y, b))
    assert driver.natively == 2
    odd = torch.cat([torch.zeros(1), b])[1:]  # its code for such addresses is not there: it is laid out anew
    torch.testing.assert_close(program([x, y, odd]), chain(x, y, b))
    assert len(driver.linked) == linked
    assert kept_on_device("other key", torch.device("cpu"), with_driver=driver) is None


def test_a_program_from_disk_may_have_no_native_form(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(host_program, "refusal", lambda program, launches: "it looks for errors")
    first = on_fake_device(CHAIN, driver, use_cache=True)
    keep_on_device("key", first.program, first.device, with_driver=driver)
    del first
    gc.collect()
    cache.current().forget_memory()
    linked = len(driver.linked)
    found = kept_on_device("key", torch.device("cpu"), with_driver=driver)
    assert found is not None and not found[0].is_one_call
    x, y, b = inputs()
    torch.testing.assert_close(found[0]([x, y, b]), chain(x, y, b))
    odd = torch.cat([torch.zeros(1), b])[1:]
    torch.testing.assert_close(found[0]([x, y, odd]), chain(x, y, b))
    assert len(driver.linked) == linked


def test_a_program_whose_kernels_are_gone_is_not_taken_from_disk(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    program = on_fake_device(CHAIN, driver).program  # without the cache
    keep_on_device("key", program, torch.device("cpu"), with_driver=driver)
    assert kept_on_device("key", torch.device("cpu"), with_driver=driver) is None


def test_results_at_odd_addresses_are_laid_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = torch.randn(9)[1:]
    monkeypatch.setattr(device_library, "evaluate", lambda call, operands, sizes: [odd])
    made = Buffer(Place("handle", 0), "f32", (8,), (1,))
    (found,) = library_call(LibraryCall("aten.relu.default", (), (made,)))(lambda buffer: odd, {})
    assert found.data_ptr() % 16 == 0 and found.data_ptr() != odd.data_ptr()
    torch.testing.assert_close(found, odd)
