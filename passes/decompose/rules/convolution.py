"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.reduce import window_length
from isthmus.ir import Shape
from isthmus.passes.decompose.promotion import wide
from isthmus.passes.decompose.table import Call, Refusal, decomposition
from isthmus.sizes import Dim, size_max

Ints = Sequence[Dim]
Dims = tuple[int, ...]


def _numbers(values: Ints, rank: int) -> tuple[int, ...]:
    """One number a dimension; a single one is for all."""
    spread = tuple(values) * rank if len(values) == 1 else tuple(values)
    if not all(isinstance(v, int) for v in spread):
        raise Refusal("window, strides, padding and dilations must be numbers")
    return spread  # pyright: ignore[reportReturnType]


def _number(value: Dim) -> int:
    return _numbers((value,), 1)[0]


def _with_bias(e: Emitter, call: Call, y: SSAValue, bias: SSAValue | None, batched: bool) -> SSAValue:
    if bias is not None:
        spread = e.broadcast(wide(e, bias), ir.shape_of(y), (1,))
        y = e.convert(e.add(wide(e, y), spread), ir.dtype_of(y))
    return y if batched else e.reshape(y, call.shape())


def _require_float(x: SSAValue) -> None:
    if not ir.is_float(ir.dtype_of(x)):
        raise Refusal("convolutions of other than real floats are left to the library")


def _batch(e: Emitter, x: SSAValue, weight: SSAValue) -> tuple[SSAValue, bool]:
    """x with a batch dimension, and whether it had one."""
    batched = len(ir.shape_of(x)) == len(ir.shape_of(weight))
    return (x if batched else e.expand_dims(x, (0,))), batched


def _conv(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> SSAValue:
    y, batched = _batch(e, x, weight)
    rank = len(ir.shape_of(weight)) - 2
    strides, pads, dilations = (_numbers(v, rank) for v in (stride, padding, dilation))
    _numbers(ir.shape_of(weight)[2:], rank)
    _require_float(x)
    return _with_bias(e, call, e.conv(y, weight, strides, pads, dilations, groups), bias, batched)


@decomposition("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> SSAValue:
    return _conv(e, call, x, weight, bias, stride, padding, dilation, groups)


@decomposition("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: str,
    dilation: Ints,
    groups: int,
) -> SSAValue:
    """ "valid": none; "same": the output is as large as x, the odd element of padding at the end"""
    rank = len(ir.shape_of(weight)) - 2
    if padding == "valid":
        return _conv(e, call, x, weight, bias, stride, (0,), dilation, groups)
    window = _numbers(ir.shape_of(weight)[2:], rank)
    total = [d * (k - 1) for d, k in zip(_numbers(dilation, rank), window, strict=True)]
    lead = len(ir.shape_of(x)) - rank
    for k, amount in enumerate(total):
        if amount % 2:
            x = e.pad(x, lead + k, 0, 1)
    return _conv(e, call, x, weight, bias, stride, [t // 2 for t in total], dilation, groups)


def _transposed(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> SSAValue:
    """The transpose of the convolution that takes the result's shape to x's."""
    y, batched = _batch(e, x, weight)
    rank = len(ir.shape_of(weight)) - 2
    strides, pads, dilations = (_numbers(v, rank) for v in (stride, padding, dilation))
    _require_float(x)
    shape = call.shape() if batched else (1, *call.shape())
    if _reaches(ir.shape_of(y), ir.shape_of(weight), shape, strides, pads, dilations):
        z = e.conv_dx(y, weight, shape, strides, pads, dilations, groups)
    else:
        z = _cut_from_whole(e, y, weight, shape, strides, pads, dilations, groups)
    return _with_bias(e, call, z, bias, batched)


def _reaches(x: Shape, w: Shape, out: Shape, strides: Dims, pads: Dims, dilations: Dims) -> bool:
    """Whether a convolution takes the result's shape to x's: not where the output padding is a stride or more."""
    for k, (stride, pad, dilation) in enumerate(zip(strides, pads, dilations, strict=True), 2):
        if window_length(out[k], _number(w[k]), stride, pad, pad, dilation) != x[k]:
            return False
    return True


def _cut_from_whole(
    e: Emitter, x: SSAValue, w: SSAValue, out: Shape, strides: Dims, pads: Dims, dilations: Dims, groups: int
) -> SSAValue:
    """Without padding everything is there; the padding is cut off, and what lies beyond is 0."""
    sizes = ir.shape_of(x)[2:], ir.shape_of(w)[2:]
    whole = [(n - 1) * s + d * (_number(k) - 1) + 1 for n, k, s, d in zip(*sizes, strides, dilations, strict=True)]
    none = (0,) * len(whole)
    y = e.conv_dx(x, w, (*out[:2], *whole), strides, none, dilations, groups)
    for k, (have, pad) in enumerate(zip(whole, pads, strict=True), 2):
        y = e.pad(e.slice(y, k, pad, have), k, 0, size_max(pad + out[k] - have, 0))
        y = e.slice(y, k, 0, out[k])
    return y


@decomposition("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> SSAValue:
    return _transposed(e, call, x, weight, bias, stride, padding, dilation, groups)


@decomposition("convolution.default")
def convolution(
    e: Emitter,
    call: Call,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> SSAValue:
    rule = _transposed if transposed else _conv
    return rule(e, call, x, weight, bias, stride, padding, dilation, groups)


@decomposition("conv_tbc.default")
def conv_tbc(e: Emitter, call: Call, x: SSAValue, weight: SSAValue, bias: SSAValue, pad: int) -> SSAValue:
    """A one-dimensional convolution over [time, batch, channel] with weight [window, in, out]"""
    y = e.conv(e.transpose(x, (1, 2, 0)), e.transpose(weight, (2, 1, 0)), (1,), (pad,), (1,))
    return e.add(e.transpose(y, (2, 0, 1)), e.broadcast_to(bias, call.shape()))
