"""The edge of a compiled function: random keys in, mutations copied back, aliases replayed.

Inside, programs are functional and results are fresh. Here the caller's tensors get their new
values, and outputs that are arguments, views of arguments or views of other results become that
again, by the very view operations of the program, so that autograd sees them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.convention import Convention, Geometry, Mutation, UserOutput, Value, View
from isthmus.runtime.fresh import has_strides
from isthmus.runtime.interpret_library import named
from isthmus.runtime.torch_private import copy_all
from isthmus.sizes import Size, evaluate


class CompiledFunction:
    """What the user's call runs: takes the flat arguments without keys, gives the flat outputs."""

    def __init__(self, convention: Convention, node: TapeNode, device: torch.device | None = None) -> None:
        """`device`: whose generator the random keys come from; the CPU's where it is left out."""
        self.convention = convention
        self.node = node
        self._device = device or torch.device("cpu")
        self._gives_values = all(output.kind == "value" for output in convention.outputs)
        self._writes = _Writes(convention.mutations) if convention.mutations else None
        self._order = [output.index for output in convention.outputs]
        plain = self._gives_values and not convention.mutations
        all_in_order = plain and self._order == list(range(convention.results))
        self._is_pure = all_in_order and not convention.gradients and not convention.keys

    @property
    def positional(self) -> Callable[..., Sequence[object]] | None:
        """The same function of the arguments one by one, where the program is all there is to a call; else None."""
        direct = getattr(self.node.inference, "direct", None) if self._is_pure else None
        return direct() if direct is not None else None

    def __call__(self, arguments: Sequence[Value]) -> list[object]:
        """Run on the caller's tensors.

        Raises what eager raises for writes that eager refuses (leaves that want a gradient,
        expanded tensors).
        """
        if self._is_pure:  # nothing to do around the program
            return cast("list[object]", self.node.run_detached(cast("list[Value]", arguments)))
        values = list(arguments)
        if self.convention.keys:
            keys = draw_keys(len(self.convention.keys), self._device)
            for position, key in zip(self.convention.keys, keys, strict=True):
                values.insert(position, key)
        results = self.node(values)
        if self._writes is not None and (left := self._writes.left(values, results)):
            sizes = self.convention.sizes(values)
            for mutation in left:
                _copy_back(mutation, values[mutation.argument], results, sizes)
        if self._gives_values:
            return [results[k] for k in self._order]
        sizes = self.convention.sizes(values)
        return [_output(output, values, results, sizes) for output in self.convention.outputs]


class _Writes:
    """The arguments that a program writes: mostly it has written them in place, and only their versions are left."""

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self._all = mutations
        self._simple: list[tuple[Mutation, int, int]] = []
        self._others: list[Mutation] = []
        for m in mutations:
            if m.geometry is None and m.result is not None and m.counted:
                self._simple.append((m, m.result, m.argument))
            else:
                self._others.append(m)
        self._recorded = [m.argument for m in mutations if not m.hidden]

    def left(self, values: Sequence[Value], results: Sequence[Tensor]) -> Sequence[Mutation]:
        """Finish at once the writes that change no history; give the others."""
        records = torch.is_grad_enabled()
        if records and self._recorded and any([cast(Tensor, values[a]).requires_grad for a in self._recorded]):
            return self._all
        made = [values[a] for _, r, a in self._simple if results[r] is values[a]]
        torch.autograd.graph.increment_version(cast("list[Tensor]", made))
        if len(made) == len(self._simple):
            return self._others
        copies = [(m, r, a) for m, r, a in self._simple if results[r] is not values[a]]
        if records and not all([m.hidden for m, _, _ in copies]):
            return [*self._others, *(m for m, _, _ in copies)]
        targets, sources = [cast(Tensor, values[a]) for _, _, a in copies], [results[r] for _, r, _ in copies]
        if not records:
            copy_all(targets, sources)
        else:
            with torch.no_grad():
                copy_all(targets, sources)
        return self._others


def draw_keys(count: int, device: torch.device | None = None) -> list[Tensor]:
    """Draw random keys: one number from the device's default generator per call, split in `count`.

    So `torch.manual_seed` and the RNG handling of checkpoints govern compiled randomness too. On a GPU one launch
    draws them all, and nobody waits for the numbers; each is 16 bytes from the next, as kernels like it.
    """
    if device is not None and device.type != "cpu":
        return list(torch.empty((count, 2), dtype=torch.int64, device=device).random_()[:, 0].unbind())
    key = torch.empty((), dtype=torch.int64).random_()
    if count == 1:
        return [key]
    seed = int(key)
    return [torch.tensor(_mixed(seed + k * 0x9E3779B97F4A7C15)) for k in range(count)]


def _mixed(number: int) -> int:
    """The finaliser of splitmix64: neighbouring numbers become unrelated ones.

    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
    """
    word = number & 0xFFFFFFFFFFFFFFFF
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (word ^ (word >> 31)) >> 1


