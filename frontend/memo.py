"""What a call gives on fake tensors, remembered: equal calls on tensors of equal shapes ask torch's fake kernels once.

A program repeats itself (layers, unrolled steps), and a fake kernel costs a quarter of a millisecond and more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from isthmus.frontend.fakes import fresh
from isthmus.frontend.torch_private import (
    as_kernels_see,
    dispatch_keys,
    is_composite,
    schema_of,
    storage_of,
)

_LIMIT = 20_000

Key = tuple[object, ...]


@dataclass(frozen=True)
class FakeLooks:
    """How a tensor that is made anew looks."""

    shape: Sequence[int | torch.SymInt]
    strides: Sequence[int | torch.SymInt]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class _Remembered:
    """What a call gives: `results` by their looks, or (None) views that the operator itself makes."""

    results: tuple[FakeLooks, ...] | None
    container: type | None
    """list or tuple, where it does not give one tensor."""


_STATIC: dict[Key, _Remembered] = {}
"""Calls whose sizes are all numbers, from every program of the process."""


class Memo(TorchDispatchMode):
    """Entered above a fake mode: answers calls below autograd that it has seen, passes everything else on."""

    supports_higher_order_operators = True

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self._symbolic: dict[Key, _Remembered] = {}
        """Calls with symbolic sizes; the guards that they need are in the mode's shape environment since the first."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the recorder above is skipped already: no need to ask Dynamo twice

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is _DEVICE and type(args[0]) is FakeTensor and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device
        if not _depends_on_looks(func):
            return func(*args, **(kwargs or {}))
        reader = KeyReader(self.fake_mode)
        parts = [*map(reader.part, args)]
        if kwargs:
            parts += [(name, reader.part(value)) for name, value in kwargs.items()]
        if not reader.known or torch.is_inference_mode_enabled():
            return func(*args, **(kwargs or {}))
        key = (func, torch.get_default_dtype(), *parts)
        table = self._symbolic if reader.symbolic else _STATIC
        found = table.get(key)
        if found is not None:
            return self._again(found, func, args, kwargs or {}, reader.tensors)
        result = func(*args, **(kwargs or {}))
        learnt = self._learn(func, result, reader)
        if learnt is not None:
            if len(table) > _LIMIT:
                table.clear()
            table[key] = learnt
        return result

    def _again(
        self,
        found: _Remembered,
        func: OpOverload,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        tensors: Sequence[FakeTensor],
    ) -> object:
        if found.results is None:
            device = tensors[0].fake_device
            with as_kernels_see(self.fake_mode):
                views = func(*args, **kwargs)
            if found.container is None:
                return FakeTensor(self.fake_mode, views, device)
            return found.container([FakeTensor(self.fake_mode, v, device) for v in cast(Sequence[Tensor], views)])
        made = [self._made(f) for f in found.results]
        return made[0] if found.container is None else found.container(made)

    def _made(self, looks: FakeLooks) -> FakeTensor:
        return fresh(self.fake_mode, looks.shape, looks.strides, looks.dtype, looks.device)

    def _learn(self, func: OpOverload, result: object, reader: KeyReader) -> _Remembered | None:
        """Give what to remember of a call; None where it gives anything but plain new tensors, or views of one."""
        container = type(result) if isinstance(result, list | tuple) else None
        flat = [result] if container is None else list(cast(Sequence[object], result))
        plain = [r for r in flat if is_plain(r, self.fake_mode)]
        if not plain or len(plain) != len(flat) or container not in (None, list, tuple):
            return None
        given = {storage_of(t) for t in reader.tensors}
        if func.is_view:
            views = len(reader.tensors) == 1 and not reader.symbolic and all(storage_of(r) in given for r in plain)
            return _Remembered(None, container) if views else None
        storages = {storage_of(r) for r in plain}
        if len(storages) != len(plain) or storages & given:
            return None
        looks = tuple(FakeLooks(tuple(r.shape), r.stride(), r.dtype, r.fake_device) for r in plain)
        if not reader.symbolic and not all(
            dispatch_keys(self._made(f)) == dispatch_keys(r) and fills_its_storage(r)
            for f, r in zip(looks, plain, strict=True)
        ):
            return None
        return _Remembered(looks, container)


class KeyReader:
    """What a call's result depends on: how its tensors look, and every other argument with its type."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        self.fake_mode = fake_mode
        self.known = True
        self.symbolic = False
        self.tensors: list[FakeTensor] = []

    def part(self, value: object) -> object:
        """Give what a key needs to know of an argument."""
        if isinstance(value, Tensor):
            return self._looks(value)
        if isinstance(value, list | tuple):
            return tuple([self.part(v) for v in cast(Sequence[object], value)])
        if isinstance(value, torch.SymInt):
            self.symbolic = True
            return value.node.expr
        if value is None or isinstance(value, _PLAIN):
            return type(value), value
        self.known = False
        return None

    def _looks(self, tensor: Tensor) -> object:
        if not is_plain(tensor, self.fake_mode):
            self.known = False
            return None
        self.tensors.append(tensor)
        shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        keys = dispatch_keys(tensor), tensor.requires_grad
        if type(offset) is not int or not all(type(n) is int for n in (*shape, *strides)):
            self.symbolic = True
            sizes = tuple([_expression(n) for n in (*shape, *strides, offset)])
            return len(shape), sizes, tensor.dtype, tensor.fake_device, keys
        return shape, strides, offset, tensor.dtype, tensor.fake_device, keys


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)

_DEVICE = torch.ops.prim.device.default

_TAGS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
    torch.Tag.maybe_aliasing_or_mutating,
}


@cache
def _depends_on_looks(func: object) -> bool:
    """Tell whether a call gives new tensors, or views of one, that look as its arguments' looks say."""
    if not isinstance(func, OpOverload):
        return False
    schema = schema_of(func)
    if func.namespace != "aten" or _TAGS & set(func.tags) or is_composite(func) or "lift" in schema.name:
        return False
    aliases = [a.alias_info for a in schema.arguments if a.alias_info is not None]
    if not any("Tensor" in str(a.type) for a in schema.arguments) or any(info.is_write for info in aliases):
        return False
    return func.is_view or (not aliases and all("Tensor" in str(r.type) for r in schema.returns))


def is_plain(value: object, fake_mode: FakeTensorMode) -> TypeGuard[FakeTensor]:
    """Tell whether a value is a fake tensor that its looks say everything about."""
    if type(value) is not FakeTensor or value.fake_mode is not fake_mode or value.constant is not None:
        return False
    return value.layout is torch.strided


def _expression(size: int | torch.SymInt) -> object:
    return size if type(size) is int else cast(torch.SymInt, size).node.expr


def fills_its_storage(tensor: Tensor) -> bool:
    """Tell whether a tensor's storage begins and ends where it does."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == (last + 1) * tensor.element_size()
