"""When a traced program may run again: the arguments, modules and switches that it was traced under, tested fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards

from isthmus.frontend.snapshot import ABSENT, HOOKS, is_equal
from isthmus.frontend.torch_private import tables_of
from isthmus.frontend.trace import Traced


@dataclass(frozen=True)
class Mismatch:
    """Why a traced program does not fit a call."""

    reason: str
    sizes: tuple[tuple[int, int], ...] = ()
    """(leaf, dimension) of sizes that differ, where nothing else does; (leaf, -1) for integers."""


class TraceGuard:
    """Tests arguments, modules' attributes, closure and torch's switches against those of one trace."""

    def __init__(self, traced: Traced, leaves: Sequence[object], structure: object) -> None:
        self.structure = structure
        self.traced = traced
        self._tensor_leaves = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        tensors = [cast(Tensor, leaves[i]) for i in self._tensor_leaves]  # not kept: they are the caller's
        self._plain = tuple((i, v) for i, v in enumerate(leaves) if not isinstance(v, Tensor))
        self._moving_numbers = {i for i in traced.leaves if not isinstance(leaves[i], Tensor)}
        self._shapes = [_pattern(traced, i) for i in self._tensor_leaves]
        self._fixed_shapes = [tuple(t.shape) for t in tensors]
        self._held = traced.held
        shapes = [*self._shapes, *(list(t.shape) for t in traced.held)]
        strides = [*(list(traced.strides[i]) for i in self._tensor_leaves), *(list(t.stride()) for t in traced.held)]
        self._fast = TensorGuards(
            *tensors,
            *traced.held,
            dynamic_dims_sizes=cast(Any, shapes),
            dynamic_dims_strides=cast(Any, strides),
        )
        self._modes = GlobalStateGuard()
        self._reads = [(vars(cast(Any, m)), n, value) for m, n, value in traced.reads if n not in HOOKS]
        self._hooks = [(vars(cast(Any, m)), n, value) for m, n, value in traced.reads if n in HOOKS]
        self._slots = _slots(traced)
        self._outside = traced.outside
        self._size_guard = _compile_size_guard(traced.size_guard)

    def holds(self, leaves: Sequence[object], structure: object) -> bool:
        """Tell whether the trace is right for these arguments, now."""
        return self.mismatch(leaves, structure, explain=False) is None

    def mismatch(self, leaves: Sequence[object], structure: object, *, explain: bool = True) -> Mismatch | None:
        """Say why not; None when it fits. Without `explain` the reason is left out."""
        if structure != self.structure:
            return Mismatch("the structure of the arguments differs")
        for index, value in self._plain:
            given = leaves[index]
            if index in self._moving_numbers:
                if type(given) is not int:
                    return Mismatch(f"argument {index} is no integer")
            elif given is not value and not is_equal(given, value):
                return Mismatch(f"argument {index} is {given!r}, was {value!r}", _number(index, given, value))
        tensors = [leaves[i] for i in self._tensor_leaves]
        if not self._fast.check(*tensors, *self._held):
            return self._tensor_mismatch(tensors) if explain else _SOME
        for index, other in self.traced.same:
            if leaves[index] is not (leaves[other] if isinstance(other, int) else other):
                return Mismatch(f"argument {index} is not the same tensor as before elsewhere")
        if not self._modes.check():
            return Mismatch(f"{self._modes.reason()} differs")
        for table, name, value in self._reads:
            now = table.get(name, ABSENT)
            if now is not value and not is_equal(now, value):
                return Mismatch(f"attribute {name} is {_shown(now)}, was {_shown(value)}")
        for table, name, value in self._hooks:
            if table.get(name) != value:
                return Mismatch(f"{name} of a module differ")
        for table, name, held in self._slots:
            if table.get(name) is not held:
                return Mismatch(f"{name} is another tensor")
        if (changed := self._outside.changed()) is not None:
            return Mismatch(changed)
        if self._size_guard is not None and not self._size_guard([leaves[i] for i in self.traced.leaves]):
            return Mismatch(f"not {self.traced.size_guard}")
        return None

    def _tensor_mismatch(self, tensors: Sequence[object]) -> Mismatch:
        sizes: list[tuple[int, int]] = []
        reason = ""
        for leaf, pattern, fixed, given in zip(
            self._tensor_leaves, self._shapes, self._fixed_shapes, tensors, strict=True
        ):
            if not isinstance(given, Tensor) or len(given.shape) != len(fixed):
                return Mismatch(f"argument {leaf} has another rank or type")
            for dim, (want, got) in enumerate(zip(pattern, given.shape, strict=True)):
                if want is not None and want != got:
                    sizes.append((leaf, dim))
                    reason = f"size mismatch of argument {leaf} at dimension {dim}: expected {want}, got {got}"
        names = [f"argument {i}" for i in self._tensor_leaves] + [f"held tensor {i}" for i in range(len(self._held))]
        verbose = self._fast.check_verbose(*tensors, *self._held, tensor_check_names=names)
        return Mismatch(reason or str(verbose), tuple(sizes))


def _shown(value: object) -> str:
    return "not there" if value is ABSENT else repr(value)


_SOME = Mismatch("a tensor differs")


def _number(index: int, given: object, value: object) -> tuple[tuple[int, int], ...]:
    return ((index, -1),) if type(given) is int and type(value) is int else ()


def _pattern(traced: Traced, leaf: int) -> list[int | None]:
    """The sizes that must hold; None where the size is a symbol."""
    from isthmus import ir
    from isthmus.sizes import Size

    block = ir.function(traced.captured.module, "main").body.block
    shape = ir.shape_of(block.args[traced.leaves.index(leaf)])
    return [None if isinstance(n, Size) else n for n in shape]


def _slots(traced: Traced) -> list[tuple[Mapping[str, object], str, Tensor]]:
    """Where the held tensors sit in the modules that were read, so that another one there is seen."""
    held = {id(t): t for t in traced.held}
    found: dict[tuple[int, str], tuple[Mapping[str, object], str, Tensor]] = {}
    for module in {id(m): m for m, _, _ in traced.reads}.values():
        if not isinstance(module, nn.Module):
            continue
        for table in tables_of(module):
            for name, value in table.items():
                if id(value) in held and isinstance(value, Tensor):
                    found[id(table), name] = (table, name, value)
    return list(found.values())


def _compile_size_guard(text: str | None) -> Callable[[Sequence[object]], bool] | None:
    if not text:
        return None
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    code = compile(text, "<size guard>", "eval")

    def holds(values: Sequence[object]) -> bool:
        names: dict[str, Any] = {f"t{i}": v for i, v in enumerate(values)}
        return bool(eval(code, SYMPY_INTERP, {"L": names}))

    return holds
