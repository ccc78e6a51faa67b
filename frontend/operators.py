"""What torch says about an overload, read once: name, defaults, what it writes; and what its schema leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch._ops import OpOverload

from isthmus.frontend.encode import encode_plain
from isthmus.frontend.torch_private import schema_of
from isthmus.ir import LiteralValue


@dataclass(frozen=True)
class OperatorFacts:
    """One overload: its name in `aten.call`, its schema text, and per argument name, default, kind."""

    name: str
    schema: str
    arguments: tuple[str, ...]
    defaults: tuple[LiteralValue, ...]
    takes_list: tuple[bool, ...]
    takes_tensor: tuple[bool, ...]
    writes: tuple[int, ...]
    view_of: OpOverload | None
    """For an op that changes only its argument's metadata (t_), the view that gives the same (t)."""
    refusal: tuple[str, str] | None
    """Why calls of it have no compiled form, and the cure."""

    @property
    def mutable(self) -> bool:
        """Whether the schema admits writing."""
        return bool(self.writes)


@cache
def facts_of(overload: OpOverload) -> OperatorFacts:
    """Read the facts of an overload."""
    schema = schema_of(overload)
    namespace, _, base = schema.name.partition("::")
    name = f"{base}.{schema.overload_name or 'default'}"
    arguments = schema.arguments
    is_list = tuple(isinstance(a.type, torch.ListType) or _is_optional_list(a.type) for a in arguments)
    return OperatorFacts(
        name=name if namespace == "aten" else f"{namespace}::{name}",
        schema=str(schema).removeprefix("aten::"),
        arguments=tuple(a.name for a in arguments),
        defaults=tuple(_default(a) for a in arguments),
        takes_list=is_list,
        takes_tensor=tuple("Tensor" in str(a.type) for a in arguments),
        writes=tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write),
        view_of=_METADATA_OPS.get(name) if namespace == "aten" else None,
        refusal=_refusal(overload, name),
    )


@cache
def is_elementwise(name: str) -> bool:
    """Tell of an overload's name in `aten.call` whether it works element by element, whatever the shapes."""
    base, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None)
    return found is not None and torch.Tag.pointwise in found.tags


def _refusal(overload: OpOverload, name: str) -> tuple[str, str] | None:
    if torch.Tag.inplace_view in overload.tags and name not in _METADATA_OPS:
        return "replaces a tensor's storage in place", "make a new tensor instead"
    if name in ("_assert_async.default", "_assert_async.msg"):
        return "an assertion on data has no compiled form", "check outside of the compiled function"
    return None


def _is_optional_list(type_: object) -> bool:
    return isinstance(type_, torch.OptionalType) and isinstance(type_.getElementType(), torch.ListType)


def _default(argument: torch.Argument) -> LiteralValue:
    if not argument.has_default_value():
        return None
    value = argument.default_value
    if isinstance(value, list):
        return tuple(encode_plain(v) for v in value)
    if isinstance(value, int) and not isinstance(value, bool):
        for kind, names in _ENUMERATIONS.items():
            if kind in str(argument.real_type):
                return names[value]
    return encode_plain(value)


_ENUMERATIONS: Mapping[str, Mapping[int, str]] = {
    "ScalarType": {4: "i64"},
    "MemoryFormat": {0: "contiguous_format"},
}
"""Defaults that torch keeps as numbers: those that occur."""

_METADATA_OPS: Mapping[str, OpOverload] = {
    "as_strided_.default": torch.ops.aten.as_strided.default,
    "detach_.default": torch.ops.aten.detach.default,
    "squeeze_.default": torch.ops.aten.squeeze.default,
    "squeeze_.dim": torch.ops.aten.squeeze.dim,
    "squeeze_.dims": torch.ops.aten.squeeze.dims,
    "swapaxes_.default": torch.ops.aten.swapaxes.default,
    "swapdims_.default": torch.ops.aten.swapdims.default,
    "t_.default": torch.ops.aten.t.default,
    "transpose_.default": torch.ops.aten.transpose.int,
    "unsqueeze_.default": torch.ops.aten.unsqueeze.default,
}


# ---- What the schemas leave out

Arguments = Sequence[object]
"""One value per schema argument, defaults filled in."""


def written_arguments(facts: OperatorFacts, args: Arguments) -> tuple[int, ...]:
    """Give the positions of the arguments that this call writes."""
    correction = _CORRECTIONS.get(facts.name)
    return facts.writes if correction is None else correction(args)


def _running_statistics(training: int) -> Callable[[Arguments], tuple[int, ...]]:
    """running_mean and running_var are arguments 3 and 4 of every batch norm; written while training."""

    def written(args: Arguments) -> tuple[int, ...]:
        return tuple(i for i in (3, 4) if args[i] is not None) if args[training] else ()

    return written


_CORRECTIONS: Mapping[str, Callable[[Arguments], tuple[int, ...]]] = {
    "batch_norm.default": _running_statistics(5),
    "native_batch_norm.default": _running_statistics(5),
    "_batch_norm_impl_index.default": _running_statistics(5),
    "cudnn_batch_norm.default": _running_statistics(5),
    "miopen_batch_norm.default": _running_statistics(5),
    "instance_norm.default": _running_statistics(5),
}


def identity_of(facts: OperatorFacts, args: Arguments) -> object | None:
    """Give the argument that eager returns itself, where torch's traced form gives a copy; None elsewhere."""
    if facts.name == "dropout.default" and (args[1] == 0 or not args[2]):
        return args[0]
    return None
