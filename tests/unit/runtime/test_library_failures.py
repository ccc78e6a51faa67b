"""Library calls that fail, and what must not reach into a program."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unit.runtime.library_calls import Native, extern, library_operand

# ---- Failures


@pytest.mark.parametrize("handle", [False, True])
def test_failure_is_eagers_error_with_the_users_line(handle: bool, native: Native) -> None:
    singular = torch.zeros(3, 3)
    args = (library_operand(0), True)
    want = list(torch.linalg.inv_ex(torch.eye(3)))
    where = 'loc("model.py":12:9)'
    program = native(extern("aten.linalg_inv_ex.default", args, [singular], want, handle=handle, location=where))
    torch.testing.assert_close(program([torch.eye(3)])[0], torch.eye(3))
    for _ in range(3):
        with pytest.raises(torch.linalg.LinAlgError, match="singular") as caught:
            program([singular])
        assert any("model.py:12:9" in note for note in caught.value.__notes__)
    torch.testing.assert_close(program([2 * torch.eye(3)])[0], torch.eye(3) / 2)


def test_index_error_of_a_library_call(native: Native) -> None:
    x, i = torch.randn(3), torch.tensor([0, 7])
    program = native(extern("aten.index.Tensor", (library_operand(0), (library_operand(1),)), [x, i], [x[:2]]))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        program([x, i])
    torch.testing.assert_close(program([x, torch.tensor([2, 0])])[0], x[[2, 0]])


def test_error_inside_python_keeps_its_type(native: Native) -> None:
    @torch.library.custom_op("isthmus_test::picky", mutates_args=())
    def picky(x: Tensor, scale: torch.types.Number) -> Tensor:
        if float(x[0]) < 0:
            raise KeyError("negative")
        return x * scale

    x = torch.ones(3)
    program = native(extern("isthmus_test::picky.default", (library_operand(0), 3), [x], [x]))
    assert program.program.library_calls[0].route == "python"
    torch.testing.assert_close(program([x])[0], 3 * x)
    with pytest.raises(KeyError, match="negative"):
        program([-x])


def test_custom_operator_without_scalars_goes_through_the_dispatcher(native: Native) -> None:
    @torch.library.custom_op("isthmus_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    x = torch.ones(3)
    program = native(extern("isthmus_test::twice.default", (library_operand(0),), [x], [x]))
    torch.testing.assert_close(program([x])[0], 2 * x)
    assert not program.native


def test_result_of_another_shape_is_refused(native: Native) -> None:
    """An operator whose fake rule lied."""

    @torch.library.custom_op("isthmus_test::lies", mutates_args=())
    def lies(x: Tensor) -> Tensor:
        return x[:2].clone()

    x = torch.ones(3)
    for handle in (False, True):
        program = native(extern("isthmus_test::lies.default", (library_operand(0),), [x], [x], handle=handle))
        with pytest.raises(RuntimeError, match="other results than"):
            program([x])


def test_tensors_of_failed_calls_are_freed(native: Native) -> None:
    text = """
func.func @main(%x: tensor<100x100xf32>, %y: tensor<100x100xf32>) -> (tensor<100x100xf32>, tensor<i32>) {
  %a = kernel.extern %x {symbol = "aten.clone.default", args = [arg0, none], places = [["handle", 0]]}
      : tensor<100x100xf32>
  %b = kernel.extern %a {symbol = "aten.clone.default", args = [arg0, none], places = [["handle", 1]]}
      : tensor<100x100xf32>
  %c, %d = kernel.extern %y {symbol = "aten.linalg_inv_ex.default", args = [arg0, true],
      places = [["handle", 2], ["handle", 3]]} : tensor<100x100xf32>, tensor<i32>
  %e, %f = kernel.extern %b {symbol = "aten.linalg_inv_ex.default", args = [arg0, false],
      places = [["output", 0], ["output", 1]]} : tensor<100x100xf32>, tensor<i32>
  func.return %e, %f : tensor<100x100xf32>, tensor<i32>
}
"""
    program = native(text)
    good, bad = torch.eye(100), torch.zeros(100, 100)

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    def work() -> None:
        for _ in range(100):
            program([good, good])
            with pytest.raises(torch.linalg.LinAlgError):
                program([good, bad])

    work()
    before = resident()
    for _ in range(5):
        work()
    assert resident() - before < 20 * 40_000, "tensors of 40 kB leak"


@pytest.mark.row("T26")
def test_autocast_and_modes_do_not_reach_into_a_program(native: Native) -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    want = torch.conv2d(x, w)
    args = (("strides", (1, 1)), ("padding", (0, 0)), ("dilations", (1, 1)), ("groups", 1))
    program = native(extern("prim.conv", args, [x, w], [want]))
    seen: list[str] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined]
        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    with torch.autocast("cpu", dtype=torch.bfloat16), Spy():
        (got,) = program([x, w])
    assert got.dtype == torch.float32 and not seen
    torch.testing.assert_close(got, want)


def test_library_calls_release_the_gil_and_run_on_several_threads(native: Native) -> None:
    import threading

    x, w = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3)
    want = torch.conv2d(x, w)
    args = (("strides", (1, 1)), ("padding", (0, 0)), ("dilations", (1, 1)), ("groups", 1))
    program = native(extern("prim.conv", args, [x, w], [want], handle=True))
    wrong: list[int] = []

    def work() -> None:
        for _ in range(100):
            if not torch.equal(program([x, w])[0], want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
