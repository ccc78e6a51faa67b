"""Reference implementations of structured primitives, random numbers, control flow and library calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.ir import LiteralValue
from isthmus.runtime.interpret_library import call_on_values
from isthmus.runtime.interpret_table import (
    Frame,
    Value,
    evaluates,
    known_shape,
    literal_int,
    literal_ints,
    literal_size,
    literal_str,
    tensors,
    torch_dtype,
)


def _wide(x: Tensor) -> Tensor:
    """Half-precision numbers are summed in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


@evaluates(prim.MomentsOp)
def moments(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Mean and biased variance over dims."""
    (x,) = tensors(operands)
    dims = literal_ints(op, "dims")
    if not dims:
        return x, x - x
    wide = _wide(x)
    mean = wide.mean(dims, keepdim=True)
    var = (wide - mean).square().mean(dims)
    return mean.squeeze(dims).to(x.dtype), var.to(x.dtype)


@evaluates(prim.SoftmaxOp)
def softmax(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """exp(x - max x) / Σ exp(x - max x) along dim"""
    (x,) = tensors(operands)
    return (torch.softmax(x, literal_int(op, "dim")),)


@evaluates(prim.LogSoftmaxOp)
def log_softmax(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """x - max x - ln Σ exp(x - max x) along dim"""
    (x,) = tensors(operands)
    return (torch.log_softmax(x, literal_int(op, "dim")),)


@evaluates(prim.CrossEntropyOp)
def cross_entropy(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Row losses (0 where the target is `ignore`) and log-sums."""
    logits, target = tensors(operands)
    valid = target != literal_int(op, "ignore")
    outside = valid & ((target < 0) | (target >= logits.shape[1]))
    if bool(outside.any()):
        raise IndexError(f"Target {int(target[outside][0])} is out of bounds.")
    wide = _wide(logits)
    lse = torch.logsumexp(wide, 1)
    row = torch.where(valid, target, 0)
    picked = wide.gather(1, row[:, None])[:, 0] if logits.shape[1] else torch.zeros_like(lse)
    loss = torch.where(valid, lse - picked, torch.zeros_like(lse))
    return loss.to(logits.dtype), lse.to(logits.dtype)


def _scores(op: Operation, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """scale·q kᵀ + mask, -inf where the key is not allowed."""
    scores = (q @ k.transpose(-1, -2)) * cast(float, ir.literal(op, "scale"))
    if mask is not None:
        fill = cast("float | None", ir.literal(op, "fill"))
        boolean = mask.dtype is torch.bool
        scores = torch.where(mask, scores, -torch.inf if fill is None else fill) if boolean else scores + mask
    if ir.literal(op, "causal") is True:
        rows, columns = scores.shape[-2:]
        later = torch.arange(columns)[None, :] > torch.arange(rows)[:, None]
        scores = scores.masked_fill(later, float("-inf"))
    return scores


def _probabilities(op: Operation, scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores - lse); in a row without any allowed key, whose lse is -inf, 0 or NaN."""
    if lse.ndim == 4:
        scores, lse = scores - lse[0, ..., None], lse[1]
    p = torch.exp(scores - lse[..., None])
    if ir.literal(op, "empty") == "nan":
        return p
    return torch.where(torch.isneginf(lse)[..., None], torch.zeros_like(scores), p)


def _sums(scores: Tensor, apart: bool) -> Tensor:
    """ln Σ exp(scores), or the maxima and what that is beyond them."""
    if not apart:
        return torch.logsumexp(scores, -1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    top = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    top = torch.where(torch.isneginf(top), 0, top)
    return torch.stack([top, (scores - top[..., None]).exp().sum(-1).log()])


@evaluates(prim.AttentionOp)
def attention(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """o = softmax(scale·q kᵀ + mask) v and lse"""
    q, k, v, *mask = (_wide(t) for t in tensors(operands))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    dtype = torch_dtype(op.results[0].type)
    scores = _scores(op, q, k, mask[0] if mask else None)
    lse = _sums(scores, len(ir.shape_of(op.results[1])) == 4)
    return (_probabilities(op, scores, lse) @ v).to(dtype), lse


@evaluates(prim.AttentionBwdOp)
def attention_bwd(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """p = exp(scores - lse), ds = p·(g vᵀ - delta): dq = scale·ds k, dk = scale·dsᵀ q, dv = pᵀ g"""
    g, q, k, v, delta, lse, *mask = (_wide(t) for t in tensors(operands))
    heads = k.shape[1]
    k, v = (t.repeat_interleave(q.shape[1] // heads, 1) for t in (k, v))
    dtype = torch_dtype(op.results[0].type)
    p = _probabilities(op, _scores(op, q, k, mask[0] if mask else None), lse)
    ds = p * (g @ v.transpose(-1, -2) - delta[..., None]) * cast(float, ir.literal(op, "scale"))
    if mask and mask[0].dtype is torch.bool:
        ds = torch.where(mask[0], ds, 0.0)
    if ir.literal(op, "causal"):
        ds = ds.tril()
    shared = [t.unflatten(1, (heads, -1)).sum(2) for t in (ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g)]
    return tuple(t.to(dtype) for t in (ds @ k, *shared))


# ---- random numbers

_MASK = 0xFFFFFFFF


def _multiply_wide(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of x·factor for 32-bit x held in int64, by halves that cannot overflow."""
    low = x * (factor & 0xFFFF)  # < 2⁴⁸
    high = x * (factor >> 16)  # < 2⁴⁸; the product is high·2¹⁶ + low
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(key: int, counter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give the four 32-bit words (in int64) of Philox4x32-10.

    Counter words are (low, high, 0, 0) of the 64-bit counter, key words (low, high) of the 64-bit key. Salmon, Moraes,
    Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    c0, c1 = counter & _MASK, (counter >> 32) & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(10):
        high0, low0 = _multiply_wide(c0, 0xD2511F53)
        high1, low1 = _multiply_wide(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


_UNIFORM_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


@evaluates(prim.RngOp)
def rng(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Number offset + row-major position of the key's stream"""
    (key,) = tensors(operands)
    type_ = op.results[0].type
    shape, dtype = known_shape(type_, frame), torch_dtype(type_)
    count = 1
    for extent in shape:
        count *= extent
    position = torch.arange(count) + literal_size(op, "offset", frame)
    return (random_elements(int(key), position, literal_str(op, "kind"), dtype).reshape(shape),)


def random_elements(key: int, position: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """Give the random number of each position (i64) in the key's stream: the words that `prim.rng` says."""
    if kind == "uniform" and dtype is torch.float64:
        words = torch.stack(philox(key, position >> 1))
        first = ((position & 1) << 1)[None]
        high, low = words.gather(0, first)[0], words.gather(0, first + 1)[0]
        return ((high << 21) | (low >> 11)).to(torch.float64) * 2.0**-53
    word = torch.stack(philox(key, position >> 2)).gather(0, (position & 3)[None])[0]
    if kind == "bits":
        return word.to(dtype)
    bits = _UNIFORM_BITS[dtype]
    return ((word >> (32 - bits)).to(torch.float32) * 2.0**-bits).to(dtype)


# ---- control flow


@evaluates(prim.CondOp)
def cond(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """p ? then(xs) : otherwise(xs)"""
    predicate, *xs = operands
    return frame.run_region(op.regions[0 if bool(predicate) else 1], xs)


@evaluates(prim.WhileOp)
def while_(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """While condition(carry, rest): carry = body(carry, rest)"""
    carried = literal_int(op, "carried")
    carry, rest = list(operands[:carried]), list(operands[carried:])
    condition, body = op.regions
    while bool(frame.run_region(condition, carry + rest)[0]):
        carry = frame.run_region(body, carry + rest)
    return carry


@evaluates(prim.ScanOp)
def scan(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """carry, ys = body(carry, x[t], rest) for t along dimension 0, backwards when reverse."""
    carried, scanned = literal_int(op, "carried"), literal_int(op, "scanned")
    carry, rest = list(operands[:carried]), list(operands[carried + scanned :])
    xs = tensors(operands[carried : carried + scanned])
    stacked = [_empty(r.type, frame) for r in op.results[carried:]]
    if scanned == 0:
        raise IndexError("a scan without scanned operands has no length")
    steps = range(xs[0].shape[0])
    for t in reversed(steps) if ir.literal(op, "reverse") is True else steps:
        results = frame.run_region(op.regions[0], carry + [x[t] for x in xs] + rest)
        carry = results[:carried]
        for whole, part in zip(stacked, tensors(results[carried:]), strict=True):
            whole[t] = part
    return carry + cast(list[Value], stacked)


def _empty(type_: ir.Attribute, frame: Frame) -> Tensor:
    return torch.empty(known_shape(type_, frame), dtype=torch_dtype(type_))


@evaluates(prim.OpaqueOp)
def opaque(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """A library call."""
    args = cast(tuple[LiteralValue, ...], ir.literal(op, "args"))
    return call_on_values(literal_str(op, "callee"), args, operands, frame)
