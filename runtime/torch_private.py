"""Every use of torch's private Python interface by the runtime."""
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def storage_uses(tensor: Tensor) -> int:
    """How many tensors and storage objects hold a tensor's storage, without those of this call."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) - 1


def saved_tensors_are_hooked() -> bool:
    """Whether `torch.autograd.graph.saved_tensors_hooks` (offloading, checkpoints) are active."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def backward_keeps_graph() -> bool:
    """Inside a backward: whether the engine was asked to keep the graph for another one."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def functorch_is_active() -> bool:
    """Whether a transform of `torch.func` is running, so that tensors may be its wrappers."""
    return torch._C._are_functorch_transforms_active()


def dispatch_keys(tensor: Tensor) -> int:
    """The bits of a tensor's dispatch key set."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def no_dispatch_modes() -> AbstractContextManager[object]:
    """A context in which no `TorchDispatchMode` is asked."""
    return torch._C._DisableTorchDispatch()


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
