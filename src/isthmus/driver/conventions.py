"""From the roles written on functions to the calling convention that the runtime follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal as Choice
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects.signature import Signature, symbol_sources
from isthmus.ir import LiteralValue
from isthmus.runtime.convention import Convention, Geometry, Mutation, Saved, SizeSource, Source, UserOutput, View


def returned(func: FuncOp) -> tuple[SSAValue, ...]:
    """Give what a function returns."""
    last = func.body.block.last_op
    assert last is not None
    return ir.operands_of(last)


@dataclass(frozen=True)
class _Forward:
    func: FuncOp
    signature: Signature

    @property
    def node_results(self) -> int:
        return sum(r.saved is None and r.gradient is None for r in self.signature.results)

    def saved(self) -> tuple[Saved, ...]:
        """Where each saved value comes from: an argument, a result the user also gets, or an intermediate."""
        values = returned(self.func)
        listed = list(zip(values, self.signature.results, strict=True))
        places = reversed(list(enumerate(listed[: self.node_results])))
        results = {(id(v), r.strides): k for k, (v, r) in places}  # in another layout it is another tensor
        found: dict[int, Saved] = {}
        for value, result in listed:
            if result.saved is None:
                continue
            if isinstance(value, BlockArgument):
                found[result.saved] = Saved("argument", value.index)
            elif (id(value), result.strides) in results:
                found[result.saved] = Saved("result", results[id(value), result.strides])
            else:
                found[result.saved] = Saved("intermediate", result.saved)
        return tuple(found[j] for j in range(len(found)))


def convention_of(forward: FuncOp, backward: FuncOp | None = None) -> Convention:
    """Give the convention of a forward function, with its backward when there is one."""
    signature = Signature.of(forward)
    about = _Forward(forward, signature)
    kept = [r for r in signature.results if r.saved is None and r.gradient is None]
    outputs = signature.user_outputs
    if outputs is None:
        outputs = tuple(("value", k) for k, r in enumerate(kept) if r.mutated is None)
    convention = Convention(
        arguments=len(signature.arguments),
        results=len(kept),
        outputs=tuple(_user_output(entry) for entry in outputs),
        mutations=_mutations(signature),
        keys=tuple(signature.arguments_where(key=True)),
        symbols=tuple(SizeSource(name, argument, dim) for name, (argument, dim) in symbol_sources(forward).items()),
        saved=about.saved(),
        names=tuple(a.source or "" for a in signature.arguments),
        unused=frozenset(i for i, a in enumerate(forward.body.block.args) if a.first_use is None),
    )
    return convention if backward is None else _with_backward(convention, backward)


def _with_backward(convention: Convention, backward: FuncOp) -> Convention:
    signature = Signature.of(backward)
    sources: list[Source] = []
    for argument in signature.arguments:
        if argument.saved is not None:
            sources.append(Source("saved", argument.saved))
        elif argument.tangent is not None:
            sources.append(Source("tangent", argument.tangent, strides=argument.strides))
        elif argument.symbol is not None:
            sources.append(Source("symbol", name=argument.symbol))
        else:
            raise ir.IRError("an argument of the backward function is neither saved, a tangent nor a size")
    tangents = tuple(sorted(a.tangent for a in signature.arguments if a.tangent is not None))
    gradients = tuple(r.gradient for r in signature.results if r.gradient is not None)
    return replace(convention, backward=tuple(sources), differentiable=tangents, gradients=gradients)


def _mutations(signature: Signature) -> tuple[Mutation, ...]:
    """In the order of the arguments: new values, and new geometries of which the values may be old."""
    mutated = signature.mutated
    found: list[Mutation] = []
    for index, argument in enumerate(signature.arguments):
        geometry = None if argument.rebound is None else Geometry(*argument.rebound)
        if index in mutated:
            role = signature.results[mutated[index]]
            found.append(
                Mutation(mutated[index], index, hidden=role.hidden, counted=not role.uncounted, geometry=geometry)
            )
        elif geometry is not None:
            found.append(Mutation(None, index, geometry=geometry))
    return tuple(found)


def _user_output(entry: tuple[LiteralValue, ...]) -> UserOutput:
    kind, what, *rest = entry
    if kind == "constant":
        return UserOutput("constant", value=what)
    chain = cast(tuple[tuple[LiteralValue, ...], ...], rest[0]) if rest else ()
    named = cast(Choice["value", "alias", "argument"], kind)
    return UserOutput(named, cast(int, what), tuple(_view(step) for step in chain))


def _view(step: tuple[LiteralValue, ...]) -> View:
    """`(overload, arguments after the first, (shape, strides, offset) or none, result or none[, quiet])`."""
    overload, arguments, geometry, result, *quiet = step
    where = None
    if geometry is not None:
        shape, strides, offset = cast(tuple[ir.Shape, ir.Shape, ir.Dim], geometry)
        where = Geometry(shape, strides, offset)
    return View(cast(str, overload), cast(tuple[object, ...], arguments), where, cast(int | None, result), bool(quiet))


def require_known_sizes(func: FuncOp) -> None:
    """Refuse sizes that no argument shows: they depend on data. UnsupportedError names the first op that has one."""
    known = set(symbol_sources(func))
    for op in func.walk():
        for value in op.results:
            if unknown := _symbols(ir.shape_of(value)) - known:
                raise UnsupportedError(
                    f"has a size that depends on data ({', '.join(sorted(unknown))})",
                    location=ir.source_location(op),
                    op=str(ir.literal(op, "overload") or op.name),
                    cure="compute the size outside of the compiled region, or pass it as an argument",
                )
    for entry in Signature.of(func).user_outputs or ():
        if unknown := _symbols(entry) - known:
            raise UnsupportedError(
                f"an output is a view at a place that depends on data ({', '.join(sorted(unknown))})",
                cure="clone the view, or take it outside of the compiled region",
            )


def _symbols(value: LiteralValue) -> frozenset[str]:
    if isinstance(value, ir.Size):
        return value.symbols()
    return frozenset[str]().union(*map(_symbols, value)) if isinstance(value, tuple) else frozenset()
