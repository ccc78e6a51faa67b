"""What the runtime must know about a compiled pair: who is who among arguments and results.

Positions are those of the forward function's arguments and of the *node's* results: its outputs,
then the new values of arguments that it mutates. What is saved for the backward is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from isthmus.runtime.arena import Lease
from isthmus.sizes import Dim

Value: TypeAlias = Tensor | int | float | bool | None
"""What a compiled function takes; sizes that shapes do not show are ints."""


class Executable(Protocol):
    """Runs one function: all results in the order of the function's results.

    `fresh` says that results share no storage with arguments or with each other, `native` that
    the call is one call of machine code without Python inside (and without a library call that
    is not on the allow-list).
    """

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run; the arguments are in the order of the function's arguments."""
        ...


@runtime_checkable
class SavingExecutable(Protocol):
    """A forward that can leave the intermediates it saves in an arena (all of them, if `saves_in_arena`)."""

    @property
    def saves_in_arena(self) -> bool:
        """Whether nothing that it saves is a tensor of its own, but for arguments and results."""
        ...

    def save_in_arena(self, arguments: list[Value], /) -> tuple[list[Tensor], Lease | None]:
        """Run; gives the node's results only, and the arena with the saved intermediates, if any."""
        ...


class RestoringExecutable(Protocol):
    """A backward that can read saved intermediates from the arena the forward left them in."""

    @property
    def sizes_wanted(self) -> tuple[str, ...]:
        """Symbols whose values follow the arguments, because only what is in the arena would show them."""
        ...

    def run_from_arena(self, arguments: list[Value], arena: Tensor, /) -> list[Tensor]:
        """Run; `arguments` lacks the saved intermediates and ends with the sizes wanted."""
        ...


@dataclass(frozen=True)
class Geometry:
    """Shape, strides and offset in elements; the offset counts from the first element of what is viewed."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0


@dataclass(frozen=True)
class View:
    """One step of a view chain: the ATen overload that made it, and where it ends up.

    `quiet`: the program took it under `no_grad`.
    """

    op: str
    arguments: tuple[object, ...]
    geometry: Geometry | None = None
    result: int | None = None
    quiet: bool = False


@dataclass(frozen=True)
class UserOutput:
    """One entry of the user's flat output list.

    kind `value`: result `index` of the node; `alias`: a view of it by `chain`; `argument`:
    argument `index` itself or a view of it; `constant`: `value`.
    """

    kind: Literal["value", "alias", "argument", "constant"]
    index: int = 0
    chain: tuple[View, ...] = ()
    value: object = None


@dataclass(frozen=True)
class Mutation:
    """Result `result` of the node is the new content of argument `argument`.

    `hidden`: the program wrote under `no_grad` or through a detached alias, so that the argument
    keeps its history; else it gets the node's. `counted`: its version changes (not where it wrote
    through `.data` only). `geometry`: the argument's new shape and strides.
    """

    result: int | None
    argument: int
    hidden: bool = False
    counted: bool = True
    geometry: Geometry | None = None


@dataclass(frozen=True)
class Saved:
    """Where saved value j comes from: an argument, a result of the node, or an intermediate."""

    kind: Literal["argument", "result", "intermediate"]
    index: int = 0


@dataclass(frozen=True)
class Source:
    """What an argument of the backward function is.

    `saved`: saved value `index`; `tangent`: the cotangent of result `index` of the node, in
    `strides` where these are not row-major; `symbol`: a size by name.
    """

    kind: Literal["saved", "tangent", "symbol"]
    index: int = 0
    name: str = ""
    strides: tuple[Dim, ...] | None = None


@dataclass(frozen=True)
class SizeSource:
    """Where the value of a symbol is read: a dimension of an argument, or an int argument."""

    name: str
    argument: int
    dimension: int | None = None


@dataclass(frozen=True)
class Convention:
    """The calling convention of a forward and backward pair (or of a forward alone).

    `arguments` and `results` count those of the forward function and of the node. `keys` are the
    positions of random keys, which the runtime draws. `gradients` are the arguments that get a
    gradient, in the order of the backward's results. `differentiable` are the results that have
    tangents. `unused` are arguments whose value the function never reads.
    """

    arguments: int
    results: int
    outputs: tuple[UserOutput, ...]
    mutations: tuple[Mutation, ...] = ()
    keys: tuple[int, ...] = ()
    symbols: tuple[SizeSource, ...] = ()
    differentiable: tuple[int, ...] = ()
    saved: tuple[Saved, ...] = ()
    backward: tuple[Source, ...] = ()
    gradients: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    unused: frozenset[int] = frozenset()

    def name(self, argument: int) -> str:
        """How the user calls an argument."""
        named = argument < len(self.names) and self.names[argument]
        return self.names[argument] if named else f"argument {argument}"

    def sizes(self, arguments: Sequence[Value]) -> dict[str, int]:
        """The values of the symbols in a call."""
        found: dict[str, int] = {}
        for source in self.symbols:
            value = arguments[source.argument]
            if source.dimension is None:
                assert not isinstance(value, Tensor) and value is not None
                found[source.name] = int(value)
            else:
                assert isinstance(value, Tensor)
                found[source.name] = value.shape[source.dimension]
        return found


MakeExecutable: TypeAlias = Callable[[], Executable]
