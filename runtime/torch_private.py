"""Every use of torch's private Python interface by the runtime."""
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

_ADD_BATCH_DIM = getattr(torch, "_add_batch_dim")  # noqa: B009 (torch hides the name from type checkers)
_REMOVE_BATCH_DIM = getattr(torch, "_remove_batch_dim")  # noqa: B009


def storage_uses(tensor: Tensor) -> int:
    """How many tensors and storage objects hold a tensor's storage, without those of this call."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) - 1


def library_settings() -> tuple[object, ...]:
    """What torch's products, convolutions and attention on a GPU look at when they are called: TF32 and the like."""
    c = torch._C
    precision = _precision()
    if precision is None:
        tf32: tuple[object, ...] = (c._get_cublas_allow_tf32(), c._get_cudnn_allow_tf32())
    else:
        tf32 = (precision("cuda", "matmul"), precision("cuda", "conv"), precision("cuda", "all"))
    sums = (
        c._get_cublas_allow_bf16_reduced_precision_reduction(),
        c._get_cublas_allow_fp16_reduced_precision_reduction(),
    )
    return (*tf32, *sums, c._get_deterministic_algorithms(), c._get_cudnn_sdp_enabled())


def _precision() -> Callable[[str, str], str] | None:
    """What says how exactly f32 is multiplied; older torch has two flags in its place."""
    return getattr(torch._C, "_get_fp32_precision_getter", None)


def multiplies_in_tf32(device: torch.device) -> bool:
    """Whether products of f32 on a device may be made in TF32, by torch's setting now and the device's abilities."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    precision = _precision()
    return torch._C._get_cublas_allow_tf32() if precision is None else precision("cuda", "matmul") == "tf32"


def saved_tensors_are_hooked() -> bool:
    """Whether `torch.autograd.graph.saved_tensors_hooks` (offloading, checkpoints) are active."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def backward_keeps_graph() -> bool:
    """Inside a backward: whether the engine was asked to keep the graph for another one."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def functorch_is_active() -> bool:
    """Whether a transform of `torch.func` is running, so that tensors may be its wrappers."""
    return torch._C._are_functorch_transforms_active()


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor is a wrapper of a running transform."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def has_storage(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own kind; wrappers of transforms have none."""
    return torch._C._has_storage(tensor)


@dataclass(frozen=True, order=True)
class Batch:
    """A running `vmap`: of `torch.func`, or the older one that batched gradients use."""

    level: int
    legacy: bool


def batch_of(tensor: Tensor) -> Batch | None:
    """The innermost `vmap` that a tensor is a wrapper of."""
    if torch._C._functorch.is_batchedtensor(tensor):
        return Batch(torch._C._functorch.maybe_get_level(tensor), False)
    if "Batched" not in repr(torch._C._dispatch_keys(tensor)):
        return None
    deepest = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    levels = (n for n in range(deepest, 1, -1) if _REMOVE_BATCH_DIM(tensor, n, 0, 0).shape[0] != 0)
    return Batch(next(levels, 1), True)


def unbatched(tensor: Tensor, batch: Batch) -> Tensor:
    """The tensor in a wrapper, with its batch as the first dimension."""
    if batch.legacy:
        return _REMOVE_BATCH_DIM(tensor, batch.level, 0, 0)
    inner = torch._C._functorch.get_unwrapped(tensor)
    return inner.movedim(torch._C._functorch.maybe_get_bdim(tensor), 0)


def with_batch(tensor: Tensor, batch: Batch) -> Tensor:
    """Wrap a tensor whose first dimension is the batch."""
    if batch.legacy:
        return _ADD_BATCH_DIM(tensor, 0, batch.level)
    return torch._C._functorch._add_batch_dim(tensor, 0, batch.level)


def dispatch_keys(tensor: Tensor) -> int:
    """The bits of a tensor's dispatch key set."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def no_dispatch_modes() -> AbstractContextManager[object]:
    """A context in which no `TorchDispatchMode` is asked."""
    return torch._C._DisableTorchDispatch()


_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?: .* :: \((.*)\) -> ", re.MULTILINE)
"""A kernel in the dispatcher's own account of an operator: its key and the types of its arguments."""

_BELOW_AUTOGRAD = (
    "CPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
"""Where the kernel of a call on CPU tensors is looked for when autograd's keys are off, in order."""


def kernel_arguments(name: str) -> str | None:
    """The argument types of an operator's CPU kernel, e.g. "Tensor _0, int[] _1"; None where it does not say.

    They may be narrower than the schema's: many kernels of a `SymInt[]` take plain numbers only.
    """
    kernels = dict(_KERNEL.findall(torch._C._dispatch_dump(name)))
    return next((kernels[key] for key in _BELOW_AUTOGRAD if key in kernels), None)


def current_stream(device: torch.device) -> int:
    """The handle of torch's current stream on a device; 0 where it has none."""
    return torch._C._cuda_getCurrentRawStream(device.index or 0) if device.type == "cuda" else 0


def stream_of(device: torch.device) -> Callable[[], int]:
    """What `current_stream` gives for a device, as a function without a Python frame where there are streams."""
    return partial(torch._C._cuda_getCurrentRawStream, device.index or 0) if device.type == "cuda" else int


def number_of_current() -> Callable[[], int]:
    """The number of the GPU that this thread's work goes to, as a function without a Python frame."""
    return torch._C._cuda_getDevice


def device_is_current(device: torch.device) -> bool:
    """Whether this thread's work goes to a GPU already."""
    return torch._C._cuda_getDevice() == (device.index or 0)


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of a GPU records a graph."""
    return device.type == "cuda" and torch._C._cuda_isCurrentStreamCapturing()


def restore_generator(device: torch.device) -> None:
    """After a capture that failed: the device's default generator would wait for the end of it, and refuse to draw."""
    generator = torch.cuda.default_generators[device.index or 0]
    if hasattr(generator, "graphsafe_set_state"):
        generator.graphsafe_set_state(generator.clone_state())


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, in few launches."""
    torch._foreach_copy_(targets, sources)


def excluded_keys() -> int:
    """The key set that is off around library calls of compiled code: autograd, autocast, Python's modes.

    What a program casts and differentiates is written in it; a mode sees the compiled call, not its inside.
    """
    names = (
        "AutogradOther",
        "AutogradCPU",
        "AutogradCUDA",
        "ADInplaceOrView",
        "AutocastCPU",
        "AutocastCUDA",
        "Python",
        "PythonTLSSnapshot",
    )
    found = 0
    for name in names:
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            found |= int(torch._C.DispatchKeySet(key).raw_repr())
    return found
