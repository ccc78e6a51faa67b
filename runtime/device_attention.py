"""Attention on a GPU as two operators of our own, over torch's kernels: cuDNN's where it takes the case, else flash.

    isthmus::attention(q, k, v, causal, scale) -> (o, lse)
    isthmus::attention_backward(g, q, k, v, o, lse, causal, scale) -> (dq, dk, dv)

With the meaning of `prim.attention` and `prim.attention_bwd` where the backward's delta is Σ g·o. On the CPU, for
tests, they are torch's streaming kernels there.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_ops = torch.ops.aten
_library = torch.library.Library("isthmus", "FRAGMENT")
_flash: set[tuple[object, ...]] = set()
"""Cases that cuDNN refused."""


@functools.cache
def register() -> None:
    """Make the operators known to torch."""
    _library.define("attention(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)")
    _library.define(
        "attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, float scale)"
        " -> (Tensor, Tensor, Tensor)"
    )
    _library.impl("attention", _attention, "CUDA")
    _library.impl("attention_backward", _attention_backward, "CUDA")
    _library.impl("attention", _attention_on_cpu, "CPU")
    _library.impl("attention_backward", _attention_backward_on_cpu, "CPU")


def _case(q: Tensor, k: Tensor, causal: bool) -> tuple[object, ...]:
    return (q.device, q.dtype, tuple(q.shape), tuple(k.shape), causal)


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    q, k, v = (_with_dense_heads(x) for x in (q, k, v))
    case = _case(q, k, causal)
    if case not in _flash and torch.backends.cuda.cudnn_sdp_enabled():
        try:
            found = _ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
            return found[0], found[1].reshape(q.shape[:3])
        except RuntimeError:
            _flash.add(case)
    _flash.add(case)
    found = _ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    return found[0], found[1]


def _attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    g, q, k, v, o = (_with_dense_heads(x) for x in (g, q, k, v, o))
    lengths = (q.shape[2], k.shape[2])
    unused = torch.empty(2, dtype=torch.int64, device=q.device)  # a seed and an offset, of no dropout
    if _case(q, k, causal) not in _flash:
        return _ops._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, o, lse[..., None], unused[0], unused[1], None, None, None, *lengths, 0.0, causal, scale=scale
        )
    return _ops._scaled_dot_product_flash_attention_backward(
        g, q, k, v, o, lse, None, None, *lengths, 0.0, causal, unused, unused[1], scale=scale
    )


def _with_dense_heads(x: Tensor) -> Tensor:
    """The kernels step through the last dimension one by one, and through none on the spot."""
    return x if x.stride(-1) == 1 and 0 not in x.stride() else x.contiguous()


def _attention_on_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    o, lse = _ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return o, lse.float()


def _attention_backward_on_cpu(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _ops._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, o, lse, 0.0, causal, scale=scale)
