"""Calls that capture has seen before look as if torch's fake kernels had been asked again."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from isthmus.frontend.memo import Memo
from isthmus.frontend.torch_private import dispatch_keys, storage_of

CALLS = {
    "mul": lambda x: x * 2.0,
    "integer division": lambda x: x.int() / 2,
    "view": lambda x: x.t(),
    "offset": lambda x: x[1:],
    "views": lambda x: x.split(1),
    "several": lambda x: x.max(1),
    "conjugate": lambda x: torch.view_as_real(torch.complex(x, x).conj().resolve_conj()),
    "sparse": lambda x: x.to_sparse().to_dense(),
    "strided": lambda x: torch.empty_like(x.t()),
    "number": lambda x: x.sum(),
}


def looks(tensor: torch.Tensor) -> tuple[object, ...]:
    shape, strides = (tuple(map(str, v)) for v in (tensor.shape, tensor.stride()))
    return shape, strides, str(tensor.storage_offset()), tensor.dtype, tensor.device, dispatch_keys(tensor)


def flat(value: object) -> list[torch.Tensor]:
    return [v for v in (value if isinstance(value, tuple | list) else [value]) if isinstance(v, torch.Tensor)]


def asked(mode: FakeTensorMode) -> list[object]:
    """What reaches the fake mode from now on."""
    seen: list[object] = []
    inner = mode.dispatch

    def dispatch(func: object, *rest: object) -> object:
        seen.append(func)
        return inner(func, *rest)  # pyright: ignore

    mode.dispatch = dispatch  # pyright: ignore
    return seen


def test_second_calls_look_like_the_first() -> None:
    mode = FakeTensorMode()
    x = mode.from_tensor(torch.randn(2, 3))
    for name, call in CALLS.items():
        with mode:
            expected = flat(call(x))
        with mode, Memo(mode):
            for _ in range(3):
                given = flat(call(x))
                assert [looks(t) for t in given] == [looks(t) for t in expected], name
                assert [storage_of(t) == storage_of(x) for t in given] == [
                    storage_of(t) == storage_of(x) for t in expected
                ], name


def test_a_seen_call_does_not_reach_the_fake_mode() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x, y = mode.from_tensor(torch.randn(5, 6)), mode.from_tensor(torch.randn(5, 6))
    with mode, Memo(mode):
        torch.sin(x)
        seen = asked(mode)
        again = torch.sin(y)
        assert not seen and type(again) is FakeTensor
        torch.sin(y.t())
        assert seen  # other strides


def test_numbers_of_another_type_are_another_call() -> None:
    mode = FakeTensorMode()
    x = mode.from_tensor(torch.ones(3, dtype=torch.int64))
    with mode, Memo(mode):
        assert [(x + n).dtype for n in (1, 1.0, True, 1.0)] == [torch.int64, torch.float32, torch.int64, torch.float32]


def test_the_default_dtype_is_part_of_a_call() -> None:
    mode = FakeTensorMode()
    x = mode.from_tensor(torch.ones(3, dtype=torch.int64))
    with mode, Memo(mode):
        assert (x / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (x / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_symbolic_sizes_stay_symbolic() -> None:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(5, 6), symbolic_context=context)
    with mode, Memo(mode):
        first = torch.cat([x, x]).exp()
        seen = asked(mode)
        second = torch.cat([x, x]).exp()
        assert torch.ops.aten.exp.default not in seen
    assert looks(first) == looks(second)
    assert isinstance(second.shape[0], torch.SymInt)
