"""Autocast as explicit casts: each call of an autocast region is tried once to see what torch would cast."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.leaves import leaves_of
from isthmus.frontend.torch_private import has_autocast_rule, is_composite, schema_of

if TYPE_CHECKING:
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode


def is_active(tensors: Sequence[Tensor]) -> bool:
    """Tell whether autocast is on for the device of any of these tensors."""
    return any(torch.is_autocast_enabled(device) for device in {t.device.type for t in tensors})


@dataclass(frozen=True)
class CastPlan:
    """What autocast does to one call."""

    casts: Mapping[int, torch.dtype] = field(default_factory=dict[int, torch.dtype])
    """id of an argument -> the dtype it is cast to before the call."""
    dtype: torch.dtype | None = None
    """A `dtype` argument that autocast fills in."""
    inside: bool = False
    """The casts happen inside of a composite op: its parts must be recorded instead."""

    def apply(
        self, recorder: ProxyTorchDispatchMode, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[Sequence[object], Mapping[str, object]]:
        """Record the casts; gives the arguments of the call on cast values."""
        done: dict[int, Tensor] = {}

        def cast_one(tensor: Tensor) -> Tensor:
            dtype = self.casts.get(id(tensor))
            if dtype is None:
                return tensor
            if id(tensor) not in done:
                with disabled(), recorder:
                    done[id(tensor)] = torch.ops.aten._to_copy.default(tensor, dtype=dtype)
            return done[id(tensor)]

        args, kwargs = pytree.tree_map_only(Tensor, cast_one, (args, dict(kwargs)))
        return args, kwargs if self.dtype is None else {**kwargs, "dtype": self.dtype}


def plan_of(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> CastPlan:
    """Run the call under autocast, unrecorded, and see what is cast.

    Raises UnsupportedError where the result's dtype has another reason than casts of arguments.
    """
    arguments = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    asked_for = func is torch.ops.aten._to_copy.default  # a cast in the program, x.float()
    if asked_for or schema_of(func).is_mutable or not any(t.is_floating_point() for t in arguments):
        return CastPlan()
    watch = _WatchCasts({id(t) for t in arguments})
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad(), watch:
            expected = _first_dtype(func(*args, **kwargs))
        if not watch.casts and not watch.other_casts:
            return CastPlan()
        if not any(has_autocast_rule(func, t.device.type) for t in arguments):
            if not is_composite(func):
                raise UnsupportedError("autocast happens inside of this operator")
            return CastPlan(inside=True)
        with torch.no_grad(), disabled():
            plan = CastPlan(watch.casts)
            args, kwargs = _cast_plainly(plan, args, kwargs)
            if _first_dtype(func(*args, **kwargs)) == expected:
                return plan
            if any(a.name == "dtype" for a in schema_of(func).arguments):
                return CastPlan(watch.casts, dtype=expected)
    finally:
        torch.set_autocast_cache_enabled(cache)
    raise UnsupportedError("autocast changes this call in a way that casts of its arguments do not explain")


class Plans:
    """What autocast does to calls that were tried: it depends on dtypes and kinds of arguments, never on sizes."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[tuple[int, torch.dtype], ...], CastPlan]] = {}

    def of(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> CastPlan:
        """`plan_of` a call, from an equal one where there was one."""
        leaves = leaves_of((args, kwargs))
        key = _looks(func, leaves, kwargs)
        found = None if key is None else self._known.get(key)
        if found is not None:
            casts, plan = found
            return replace(plan, casts={id(leaves[k]): dtype for k, dtype in casts}) if casts else plan
        plan = plan_of(func, args, kwargs)
        if key is not None:
            places = tuple((k, plan.casts[id(leaf)]) for k, leaf in enumerate(leaves) if id(leaf) in plan.casts)
            self._known[key] = places, plan if not places else replace(plan, casts={})
        return plan


_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _looks(func: OpOverload, leaves: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
    """What the casts of a call depend on; None where it holds something unknown."""
    found: list[Hashable] = []
    first: dict[int, int] = {}
    devices: dict[str, None] = {}
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            devices[leaf.device.type] = None
            found.append((leaf.dtype, leaf.device, leaf.dim(), leaf.requires_grad, first.setdefault(id(leaf), k)))
        elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            found.append(type(leaf))
        elif isinstance(leaf, _PLAIN):
            found.append((type(leaf), leaf))
        else:
            return None
    states = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)
    return func, tuple(kwargs), tuple(found), states


@contextmanager
def disabled() -> Generator[None]:
    """Switch autocast off for both kinds of devices."""
    states = [(d, torch.is_autocast_enabled(d)) for d in ("cpu", "cuda")]
    try:
        for device, _ in states:
            torch.set_autocast_enabled(device, False)
        yield
    finally:
        for device, state in states:
            torch.set_autocast_enabled(device, state)


class _WatchCasts(TorchDispatchMode):
    """Sees the `_to_copy` calls below autocast: of the call's own arguments, and of anything else."""

    def __init__(self, arguments: set[int]) -> None:
        super().__init__()
        self.arguments = arguments
        self.casts: dict[int, torch.dtype] = {}
        self.other_casts = False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and isinstance(kwargs.get("dtype"), torch.dtype):
            if id(args[0]) in self.arguments:
                self.casts[id(args[0])] = cast(torch.dtype, kwargs["dtype"])
            else:
                self.other_casts = True
        return func(*args, **kwargs)


def _cast_plainly(
    plan: CastPlan, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Sequence[object], Mapping[str, object]]:
    def cast_one(tensor: Tensor) -> Tensor:
        return tensor.to(plan.casts.get(id(tensor), tensor.dtype))

    return pytree.tree_map_only(Tensor, cast_one, (args, dict(kwargs)))


def _first_dtype(result: object) -> torch.dtype | None:
    return next((t.dtype for t in pytree.tree_leaves(result) if isinstance(t, Tensor)), None)
