"""Fake tensors made without torch's converter, where a tensor's looks say all that one knows of it."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from isthmus.frontend.torch_private import dispatch_keys, keeps_data, known_ids, transform_depth, undispatched

Sizes = Sequence[int | torch.SymInt]

_LOG = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def silence() -> Generator[None]:
    """Keep torch from writing a stack for every call that its fakes refuse: the error itself tells it."""
    level = _LOG.level
    _LOG.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _LOG.setLevel(level)


def fresh(
    fake_mode: FakeTensorMode,
    shape: Sizes,
    strides: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool = False,
) -> FakeTensor:
    """Give a new fake tensor, in memory of its own, a leaf."""
    with undispatched():
        empty = torch.empty_strided(shape, strides, dtype=dtype, device="meta").requires_grad_(requires_grad)
    return FakeTensor(fake_mode, empty, device)


def fake_of_real(fake_mode: FakeTensorMode, tensor: Tensor) -> FakeTensor:
    """Give the one fake that a mode has for a real tensor, all sizes as numbers.

    That of a plain leaf in memory that the mode has not met is made here: torch's converter takes ten times as long.
    """
    if not _is_plain(tensor) or keeps_data(fake_mode):
        return fake_mode.from_tensor(tensor, static_shapes=True)
    met, storages, index, storage = known_ids(fake_mode, tensor)
    if index in met or storage in storages:
        return fake_mode.from_tensor(tensor, static_shapes=True)
    fake = fresh(fake_mode, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
    if type(tensor) is nn.Parameter:
        setattr(fake, "_is_param", True)  # noqa: B010
    met[index], storages[storage] = fake, fake.untyped_storage()
    return fake


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf that fills no other's memory and has nothing that its looks do not tell."""
    if transform_depth() or torch.is_inference_mode_enabled():  # what is made then is marked by it
        return False
    if type(tensor) not in (Tensor, nn.Parameter) or not tensor.is_leaf or tensor.storage_offset():
        return False
    if dispatch_keys(tensor) != _plain_keys(tensor.device) or getattr(tensor, "_is_view")():  # noqa: B009
        return False
    return tensor.layout is torch.strided and getattr(tensor, "grad_dtype", None) in (None, tensor.dtype)


@cache
def _plain_keys(device: torch.device) -> int:
    """The dispatch keys of a tensor that is neither conjugate, nested, sparse, batched nor of inference mode."""
    with undispatched():
        return dispatch_keys(torch.empty(0, device=device))
