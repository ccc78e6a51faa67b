"""Views of every kind, read, written and returned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.unit.passes.functionalize.harness import agree, check_program, tensor


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# ---- Views of every kind, read and written

SQUARE, FLAT, CUBE, PLANE = (3, 3), (6,), (2, 3, 4), (4, 6)

VIEWS: list[tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = [
    (FLAT, lambda x: x.alias() if hasattr(x, "alias") else torch.ops.aten.alias(x)),
    (FLAT, lambda x: x.as_strided((2, 2), (3, 1), 1)),
    (CUBE, lambda x: x.transpose(0, 2).as_strided((3, 2), (4, 12), 3)),
    (FLAT, lambda x: x.broadcast_to(1, 6)),
    (CUBE, lambda x: x.expand(2, 3, 4)),
    (FLAT, lambda x: x.expand_as(torch.zeros(1, 6))),
    (PLANE, lambda x: x.chunk(3, 1)[1]),
    (PLANE, lambda x: x.chunk(4)[3]),
    (FLAT, lambda x: x.contiguous()),
    (FLAT, lambda x: x.detach()),
    (CUBE, lambda x: x.diagonal(1, 0, 2)),
    (CUBE, lambda x: torch.linalg.diagonal(x, offset=-1)),
    (CUBE, lambda x: x.dsplit(2)[1]),
    (CUBE, lambda x: x.dsplit([1, 3])[1]),
    (CUBE, lambda x: x.flatten(1)),
    (PLANE, lambda x: x.hsplit(3)[2]),
    (PLANE, lambda x: x.hsplit([2])[0]),
    (CUBE, lambda x: x.mH),
    (CUBE, lambda x: x.adjoint()),
    (SQUARE, lambda x: x.H),
    (CUBE, lambda x: x.mT),
    (CUBE, lambda x: x.moveaxis(0, 2)),
    (CUBE, lambda x: x.movedim((0, 1), (2, 0))),
    (CUBE, lambda x: x.narrow(1, 1, 2)),
    (CUBE, lambda x: x.narrow(1, -2, 2)),
    (SQUARE, lambda x: x.T),
    (CUBE, lambda x: x.permute(2, 0, 1)),
    (FLAT, lambda x: x.positive()),
    (CUBE, lambda x: x.ravel()),
    (FLAT, lambda x: x.real),
    (CUBE, lambda x: x.reshape(6, -1)),
    (CUBE, lambda x: x.reshape_as(torch.zeros(4, 6))),
    (FLAT, lambda x: x.resolve_conj()),
    (CUBE, lambda x: x.select(-1, -2)),
    (CUBE, lambda x: x[:, 1:]),
    (CUBE, lambda x: x[..., ::3]),
    (CUBE, lambda x: x[1, :, 1]),
    (CUBE, lambda x: x[:, None, 1:2]),
    (PLANE, lambda x: x.split(4, 1)[1]),
    (PLANE, lambda x: x.split([1, 2, 3], 1)[2]),
    (PLANE, lambda x: torch.split_with_sizes(x, [1, 3])[1]),
    ((1, 3, 1), lambda x: x.squeeze()),
    ((1, 3, 1), lambda x: x.squeeze(0)),
    ((1, 3, 1), lambda x: x.squeeze((0, 2))),
    (CUBE, lambda x: x.swapaxes(0, 2)),
    (CUBE, lambda x: x.swapdims(1, 2)),
    (PLANE, lambda x: x.t()),
    (PLANE, lambda x: x.tensor_split(4, 1)[0]),
    (PLANE, lambda x: x.tensor_split([1, 4], 1)[1]),
    (FLAT, lambda x: x.to(torch.float64)),
    (CUBE, lambda x: x.transpose(1, 2)),
    (CUBE, lambda x: x.unbind(1)[2]),
    (PLANE, lambda x: x.unflatten(1, (2, 3))),
    (FLAT, lambda x: x.unfold(0, 2, 2)),
    (FLAT, lambda x: x.unfold(0, 2, 4)),
    (CUBE, lambda x: x.unfold(2, 2, 2)),
    (CUBE, lambda x: x.unsqueeze(1)),
    (CUBE, lambda x: x.view(4, 6)),
    (CUBE, lambda x: x.view_as(torch.zeros(6, 4))),
    (PLANE, lambda x: x.vsplit(2)[1]),
    (PLANE, lambda x: x.vsplit([1, 2])[1]),
    (PLANE, lambda x: torch.broadcast_tensors(x, torch.zeros(4, 6))[0]),
    (FLAT, lambda x: torch.atleast_2d(x)),
    (PLANE, lambda x: torch.meshgrid(x[0], x[:1, 0], indexing="ij")[0]),
    (PLANE, lambda x: F.dropout(x, 0.5, training=False)),
    (PLANE, lambda x: x.T[1:].T[:, ::2].unsqueeze(0)[0, 1]),
    ((2, 4, 2), lambda x: x.transpose(0, 1).diagonal(0, 1, 2)[1:]),
]


@pytest.mark.parametrize(("shape", "view"), VIEWS)
@pytest.mark.parametrize("fresh", [True, False])
def test_views_are_read_written_and_returned(shape: tuple[int, ...], view: Callable[[Tensor], Tensor], fresh: bool):
    def f(x: Tensor) -> tuple[Tensor, ...]:
        x = x + 0 if fresh else x
        before = view(x)
        y = view(x)
        y.mul_(2)
        return y, before.sin(), x.cos(), view(x).exp(), before

    assert check_program(f, [tensor(*shape)]) != "refused"


COMPLEX: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.conj(),
    lambda x: x.conj().t(),
    lambda x: x.mH,
    lambda x: x.adjoint()[0],
    lambda x: x.H,
    lambda x: x.real,
    lambda x: x.imag,
    lambda x: x.conj().imag,
    lambda x: torch.view_as_real(x),
    lambda x: torch.view_as_complex(torch.view_as_real(x)[1]),
    lambda x: x.view(torch.float64),
    lambda x: x.resolve_conj(),
]


@pytest.mark.parametrize("view", COMPLEX)
def test_views_of_complex_numbers(view: Callable[[Tensor], Tensor]):
    def f(x: Tensor) -> tuple[Tensor, ...]:
        x = x * 1
        y = view(x)
        y.mul_(0.5)
        return x.sin(), view(x).cos(), y.exp()

    agree(f, torch.randn(3, 3, dtype=torch.complex128))


def test_bits_of_other_types():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        bits = x.view(torch.int64)
        bits.bitwise_and_(-1024)
        halves = x.view(torch.int32)
        halves[::2] = 0
        return x, halves

    agree(f, tensor(4, grad=False))


def test_a_write_of_one_number_reaches_every_repeated_element():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x[:, :1].expand(3, 4)
        y.zero_()
        x[1].expand(2, 3).fill_(2.5)
        return x.sin(), y

    agree(f, tensor(3, 3, grad=False))
