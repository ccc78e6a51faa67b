"""What eager refuses for its dtypes: a call is tried on small real tensors, once for each combination of dtypes.

Fake tensors do not know which kernels there are: `bitwise_and` of floats has a shape and a dtype, and no kernel. The
error is eager's own, with the place in the user's program as a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from isthmus.diagnostics import SourceLocation
from isthmus.frontend.leaves import tensors_in
from isthmus.frontend.torch_private import outside_modes

SMALL = 1 << 10
"""Elements of a tensor that is made as it is; of a larger one, for what works element by element, one is made."""

_ABOUT_DTYPES = re.compile(
    r"not implemented for|negative integer powers|can't be cast|[Bb]ool|dtype|[Cc]omplex|does not support|only support"
    r"|used as indices"
)
_NOTE = "eager refuses this call"
_RULE = "the shape rule of an operator says so"
_known: dict[Hashable, Exception | None] = {}


def refusal(
    func: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    results: object,
    where: SourceLocation | None,
) -> Exception | None:
    """Give the error that eager raises for the dtypes of a call on fake tensors, None where it raises none."""
    tensors = tensors_in(args, kwargs)
    if func.namespace != "aten" or not tensors or any(t.device.type != "cpu" or t.is_sparse for t in tensors):
        return None
    small = all(map(_is_small, tensors)) and not any(map(_is_large, tensors_in(results)))
    if not small and torch.Tag.pointwise not in func.tags and not func.name().startswith("aten::__"):
        return None
    key = (func, _kind(args), _kind(kwargs))
    if key not in _known:
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        _known[key] = _tried(func, lambda: pytree.tree_unflatten([_real(v, small) for v in leaves], spec))
    known = _known[key]
    if known is None:
        return None
    error = type(known)(*known.args)
    error.add_note(f"{_NOTE}: {func.name()}" + (f", {where}" if where else ""))
    return error


def is_refusal(error: BaseException) -> bool:
    """Tell whether an error is eager's own, found by `refusal`."""
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def noted_as_rules(error: Exception, func: OpOverload) -> None:
    """Note that an error is of the shape rule of an operator that is not torch's: its check is a check at compile."""
    if func.namespace not in ("aten", "prims", "prim"):
        error.add_note(f"{_RULE}: {func.name()}")


def is_of_a_rule(error: BaseException) -> bool:
    """Tell whether an error is of the shape rule of an operator that is not torch's."""
    return any(note.startswith(_RULE) for note in getattr(error, "__notes__", ()))


def _tried(
    func: OpOverload, arguments: Callable[[], tuple[Sequence[object], Mapping[str, object]]]
) -> Exception | None:
    draws = torch.Tag.nondeterministic_seeded in func.tags
    with outside_modes(), torch.no_grad(), torch.random.fork_rng([], enabled=draws):
        try:
            args, kwargs = arguments()
            func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if _ABOUT_DTYPES.search(str(error)):
                return error.with_traceback(None)
        except Exception:  # the small tensors do not suit it: that says nothing
            return None
    return None


def _is_small(value: Tensor) -> bool:
    known = value.layout is torch.strided and all(type(s) is int for s in value.shape)
    return known and value.numel() <= SMALL


def _is_large(value: Tensor) -> bool:
    """Whether the small tensors would make a large one; sizes that depend on data are no larger than the operands."""
    return all(type(s) is int for s in value.shape) and value.numel() > SMALL


def _kind(leaf: object) -> Hashable:
    """What an error about dtypes may depend on."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, leaf.dim() > 0
    if isinstance(leaf, list | tuple):
        return tuple(map(_kind, cast(Sequence[object], leaf)))
    if isinstance(leaf, Mapping):
        return tuple([(name, _kind(value)) for name, value in cast(Mapping[str, object], leaf).items()])
    return (type(leaf), leaf) if isinstance(leaf, (bool, int, float, str, torch.dtype)) else type(leaf)


def _real(leaf: object, exact: bool) -> object:
    if isinstance(leaf, Tensor):
        shape = leaf.shape if exact else (1,) * leaf.dim()
        return torch.ones(shape, dtype=leaf.dtype)
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        return 1
    return leaf
