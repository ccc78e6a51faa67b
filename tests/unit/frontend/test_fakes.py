"""Fakes that are made without torch's converter are the ones that it would make."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from isthmus.frontend.fakes import fake_of_real
from isthmus.frontend.torch_private import dispatch_keys, storage_of


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3)


MADE: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.ones(3, 4),
    "parameter": lambda: nn.Parameter(torch.ones(3, 4)),
    "transposed": lambda: torch.ones(3, 4).t(),
    "strided": lambda: torch.empty_strided((3, 4), (1, 5)),
    "a part": lambda: torch.ones(8)[2:5],
    "expanded": lambda: torch.ones(1).expand(4),
    "no elements": lambda: torch.ones(0, 3),
    "a number": lambda: torch.tensor(2.0),
    "integers": lambda: torch.arange(4),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "with history": lambda: torch.ones(3, requires_grad=True) * 2,
    "no leaf's view": lambda: torch.ones(3, requires_grad=True).view(3, 1),
    "of inference": inference,
    "set": lambda: torch.ones(1).set_(torch.ones(8).untyped_storage(), 2, (2,), (3,)),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("in_inference", [False, True])
def test_it_is_torchs_own(name: str, in_inference: bool):
    tensor = MADE[name]()
    with torch.inference_mode(in_inference):
        ours, theirs = fake_of_real(FakeTensorMode(), tensor), FakeTensorMode().from_tensor(tensor, static_shapes=True)
    assert type(ours) is type(theirs) and isinstance(ours, nn.Parameter) == isinstance(theirs, nn.Parameter)
    assert (ours.shape, ours.stride(), ours.storage_offset()) == (
        theirs.shape,
        theirs.stride(),
        theirs.storage_offset(),
    )
    assert (ours.dtype, ours.device, ours.layout) == (theirs.dtype, theirs.device, theirs.layout)
    assert (ours.requires_grad, ours.is_leaf) == (theirs.requires_grad, theirs.is_leaf)
    assert dispatch_keys(ours) == dispatch_keys(theirs)


def test_each_tensor_has_one_fake_and_shared_memory_stays_shared():
    mode, base = FakeTensorMode(), torch.ones(8)
    other = torch.empty(0).set_(base.untyped_storage(), 0, (8,), (1,))
    fakes = [fake_of_real(mode, t) for t in (base, base[2:4], other, torch.ones(8))]
    assert fake_of_real(mode, base) is fakes[0] is mode.from_tensor(base, static_shapes=True)
    assert len({storage_of(f) for f in fakes[:3]}) == 1 and storage_of(fakes[3]) != storage_of(fakes[0])
