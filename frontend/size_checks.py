"""Sizes that have to be equal where torch's fake kernels do not ask: comparing symbols makes torch guard on it.

Most fake kernels compare the sizes of their operands, which teaches torch that two symbols are one. Those here give a
result of the right shape without a look at the others, so that each operand would keep symbols of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

Sizes = Sequence["int | torch.SymInt"]


def compare_sizes(name: str, bound: Sequence[object]) -> None:
    """Let torch learn which sizes of a call are equal; `bound` has one value per schema argument.

    Sizes that differ are left to whoever computes the call, who has eager's error for it.
    """
    check = _CHECKS.get(name)
    if check is not None:
        check(bound)


def _attention(bound: Sequence[object]) -> None:
    """[..., L, E], [..., S, E], [..., S, D] and a mask of [..., L, S], whose leading dims broadcast."""
    q, k, v = (cast(Tensor, t).shape for t in bound[:3])
    mask, grouped = cast("Tensor | None", bound[3]), bool(bound[7])
    _same(q[-1:], k[-1:])
    _same(k[-2:-1], v[-2:-1])
    _same(k[:-2], v[:-2])
    _same(q[: -3 if grouped else -2], k[: -3 if grouped else -2])
    _same(q[: -3 if grouped else -2], v[: -3 if grouped else -2])
    if mask is not None:
        _same(mask.shape, (*q[:-1], k[-2]))


def _channels(bound: Sequence[object]) -> None:
    """[N, C, ...], and what there is of a scale, a shift, a mean and a variance of [C]."""
    x = cast(Tensor, bound[0])
    for each in bound[1:5]:
        if isinstance(each, Tensor):
            _same(each.shape, x.shape[1:2])


def _puts(bound: Sequence[object]) -> None:
    """x[..., i, ...] = v: a mask has the sizes of the dims of x that it stands for, v those of the places of one i."""
    x, indices, values = cast(Tensor, bound[0]), cast("Sequence[Tensor | None]", bound[1]), cast(Tensor, bound[2])
    at = 0
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            _same(index.shape, x.shape[at : at + index.dim()])
            at += index.dim()
            continue
        if index is not None and sum(i is not None for i in indices) == 1:
            _same(values.shape, (*x.shape[:at], *index.shape, *x.shape[at + 1 :]))
        at += 1


def _same(a: Sizes, b: Sizes) -> None:
    """Compare sizes from the last one on, but for those of 1, which broadcast."""
    for left, right in zip(reversed(a), reversed(b), strict=False):
        symbolic = isinstance(left, torch.SymInt) or isinstance(right, torch.SymInt)
        if symbolic and 1 not in (left, right):
            bool(left == right)


_CHECKS: Mapping[str, Callable[[Sequence[object]], None]] = {
    "scaled_dot_product_attention.default": _attention,
    "instance_norm.default": _channels,
    "index_put.default": _puts,
    "index_put_.default": _puts,
}
