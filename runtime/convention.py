"""What the runtime must know about a compiled pair: who is who among arguments and results.

Positions are those of the forward function's arguments and of the *node's* results: its outputs,
then the new values of arguments that it mutates. What is saved for the backward is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

from torch import Tensor
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument

from isthmus.diagnostics import IRError
from isthmus.dialects.signature import Result, Signature, symbol_sources
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
    """A forward that can leave the intermediates it saves in an arena."""

    def save_in_arena(self, arguments: list[Value], /) -> tuple[list[Tensor], Lease | None]:
        """Run; gives the node's results only, and the arena with the saved intermediates, if any."""
        ...


@runtime_checkable
class RestoringExecutable(Protocol):
    """A backward that can read saved intermediates from the arena the forward left them in."""

    def run_from_arena(self, arguments: list[Value], arena: Tensor, /) -> list[Tensor]:
        """Run; `arguments` lacks the saved intermediates."""
        ...


@dataclass(frozen=True)
class Geometry:
    """Shape, strides and offset in elements, as `as_strided` takes them."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0


@dataclass(frozen=True)
class View:
    """One step of a view chain: the ATen overload that made it, and where it ends up."""

    op: str
    arguments: tuple[object, ...]
    geometry: Geometry | None = None
    result: int | None = None


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
    keeps its history; else it gets the node's. `geometry`: the argument's new shape and strides.
    """

    result: int | None
    argument: int
    hidden: bool = False
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

    @staticmethod
    def of(forward: FuncOp, backward: FuncOp | None = None) -> Convention:
        """Read the convention off the functions' roles; IRError where these make no pair."""
        signature = Signature.of(forward)
        node_results = [r for r in signature.results if r.saved is None]
        count = len(node_results)
        gradients, sources = _backward_of(backward) if backward is not None else ((), ())
        tangents = {s.index for s in sources if s.kind == "tangent"}
        uses = [any(True for _ in a.uses) for a in forward.body.block.args]
        return Convention(
            arguments=len(signature.arguments),
            results=count,
            outputs=_outputs(signature, node_results),
            mutations=tuple(_mutation(k, r) for k, r in enumerate(node_results) if r.mutated is not None),
            keys=tuple(i for i, a in enumerate(signature.arguments) if a.key),
            symbols=tuple(SizeSource(n, i, d) for n, (i, d) in symbol_sources(forward).items()),
            differentiable=tuple(sorted(tangents)),
            saved=_saved(forward, signature, count),
            backward=sources,
            gradients=gradients,
            names=tuple(a.source or "" for a in signature.arguments),
            unused=frozenset(i for i, used in enumerate(uses) if not used),
        )


def _backward_of(backward: FuncOp) -> tuple[tuple[int, ...], tuple[Source, ...]]:
    signature = Signature.of(backward)
    sources: list[Source] = []
    for position, argument in enumerate(signature.arguments):
        if argument.saved is not None:
            sources.append(Source("saved", argument.saved, strides=argument.strides))
        elif argument.tangent is not None:
            sources.append(Source("tangent", argument.tangent, strides=argument.strides))
        elif argument.symbol is not None:
            sources.append(Source("symbol", name=argument.symbol))
        else:
            raise IRError(f"argument {position} of the backward function is no saved value, tangent or size")
    gradients = [r.gradient for r in signature.results]
    if None in gradients:
        raise IRError("a result of the backward function is no gradient")
    return tuple(cast("list[int]", gradients)), tuple(sources)


def _saved(forward: FuncOp, signature: Signature, count: int) -> tuple[Saved, ...]:
    """Per saved value j its source, by the SSA value that the function returns for it."""
    terminator = forward.body.block.last_op
    assert terminator is not None
    values = list(terminator.operands)
    outputs = {v: k for k, v in reversed(list(enumerate(values[:count])))}
    found: dict[int, Saved] = {}
    for value, result in zip(values[count:], signature.results[count:], strict=True):
        if result.saved is None:
            raise IRError("saved values must be the last results of a forward function")
        if isinstance(value, BlockArgument) and value.owner is forward.body.block:
            found[result.saved] = Saved("argument", value.index)
        elif value in outputs:
            found[result.saved] = Saved("result", outputs[value])
        else:
            found[result.saved] = Saved("intermediate")
    if list(found) != list(range(len(found))):
        raise IRError("saved values must be listed in the order of their numbers")
    return tuple(found.values())


def _outputs(signature: Signature, results: list[Result]) -> tuple[UserOutput, ...]:
    if signature.user_outputs is None:
        return tuple(UserOutput("value", k) for k, r in enumerate(results) if r.mutated is None)
    return tuple(_output(cast("tuple[object, ...]", entry)) for entry in signature.user_outputs)


def _output(entry: tuple[object, ...]) -> UserOutput:
    kind, what, *rest = entry
    if kind == "constant":
        return UserOutput("constant", value=what)
    if kind not in ("value", "alias", "argument"):
        raise IRError(f"{kind!r} is no kind of output")
    chain = cast("tuple[tuple[object, ...], ...]", rest[0]) if rest else ()
    return UserOutput(kind, cast(int, what), tuple(_view(step) for step in chain))


def _view(step: tuple[object, ...]) -> View:
    """`[op, arguments, [shape, strides, offset]]` or `[op, arguments, [..], result]`; op may be none."""
    op, arguments, geometry, *rest = step
    where = None if geometry is None else Geometry(*cast("tuple[tuple[Dim, ...], tuple[Dim, ...], Dim]", geometry))
    result = cast(int, rest[0]) if rest else None
    return View(cast(str, op or ""), cast("tuple[object, ...]", arguments), where, result)


def _mutation(position: int, result: Result) -> Mutation:
    assert result.mutated is not None
    return Mutation(position, result.mutated, hidden=HIDDEN in result.extra)


HIDDEN = "isthmus.hidden"
"""Attribute of a `mutated` result: autograd does not see the write (`no_grad`, `detach`)."""

MakeExecutable: TypeAlias = Callable[[], Executable]
