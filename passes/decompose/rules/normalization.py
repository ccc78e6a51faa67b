"""Normalisations: x̂ = (x - mean)·rsqrt(var + ε) over the moments of x, then scale and shift."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.elementwise import REAL_OF
from isthmus.passes.decompose.dims import along, broadcast_over, count
from isthmus.passes.decompose.promotion import like, wide
from isthmus.passes.decompose.rules.functions import EPSILON
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


def standardized(e: Emitter, x: SSAValue, dims: Sequence[int], eps: Scalar) -> tuple[SSAValue, SSAValue, SSAValue]:
    """x̂, the mean and 1/√(var + ε) over dims; float32 for narrower x."""
    mean, variance = e.moments(x, dims)
    rstd = e.rsqrt(e.add(variance, like(e, eps, variance)))
    centered = e.sub(x, broadcast_over(e, mean, x, dims))
    return e.mul(centered, broadcast_over(e, rstd, x, dims)), mean, rstd


def _affine(e: Emitter, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None, dims: Sequence[int]) -> SSAValue:
    """x·weight + bias, which run along dims of x"""
    shape, dtype = ir.shape_of(x), ir.dtype_of(x)
    if weight is not None:
        x = e.mul(x, e.broadcast(e.convert(weight, dtype), shape, dims))
    return x if bias is None else e.add(x, e.broadcast(e.convert(bias, dtype), shape, dims))


# ---- over the last dimensions


def _layer_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    normalized: Sequence[Dim],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: Scalar,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    rank = len(ir.shape_of(x))
    dims = tuple(range(rank - len(normalized), rank))
    hat, mean, rstd = standardized(e, wide(e, x), dims, eps)
    return e.convert(_affine(e, hat, weight, bias, dims), call.dtype()), mean, rstd


@decomposition("layer_norm.default")
def layer_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    normalized: Sequence[Dim],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: Scalar,
    cudnn: bool,
) -> SSAValue:
    return _layer_norm(e, call, x, normalized, weight, bias, eps)[0]


@decomposition("native_layer_norm.default")
def native_layer_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    normalized: Sequence[Dim],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: Scalar,
) -> tuple[SSAValue, ...]:
    y, *statistics = _layer_norm(e, call, x, normalized, weight, bias, eps)
    return y, *(e.convert(e.reshape(s, call.shape(k)), call.dtype(k)) for k, s in enumerate(statistics, 1))


def _rms_norm(
    e: Emitter, call: Call, x: SSAValue, normalized: Sequence[Dim], weight: SSAValue | None, eps: Scalar | None
) -> tuple[SSAValue, SSAValue]:
    """x·rsqrt(Σx²/n + ε)"""
    rank = len(ir.shape_of(x))
    dims = tuple(range(rank - len(normalized), rank))
    y = wide(e, x)
    total = e.sum(e.square(y), dims)
    mean = e.div(total, like(e, count(y, dims), total))
    dtype = ir.dtype_of(y)
    rstd = e.rsqrt(e.add(mean, like(e, EPSILON[REAL_OF.get(dtype, dtype)] if eps is None else eps, mean)))
    scaled = e.mul(y, broadcast_over(e, rstd, y, dims))
    return e.convert(_affine(e, scaled, weight, None, dims), call.dtype()), rstd


@decomposition("rms_norm.default")
def rms_norm(
    e: Emitter, call: Call, x: SSAValue, normalized: Sequence[Dim], weight: SSAValue | None, eps: Scalar | None
) -> SSAValue:
    return _rms_norm(e, call, x, normalized, weight, eps)[0]


@decomposition("_fused_rms_norm.default")
def fused_rms_norm(
    e: Emitter, call: Call, x: SSAValue, normalized: Sequence[Dim], weight: SSAValue | None, eps: Scalar | None
) -> tuple[SSAValue, ...]:
    y, rstd = _rms_norm(e, call, x, normalized, weight, eps)
    return y, e.convert(e.reshape(rstd, call.shape(1)), call.dtype(1))


# ---- over groups of channels


def _group_norm(
    e: Emitter, x: SSAValue, groups: int, weight: SSAValue | None, bias: SSAValue | None, eps: Scalar
) -> tuple[SSAValue, SSAValue, SSAValue]:
    n, channels, *spatial = ir.shape_of(x)
    grouped = e.reshape(wide(e, x), (n, groups, channels // groups, *spatial))
    hat, mean, rstd = standardized(e, grouped, range(2, len(spatial) + 3), eps)
    y = _affine(e, e.reshape(hat, ir.shape_of(x)), weight, bias, (1,))
    return e.convert(y, ir.dtype_of(x)), mean, rstd


@decomposition("group_norm.default")
def group_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    groups: int,
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: Scalar,
    cudnn: bool,
) -> SSAValue:
    return _group_norm(e, x, groups, weight, bias, eps)[0]


@decomposition("native_group_norm.default")
def native_group_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    n: Dim,
    channels: Dim,
    spatial: Dim,
    groups: int,
    eps: Scalar,
) -> tuple[SSAValue, ...]:
    y, *statistics = _group_norm(e, x, groups, weight, bias, eps)
    return y, *(e.convert(s, call.dtype(k)) for k, s in enumerate(statistics, 1))


# ---- over the batch


def _batch_norm(
    e: Emitter,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running: tuple[SSAValue | None, SSAValue | None],
    training: bool,
    momentum: Scalar,
    eps: Scalar,
) -> tuple[SSAValue, SSAValue, SSAValue, list[SSAValue | None]]:
    """The result, the mean and 1/√(var + ε) used, and the new running statistics."""
    if len(ir.shape_of(x)) < 2:
        raise Refusal("has no channels")
    y = wide(e, x)
    over = tuple(d for d in range(len(ir.shape_of(x))) if d != 1)
    if training or running[0] is None or running[1] is None:
        hat, mean, rstd = standardized(e, y, over, eps)
        renewed = _renewed(e, y, over, running, momentum)
    else:
        mean, variance = (e.convert(r, ir.dtype_of(y)) for r in (running[0], running[1]))
        rstd = e.rsqrt(e.add(variance, like(e, eps, variance)))
        hat = e.mul(e.sub(y, along(e, mean, y, 1)), along(e, rstd, y, 1))
        renewed = list(running)
    return e.convert(_affine(e, hat, weight, bias, (1,)), ir.dtype_of(x)), mean, rstd, renewed


def _renewed(
    e: Emitter, x: SSAValue, over: Sequence[int], running: tuple[SSAValue | None, SSAValue | None], momentum: Scalar
) -> list[SSAValue | None]:
    """running + momentum·(statistic - running) as (1 - momentum)·running + momentum·statistic; var·n/(n - 1)"""
    mean, variance = e.moments(x, over)
    n = like(e, count(x, over), variance)
    unbiased = e.div(e.mul(variance, n), e.sub(n, like(e, 1, n)))
    return [
        None if r is None else e.stop_gradient(_mixed(e, r, s, momentum))
        for r, s in zip(running, (mean, unbiased), strict=True)
    ]


def _mixed(e: Emitter, running: SSAValue, statistic: SSAValue, momentum: Scalar) -> SSAValue:
    old = wide(e, running)
    new = e.convert(statistic, ir.dtype_of(old))
    m = like(e, momentum, old)
    y = e.add(e.mul(e.sub(like(e, 1, m), m), old), e.mul(m, new))
    return e.convert(y, ir.dtype_of(running))


def _with_statistics(
    e: Emitter, call: Call, y: SSAValue, saved: Sequence[SSAValue], renewed: Sequence[SSAValue | None]
) -> list[SSAValue | None]:
    """The results that the call has: y, then saved statistics (empty in evaluation), then new running ones."""
    values: list[SSAValue | None] = [y]
    updates = [r for r in renewed if r is not None]
    for k, s in enumerate(saved, 1):
        if k < len(call.types) - len(updates) or len(call.types) == 1 + len(saved):
            empty = ir.shape_of(s) != call.shape(k)
            values.append(e.const(0, call.shape(k), call.dtype(k)) if empty else e.convert(s, call.dtype(k)))
    return values + updates[: len(call.types) - len(values)]


@decomposition("batch_norm.default")
def batch_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue | None,
    running_var: SSAValue | None,
    training: bool,
    momentum: Scalar,
    eps: Scalar,
    cudnn: bool,
) -> list[SSAValue | None]:
    y, _, _, renewed = _batch_norm(e, x, weight, bias, (running_mean, running_var), training, momentum, eps)
    return _with_statistics(e, call, y, (), renewed)


NATIVE = (
    "native_batch_norm.default",
    "_native_batch_norm_legit.default",
    "_native_batch_norm_legit_functional.default",
)


@decomposition(*NATIVE)
def native_batch_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue | None,
    running_var: SSAValue | None,
    training: bool,
    momentum: Scalar,
    eps: Scalar,
) -> list[SSAValue | None]:
    y, mean, rstd, renewed = _batch_norm(e, x, weight, bias, (running_mean, running_var), training, momentum, eps)
    return _with_statistics(e, call, y, (mean, rstd), renewed)


@decomposition("_batch_norm_with_update.default")
def batch_norm_with_update(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: Scalar,
    eps: Scalar,
) -> list[SSAValue | None]:
    """The fourth result is scratch memory of other devices, empty here."""
    y, mean, rstd, renewed = _batch_norm(e, x, weight, bias, (running_mean, running_var), True, momentum, eps)
    return [y, mean, rstd, e.const(0, call.shape(3), call.dtype(3)), *renewed]


@decomposition("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    training: bool,
    momentum: Scalar,
    eps: Scalar,
) -> list[SSAValue | None]:
    return native_batch_norm(e, call, x, weight, bias, None, None, True, momentum, eps)


@decomposition("_native_batch_norm_legit_no_training.default")
def native_batch_norm_no_training(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: Scalar,
    eps: Scalar,
) -> list[SSAValue | None]:
    return native_batch_norm(e, call, x, weight, bias, running_mean, running_var, False, momentum, eps)


@decomposition("instance_norm.default")
def instance_norm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue | None,
    running_var: SSAValue | None,
    use_input_stats: bool,
    momentum: Scalar,
    eps: Scalar,
    cudnn: bool,
) -> list[SSAValue | None]:
    """Over the spatial dimensions; running statistics are averaged over the batch."""
    if not use_input_stats:
        return batch_norm(e, call, x, weight, bias, running_mean, running_var, False, momentum, eps, cudnn)
    y = wide(e, x)
    over = tuple(range(2, len(ir.shape_of(x))))
    hat, mean, _ = standardized(e, y, over, eps)
    result = e.convert(_affine(e, hat, weight, bias, (1,)), call.dtype())
    n = like(e, count(x, over), mean)
    unbiased = e.div(e.mul(e.moments(y, over)[1], n), e.sub(n, like(e, 1, n)))
    renewed: list[SSAValue | None] = []
    for running, statistic in ((running_mean, mean), (running_var, unbiased)):
        if running is not None:
            total = e.sum(statistic, (0,))
            average = e.div(total, like(e, ir.shape_of(x)[0], total))
            renewed.append(e.stop_gradient(_mixed(e, running, average, momentum)))
    return _with_statistics(e, call, result, (), renewed)
