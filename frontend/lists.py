"""Operators on lists of tensors (`torch._foreach_*`) as one operator for each entry, as torch defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from isthmus.frontend.torch_private import schema_of

Entry = Callable[..., Tensor]


def entries_of(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[Callable[[], Tensor]] | None:
    """Give what makes each entry of the result; None where the call is no such operator or torch refuses its lists."""
    found = _operator_of(func)
    if found is None:
        return None
    operator, arguments, named = found
    given = dict(zip(arguments, args, strict=False)) | dict(kwargs)
    lists = {name: cast(Sequence[object], v) for name, v in given.items() if isinstance(v, list | tuple)}
    lengths = set(map(len, lists.values()))
    if len(lengths) != 1 or lengths == {0}:
        return None

    def entry(index: int) -> Callable[[], Tensor]:
        values = {name: lists[name][index] if name in lists else value for name, value in given.items()}
        by_name = {named[name]: value for name, value in values.items() if name in named}
        return lambda: operator(*(v for name, v in values.items() if name not in named), **by_name)

    return [entry(index) for index in range(lengths.pop())]


@cache
def _operator_of(func: OpOverload) -> tuple[Entry, tuple[str, ...], Mapping[str, str]] | None:
    """Give the operator on one entry, the names of the list operator's arguments, and what it takes by another name."""
    schema = schema_of(func)
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or not name.startswith("_foreach_") or schema.overload_name.endswith("out"):
        return None
    name = name.removeprefix("_foreach_")
    if (name.rstrip("_"), schema.overload_name) in _DATA_READ:
        return None
    arguments = tuple(a.name for a in schema.arguments)
    named = {n: "value" if n in ("scalars", "value") and name.startswith("addc") else n for n in arguments}
    positional = ("self", "other", "scalar", "tensor1", "tensor2", "tensors1", "weight", "weights", "exponent", "src")
    named = {n: v for n, v in named.items() if n not in positional and (n != "scalars" or v == "value")}
    if name.endswith("_"):
        base = _IN_PLACE.get(name, name)
        return (lambda self, *args, **kwargs: getattr(self, base)(*args, **kwargs)), arguments, named
    if name in ("maximum", "minimum") and schema.overload_name != "List":
        return getattr(torch, {"maximum": "clamp_min", "minimum": "clamp_max"}[name]), arguments, named
    operator = torch.linalg.vector_norm if name == "norm" else getattr(torch, name, None)
    return None if operator is None else (cast(Entry, operator), arguments, named)


_IN_PLACE: Mapping[str, str] = {"maximum_": "clamp_min_", "minimum_": "clamp_max_"}
"""What has no operator of its name on one tensor in place."""

_DATA_READ = frozenset({("addcmul", "Tensor"), ("addcdiv", "Tensor")})
"""These read their factors from a tensor's data."""
