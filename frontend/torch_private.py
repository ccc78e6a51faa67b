"""Every private corner of torch that capture reaches into, in one file."""

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload, _get_dispatch_mode_pre_dispatch, _set_mode_pre_dispatch, unset_mode_pre_dispatch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode


def storage_of(tensor: Tensor) -> int:
    """Give what identifies a tensor's storage."""
    return tensor.untyped_storage()._cdata


def dispatch_keys(tensor: Tensor) -> int:
    """Give which of torch's dispatch keys a tensor has: device, conjugate and negative bits, autograd."""
    return torch._C._dispatch_keys(tensor).raw_repr()


def open_transforms() -> set[str]:
    """Give the kinds of torch.func's transforms that are open: "Grad", "Jvp", "Vmap"."""
    return {level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()}


@contextmanager
def as_kernels_see(fake_mode: FakeTensorMode) -> Generator[None]:
    """Run on fake tensors as the meta tensors that they are; gives meta tensors."""
    with in_kernel_invocation_manager(fake_mode):
        yield


@contextmanager
def below_modes(fake_mode: FakeTensorMode) -> Generator[None]:
    """Work on fake tensors as the meta tensors that they are, seen by no mode, no tape, no dispatcher in Python."""
    with (
        in_kernel_invocation_manager(fake_mode),
        torch._C._ExcludeDispatchKeyGuard(_PRE_DISPATCH),
        torch._C._DisablePythonDispatcher(),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        yield


_PRE_DISPATCH = torch._C.DispatchKeySet(torch._C.DispatchKey.PreDispatch)


def keeps_data(fake_mode: FakeTensorMode) -> bool:
    """Tell whether a mode computes with the real tensors beside its fakes."""
    return fake_mode.fake_tensor_converter.meta_converter.copy_data


def known_ids(
    fake_mode: FakeTensorMode, tensor: Tensor
) -> tuple[MutableMapping[Any, FakeTensor], MutableMapping[Any, torch.UntypedStorage], int, int]:
    """Give the fakes and the storages of fakes that a mode has made, by ids, then a real tensor's ids in these."""
    converter = fake_mode.fake_tensor_converter.meta_converter
    describer = converter.describer
    index, storage = describer.get_tensor_id(tensor), describer.get_storage_id(tensor.untyped_storage())
    return converter.tensor_memo, converter.storage_memo, index, storage


def undispatched() -> AbstractContextManager[None]:
    """Make tensors that no mode sees."""
    return torch._C._DisableTorchDispatch()


def schema_of(overload: OpOverload) -> torch.FunctionSchema:
    """Give the schema of an overload."""
    return overload._schema


def is_wrapped_by_functorch(tensor: Tensor) -> bool:
    """Tell whether a tensor is a batched or gradient-tracking stand-in of torch.func."""
    return is_functorch_wrapped_tensor(tensor)


def number_in(tensor: Tensor) -> bool | int | float | complex:
    """Read the one number of a real tensor while fake modes are on."""
    with no_dispatch():
        return tensor.item()


@contextmanager
def outside_modes() -> Generator[None]:
    """Make real tensors in the middle of a trace: no mode sees what happens here."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def without_torch_function() -> Generator[None]:
    """Look at tensors without a mode that watches functions seeing it."""
    with torch._C.DisableTorchFunction():
        yield


def has_autocast_rule(overload: OpOverload, device: str) -> bool:
    """Tell whether autocast has a kernel of its own for an overload on a device."""
    key = {"cuda": "AutocastCUDA"}.get(device, "AutocastCPU")
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)


def is_composite(overload: OpOverload) -> bool:
    """Tell whether an overload is made of others, so that its parts can be recorded instead."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in overload.py_kernels or overload.has_kernel_for_dispatch_key(key)


def decompose(overload: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Run a composite overload's body."""
    return overload.decompose(*args, **kwargs)


@contextmanager
def python_dispatcher() -> Generator[None]:
    """Torch's dispatcher in Python: what shows calls to modes before autograd."""
    with enable_python_dispatcher():
        yield


@contextmanager
def paused(mode: ProxyTorchDispatchMode) -> Generator[None]:
    """Take a pre-dispatch mode off the stack, if it is on it."""
    key = torch._C._TorchDispatchModeKey.PROXY
    if _get_dispatch_mode_pre_dispatch(key) is not mode:
        yield
        return
    unset_mode_pre_dispatch(key)
    try:
        yield
    finally:
        _set_mode_pre_dispatch(mode)


def is_entered(mode: ProxyTorchDispatchMode) -> bool:
    """Tell whether a pre-dispatch mode sees what runs now."""
    return _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY) is mode


@contextmanager
def batched_tensors(
    size: int | torch.SymInt,
) -> Generator[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]:
    """Enter a level of vmap; gives how a tensor becomes batched along dimension 0, and plain again."""
    functorch = torch._C._functorch
    level = functorch._vmap_increment_nesting(size, "error")
    try:
        yield (
            lambda t: functorch._add_batch_dim(t, 0, level),
            lambda t: functorch._remove_batch_dim(t, level, size, 0),
        )
    finally:
        functorch._vmap_decrement_nesting()


def has_stacked_modes() -> bool:
    """Tell whether a transform of torch.func is entered, or a mode that watches functions beside the one that runs."""
    return transform_depth() > 0 or torch._C._len_torch_function_stack() > 0


def is_tensor_method(function: object) -> bool:
    """Tell whether a function is a method of tensors that is written in C."""
    return getattr(function, "__objclass__", None) is torch._C.TensorBase


def transform_depth() -> int:
    """Give how many transforms of torch.func are entered."""
    return len(torch._C._functorch.get_interpreter_stack() or ())


def leave_transforms(depth: int) -> None:
    """Leave transforms until only so many are entered."""
    if transform_depth() > depth:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def dynamo_source(placeholder: Any) -> Any:
    """Give where Dynamo reads an input from, or None."""
    return getattr(placeholder, "_dynamo_source", None)


def dynamo_accepts(setting: str) -> bool:
    """Tell whether this torch's `optimize` knows a keyword."""
    return setting in inspect.signature(torch._dynamo.eval_frame._optimize).parameters


def checkpoint_generator() -> Callable[..., object]:
    """Give the generator that runs around a checkpointed call."""
    return torch.utils.checkpoint._checkpoint_without_reentrant_generator


def tables_of(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Give the tables in which a module keeps tensors: parameters, buffers, attributes."""
    return module._parameters, module._buffers, vars(module)


def spread_over(prefix: object, structure: pytree.TreeSpec) -> list[object] | None:
    """Give the entry of a prefix tree for each leaf of a structure, or None where it does not fit."""
    return pytree._broadcast_to_and_flatten(prefix, structure)  # pyright: ignore


def skip_frames_of(*packages: str) -> None:
    """Tell Dynamo that the code of these packages is never part of a user's program."""
    for package in packages:
        torch._dynamo.trace_rules.add(package)