def _copy_back(mutation: Mutation, argument: Value, results: list[Tensor], sizes: Mapping[str, int]) -> None:
    """Give an argument its new shape and content, with the history that the program gives it."""
    assert isinstance(argument, Tensor)
    if mutation.geometry is None:
        _copy_content(mutation, argument, results)
        return
    shape, strides, start = _geometry(mutation.geometry, sizes, int(argument.storage_offset()))
    if (tuple(shape), tuple(strides), start) != (tuple(argument.shape), argument.stride(), argument.storage_offset()):
        argument.as_strided_(shape, strides, start)
        _copy_content(mutation, argument, results)
    else:  # changed and changed back; a result may be a view of the argument, which a new version would make stale
        _copy_content(mutation, argument, results)
        torch.autograd.graph.increment_version(argument)


def _copy_content(mutation: Mutation, argument: Tensor, results: list[Tensor]) -> None:
    if mutation.result is None:
        return
    if not mutation.counted:
        if results[mutation.result] is not argument:
            argument.data.copy_(results[mutation.result])
        return
    with torch.set_grad_enabled(torch.is_grad_enabled() and not mutation.hidden):
        value = results[mutation.result]
        if value is argument and argument.requires_grad and torch.is_grad_enabled():
            argument.copy_(argument.detach().clone())  # written in place by a constant: its history ends here
        elif value is argument:  # written in place: only autograd has to be told
            torch.autograd.graph.increment_version(argument)
        else:
            argument.copy_(value)


def _output(output: UserOutput, arguments: list[Value], results: list[Tensor], sizes: Mapping[str, int]) -> object:
    if output.kind == "value":
        return results[output.index]
    if output.kind == "constant":
        return output.value.evaluate(sizes) if isinstance(output.value, Size) else output.value
    base = cast(Tensor, results[output.index] if output.kind == "alias" else arguments[output.index])
    start = int(base.storage_offset()) * base.element_size()
    for view in output.chain:
        if view.quiet:
            with torch.no_grad():
                base = _replay(view, base, sizes, start)
        else:
            base = _replay(view, base, sizes, start)
    return base


def _replay(view: View, base: Tensor, sizes: Mapping[str, int], start: int) -> Tensor:
    """Take one view again; by its geometry where its operation is not known or gives another.

    `start` is the byte of the storage where the chain's first tensor begins.
    """
    replay = None if view.op == _BY_GEOMETRY else _operator(view.op)
    if replay is not None:
        positional, named = _bound(replay, [_substituted(a, sizes) for a in view.arguments])
        result = replay(base, *positional, **named)
        if view.result is not None:
            result = cast("Sequence[Tensor]", result)[view.result]
        assert isinstance(result, Tensor)
        if view.geometry is None or _is_at(result, view.geometry, sizes, start):
            return result
    assert view.geometry is not None, f"a view by {view.op} needs a geometry to be replayed"
    return base.as_strided(*_geometry(view.geometry, sizes, start // base.element_size()))


_BY_GEOMETRY = "as_strided.default"
"""Its own arguments count from the storage's start, a view's geometry from the first element of the chain's base."""


def _geometry(geometry: Geometry, sizes: Mapping[str, int], start: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    shape = tuple(evaluate(d, sizes) for d in geometry.shape)
    strides = tuple(evaluate(d, sizes) for d in geometry.strides)
    return shape, strides, start + evaluate(geometry.offset, sizes)


def _is_at(tensor: Tensor, geometry: Geometry, sizes: Mapping[str, int], start: int) -> bool:
    shape, strides, offset = _geometry(geometry, sizes, start // tensor.element_size())
    return (
        tuple(tensor.shape) == shape
        and (tensor.numel() == 0 or has_strides(tensor, strides))
        and tensor.storage_offset() == offset
    )


def _bound(operator: OpOverload, values: Sequence[object]) -> tuple[Sequence[object], dict[str, object]]:
    """Give the arguments after the first as positional and keyword ones."""
    arguments = operator._schema.arguments[1:]  # pyright: ignore[reportPrivateUsage] (torch has no public name for it)
    count = sum(not a.kwarg_only for a in arguments)
    values = [named(v, str(a.real_type)) if isinstance(v, str) else v for v, a in zip(values, arguments, strict=True)]
    return values[:count], {a.name: v for a, v in zip(arguments[count:], values[count:], strict=True)}


def _substituted(argument: object, sizes: Mapping[str, int]) -> object:
    if isinstance(argument, Size):
        return argument.evaluate(sizes)
    if isinstance(argument, tuple):
        return [_substituted(a, sizes) for a in cast("tuple[object, ...]", argument)]
    return argument


@functools.cache
def _operator(name: str) -> OpOverload | None:
    """The overload of a name such as `transpose.int` or `mylib::view.default`, None where there is none."""
    namespace, _, rest = name.removeprefix("aten.").rpartition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace or "aten"), base, None) if base else None
    found = getattr(packet, overload or "default", None)
    return found if isinstance(found, OpOverload) else None
