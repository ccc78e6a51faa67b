"""Which operator of ATen has the meaning of a library call, and whether its arguments fit torch's C interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from isthmus.dialects.program import LibraryCall
from isthmus.dialects.schema import Schema, SchemaArgument, parse_schema
from isthmus.ir import LiteralValue, Operand
from isthmus.sizes import Size


@dataclass(frozen=True)
class AtenCall:
    """An overload with its arguments; `Operand(i)` counts the operands, then the results (for their shapes alone).

    `results`: which of what the overload returns the call keeps, in the order of the call's results.
    """

    schema: Schema
    arguments: tuple[LiteralValue, ...]
    results: tuple[int, ...]


Literals = Mapping[str, LiteralValue]

_CONV = parse_schema(
    "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,"
    " bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"
)
_CONV_BACKWARD = parse_schema(
    "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,"
    " SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,"
    " bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)
_SORT = parse_schema(
    "sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"
)
_ATTENTION = parse_schema(
    "_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.0,"
    " bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"
)


_EINSUM = parse_schema("einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor")


def _dot(call: LibraryCall, literals: Literals) -> AtenCall | None:
    """What neither BLAS nor a matrix product can read as it lies: torch permutes and copies."""
    if "bias" in literals:
        return None
    a, b, *_ = call.operands
    batch_a, batch_b, contract_a, contract_b = (
        cast("tuple[int, ...]", literals[key]) for key in ("batch_a", "batch_b", "contract_a", "contract_b")
    )
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = [""] * len(a.shape), [""] * len(b.shape)
    for i, j in zip((*batch_a, *contract_a), (*batch_b, *contract_b), strict=True):
        left[i] = right[j] = next(letters)
    left, right = ([x or next(letters) for x in side] for side in (left, right))
    free_a = [x for d, x in enumerate(left) if d not in (*batch_a, *contract_a)]
    free_b = [x for d, x in enumerate(right) if d not in (*batch_b, *contract_b)]
    kept = "".join([*(left[i] for i in batch_a), *free_a, *free_b])
    equation = f"{''.join(left)},{''.join(right)}->{kept}"
    return AtenCall(_EINSUM, (equation, (Operand(0), Operand(1)), None), (0,))


def _window(literals: Literals) -> tuple[LiteralValue, ...]:
    """strides, padding, dilations, transposed, output padding, groups"""
    strides, padding, dilations = literals["strides"], literals["padding"], literals["dilations"]
    zeros = (0,) * len(cast("tuple[int, ...]", strides))
    return (strides, padding, dilations, False, zeros, literals["groups"])


def _conv(call: LibraryCall, literals: Literals) -> AtenCall:
    return AtenCall(_CONV, (Operand(0), Operand(1), None, *_window(literals)), (0,))


def _conv_dx(call: LibraryCall, literals: Literals) -> AtenCall:
    """The gradient reads the input's shape only: the result itself lends it."""
    arguments = (Operand(0), Operand(2), Operand(1), None, *_window(literals), (True, False, False))
    return AtenCall(_CONV_BACKWARD, arguments, (0,))


def _conv_dw(call: LibraryCall, literals: Literals) -> AtenCall:
    arguments = (Operand(0), Operand(1), Operand(2), None, *_window(literals), (False, True, False))
    return AtenCall(_CONV_BACKWARD, arguments, (1,))


def _sort(call: LibraryCall, literals: Literals) -> AtenCall:
    return AtenCall(_SORT, (Operand(0), True, literals["dim"], literals["descending"]), (0, 1))


def _attention(call: LibraryCall, literals: Literals) -> AtenCall | None:
    """Torch's kernel wants equal head sizes, and gives NaN where a mask allows a row nothing."""
    q, _, v, *mask = call.operands
    if mask or q.shape[3] != v.shape[3] or q.dtype not in ("f32", "f64"):
        return None
    arguments = (Operand(0), Operand(1), Operand(2), 0.0, literals["causal"], None, literals["scale"])
    return AtenCall(_ATTENTION, arguments, (0, 1))


_PRIMS: dict[str, Callable[[LibraryCall, Literals], AtenCall | None]] = {
    "prim.dot": _dot,
    "prim.conv": _conv,
    "prim.conv_dx": _conv_dx,
    "prim.conv_dw": _conv_dw,
    "prim.sort": _sort,
    "prim.attention": _attention,
}


def aten_call(call: LibraryCall) -> AtenCall | None:
    """Give the overload to call through torch's C interface; None where only Python can make the call."""
    found: AtenCall | None = None
    if call.symbol.startswith("prim."):
        rule = _PRIMS.get(call.symbol)
        literals = dict(cast("tuple[tuple[str, LiteralValue], ...]", call.arguments))
        found = rule(call, literals) if rule is not None else None
    elif call.schema is not None:
        schema = parse_schema(call.schema)
        found = AtenCall(schema, call.arguments, tuple(range(len(call.results))))
    return found if found is not None and is_expressible(found) else None


def is_expressible(call: AtenCall) -> bool:
    """Whether torch's stable interface can carry every argument and result."""
    returns = call.schema.returns
    lists = [r for r in returns if r.startswith("Tensor[]")]
    if not all(r.startswith("Tensor") for r in returns) or (lists and len(returns) > 1):
        return False
    if not lists and max(call.results, default=0) >= len(returns):
        return False
    return all(_fits(a, v) for a, v in zip(call.schema.arguments, call.arguments, strict=True))


_CARRIED = {
    "Tensor": (Operand,),
    "int": (int, Size),
    "SymInt": (int, Size),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (str,),
    "Layout": (str,),
    "Device": (str,),
    "MemoryFormat": (str,),
}


def _fits(argument: SchemaArgument, value: LiteralValue) -> bool:
    if value is None:
        return argument.optional
    types = _CARRIED.get(argument.base)
    if types is None or argument.writes:
        return False
    if not argument.is_list:
        return isinstance(value, types)
    parts = cast("tuple[LiteralValue, ...]", value) if isinstance(value, tuple) else ()
    return isinstance(value, tuple) and all(
        argument.optional_elements if p is None else isinstance(p, types) for p in parts
    )
