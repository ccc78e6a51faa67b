"""Cotangents that torch batches (`is_grads_batched`, vectorised Jacobians): one run of the backward for each.

Compiled code takes plain tensors. Inside `vmap` a cotangent is a wrapper with one dimension more; it is taken apart,
each entry goes through the backward by itself, and the gradients are put together again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from isthmus.runtime.torch_private import batch_of, has_storage, unbatched, with_batch

Tangents: TypeAlias = tuple[Tensor | None, ...]


def any_batched(tangents: Tangents) -> bool:
    """Whether a cotangent is a wrapper of `vmap`."""
    for tangent in tangents:
        if tangent is not None and not has_storage(tangent) and batch_of(tangent) is not None:
            return True
    return False


def one_by_one(pull: Callable[[Tangents], list[Tensor]], tangents: Tangents) -> list[Tensor]:
    """Run a pullback on each entry of the innermost batch; gives wrappers of the same batch."""
    batches = [None if t is None else batch_of(t) for t in tangents]
    batch = max(b for b in batches if b is not None)
    inner = [b == batch for b in batches]
    wholes = [unbatched(t, batch) if t is not None and i else t for t, i in zip(tangents, inner, strict=True)]
    count = next(w.shape[0] for w, i in zip(wholes, inner, strict=True) if w is not None and i)

    def entry(pick: Callable[[Tensor], Tensor]) -> list[Tensor]:
        picked = tuple(pick(w) if w is not None and i else w for w, i in zip(wholes, inner, strict=True))
        return one_by_one(pull, picked) if any_batched(picked) else pull(picked)

    runs = [entry(lambda w, k=k: w[k]) for k in range(count)]
    return [with_batch(torch.stack(parts), batch) for parts in zip(*runs, strict=True)]
