"""Calls of torch's operators by the overload names and literal arguments that the IR carries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from isthmus.diagnostics import IRError
from isthmus.ir import LiteralValue, Operand
from isthmus.runtime.interpret_table import DTYPES, Frame, Value, known
from isthmus.sizes import Size

_LAYOUTS = {"strided": torch.strided, "sparse_coo": torch.sparse_coo, "sparse_csr": torch.sparse_csr}
_MEMORY_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


@cache
def find_overload(name: str) -> OpOverload:
    """Give torch's overload for "add.Tensor" or "mylib::scale.default"; IRError when there is none."""
    namespace, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload or "default")
    except AttributeError:
        raise IRError(f"torch has no operator '{name}'") from None


def call_overload(
    name: str, args: Sequence[LiteralValue], operands: Sequence[Value], frame: Frame
) -> list[Value | None]:
    """Call an overload on literal arguments, one per schema argument; gives its tensors, lists flattened."""
    function = find_overload(name)
    positional: list[object] = []
    keywords: dict[str, object] = {}
    schema = function._schema  # pyright: ignore[reportPrivateUsage] (torch has no public name for it)
    for argument, literal in zip(schema.arguments, args, strict=True):
        value = _argument(literal, str(argument.real_type), operands, frame)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return flat_tensors(function(*positional, **keywords))


_RUNNING_STATISTICS = frozenset(("batch_norm.default", "native_batch_norm.default", "instance_norm.default"))
"""Overloads that write arguments 3 and 4 while training (argument 5), which their schemas do not say."""


def call_on_values(name: str, args: Sequence[LiteralValue], operands: Sequence[Value], frame: Frame) -> list[Value]:
    """Call an overload that must leave its operands alone: what it writes are copies.

    Gives what torch returns (less None, and less what only gives written operands back), then the written copies.
    """
    written = _written(name, args)
    if not written:
        return [value for value in call_overload(name, args, operands, frame) if value is not None]
    copies = list(operands)
    for i in written:
        copies[i] = cast(Tensor, operands[i]).clone()
    updated = [copies[i] for i in written]
    given = call_overload(name, args, copies, frame)
    own = [v for v in given if v is not None and not any(v is u for u in updated)]
    return own + updated


def _written(name: str, args: Sequence[LiteralValue]) -> list[int]:
    """The operands that an overload writes, in the order of its arguments."""
    schema = find_overload(name)._schema  # pyright: ignore[reportPrivateUsage] (torch has no public name for it)
    places = [k for k, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    if name in _RUNNING_STATISTICS and args[5]:
        places = [3, 4]
    found: list[int] = []
    for k in places:
        value = args[k]
        entries = cast(tuple[LiteralValue, ...], value) if isinstance(value, tuple) else (value,)
        found.extend(v.index for v in entries if isinstance(v, Operand))
    return found


def flat_tensors(result: object) -> list[Value | None]:
    """Give the tensors of what an operator returned, None where it gave none."""
    if result is None or isinstance(result, (Tensor, int, float)):
        return [cast("Value | None", result)]
    return [t for part in cast(Sequence[object], result) for t in flat_tensors(part)]


def _argument(literal: LiteralValue, type_: str, operands: Sequence[Value], frame: Frame) -> object:
    if literal is None:
        return None
    if isinstance(literal, tuple):
        return [_argument(part, type_, operands, frame) for part in cast(tuple[LiteralValue, ...], literal)]
    if isinstance(literal, Operand):
        value = operands[literal.index]
        return value.item() if isinstance(value, Tensor) and "Tensor" not in type_ else value
    if isinstance(literal, Size):
        return known(literal, frame)
    if isinstance(literal, str):
        return named(literal, type_)
    return literal


def named(text: str, type_: str) -> object:
    """Give what a string stands for where a schema has this type: a dtype, layout, memory format, device, or itself."""
    if "ScalarType" in type_:
        return DTYPES[text]
    if "Layout" in type_:
        return _LAYOUTS[text]
    if "MemoryFormat" in type_:
        return _MEMORY_FORMATS[text]
    return torch.device(text) if "Device" in type_ else text
