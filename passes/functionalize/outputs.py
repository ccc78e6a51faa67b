"""What a functional program returns: fresh values, bases of what the caller sees as views, new values of arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.dialects.aten import RefFacts
from isthmus.dialects.schema import Schema
from isthmus.dialects.signature import Argument, Result, Signature
from isthmus.ir import LiteralValue
from isthmus.passes.functionalize import storage
from isthmus.passes.functionalize.geometry import Same
from isthmus.passes.functionalize.program import Program
from isthmus.passes.functionalize.storage import Reference
from isthmus.passes.functionalize.views import operand_zero_first
from isthmus.sizes import Dim, exact_quotient

Entry = tuple[LiteralValue, ...]

_DETACH = "detach.default"


class Outputs:
    """Decides for each returned reference whether it is a value, a view of a result, or (a view of) an argument."""

    def __init__(
        self,
        program: Program,
        signature: Signature,
        arguments: Sequence[Reference | None],
        schemas: Mapping[str, Schema] | None,
    ) -> None:
        self._program = program
        self._signature = signature
        self._arguments = arguments
        self._schemas = schemas
        self._rebound: dict[int, Reference] = {}
        self._values: list[SSAValue] = []
        self._results: list[Result] = []
        self._bases: dict[Reference, int] = {}

    def of(self, returned: Sequence[SSAValue]) -> tuple[list[SSAValue], Signature]:
        """Give the values to return and the function's new signature."""
        roles = self._signature.results
        for value, role in zip(returned, roles, strict=True):
            if (index := _rebound(role)) is not None:
                self._rebound[index] = self._program.references[value]
        outputs = [
            self._program.references.get(v, v) for v, r in zip(returned, roles, strict=True) if _rebound(r) is None
        ]
        entries = self._entries(outputs)
        listed = self._signature.user_outputs or tuple(("value", k) for k in range(len(outputs)))
        user_outputs = tuple(entries[_number(e[1])] if e[0] == "value" else e for e in listed)
        self._add_mutated()
        arguments = tuple(self._argument(i, a) for i, a in enumerate(self._signature.arguments))
        return self._values, Signature(arguments, tuple(self._results), user_outputs)

    # ---- Outputs

    def _entries(self, outputs: Sequence[Reference | SSAValue]) -> list[Entry]:
        alone = _alone([o for o in outputs if isinstance(o, Reference)])
        return [self._entry(o, o in alone) if isinstance(o, Reference) else self._value_entry(o, None) for o in outputs]

    def _entry(self, output: Reference, alone: bool) -> Entry:
        path = _path(output)
        base = path[0]
        if base.argument is None and alone and all(isinstance(r.link, Same) for r in path[1:]):
            return self._value_entry(storage.read(self._program.e, output), output.facts)
        if any(r.frozen is not None for r in path):
            return self._value_entry(storage.read(self._program.e, output), output.facts)
        if any(r.history is not None for r in path[1:]):
            raise UnsupportedError(
                "an output is a detached alias of another tensor and was written with a history of its own",
                op="return",
                cure="return a clone of it",
            )
        if base.argument is not None:
            return ("argument", base.argument, self._chain(self._from_rebound(path), base.facts))
        chain = self._chain(path[1:], base.facts)
        k = self._base(base)
        return ("alias", k, chain) if chain else ("value", k)

    def _chain(self, views: Sequence[Reference], base: RefFacts) -> tuple[Entry, ...]:
        """Give the views as the runtime replays them, those taken under no_grad marked, detached ones detached."""
        chain: list[Entry] = []
        for view in views:
            entry = self._view(view, base)
            by_call = view.call is not None and view.call.overload != _DETACH
            chain.append((*entry, True) if view.quiet and by_call else entry)
            if view.quiet and not by_call and entry[0] != _DETACH:  # by its place: it does not say itself what it is
                chain.append((_DETACH, (), entry[2], None))
        return tuple(chain)

    def _from_rebound(self, path: Sequence[Reference]) -> Sequence[Reference]:
        """Give the views that are left to take when the argument has its final geometry."""
        now = self._rebound.get(path[0].argument if path[0].argument is not None else -1)
        if now is None:
            return path[1:]
        if now in path:
            return path[path.index(now) + 1 :]
        last = path[-1]
        quiet = any(r.quiet for r in path)
        return [Reference(last.root, last.type, parent=path[0], link=None, placed=True, quiet=quiet)]

    def _value_entry(self, value: SSAValue, facts: RefFacts | None) -> Entry:
        return ("value", self._add(value, Result(output=True, strides=_strides(facts))))

    def _base(self, base: Reference) -> int:
        """Give the result that a base is, made once for all its views."""
        if base not in self._bases:
            value = storage.read(self._program.e, base)
            self._bases[base] = self._add(value, Result(output=True, strides=_strides(base.facts)))
        return self._bases[base]

    def _add(self, value: SSAValue, result: Result) -> int:
        self._values.append(value)
        self._results.append(result)
        return len(self._values) - 1

    def _view(self, reference: Reference, base: RefFacts) -> Entry:
        facts, call = reference.facts, reference.call
        geometry = (facts.shape, facts.strides, _offset(facts, base))
        if call is None or reference.placed or call.base != 0 or not operand_zero_first(call.args):
            return ("as_strided.default", geometry, geometry, None)
        position = call.present[reference.result] if self._gives_list(call.overload, len(call.types)) else None
        return (call.overload, call.args[1:], geometry, position)

    def _gives_list(self, overload: str, results: int) -> bool:
        schema = self._schemas.get(overload) if self._schemas else None
        return results > 1 or (schema is not None and schema.tensor_results is None)

    # ---- Arguments

    def _add_mutated(self) -> None:
        e = self._program.e
        for index, reference in enumerate(self._arguments):
            if reference is None or not reference.written:
                continue
            value = storage.read(e, self._rebound.get(index, reference))
            if value is not e.block.args[index]:
                hidden = not reference.seen
                role = Result(mutated=index, hidden=hidden, uncounted=not reference.counted)
                self._add(e.stopped(value) if hidden else value, role)

    def _argument(self, index: int, role: Argument) -> Argument:
        reference = self._arguments[index]
        if reference is None:
            return role
        geometry = None
        if index in self._rebound:
            facts = self._rebound[index].facts
            geometry = (facts.shape, facts.strides, _offset(facts, reference.facts))
        return replace(role, strides=_strides(reference.facts), rebound=geometry)


def _rebound(result: Result) -> int | None:
    attr = result.extra.get(aten.REBOUND)
    return _number(attr.data) if isinstance(attr, ir.Literal) else None


def _number(value: LiteralValue) -> int:
    assert isinstance(value, int)
    return value


def _path(output: Reference) -> list[Reference]:
    """Give the references from the nearest argument, or the root, to the output."""
    path = [output]
    while path[-1].argument is None and path[-1].parent is not None:
        path.append(path[-1].parent)
    return path[::-1]


def _alone(outputs: Sequence[Reference]) -> set[Reference]:
    """Give the outputs whose storage no other output shares."""
    owners: dict[storage.Root, set[Reference]] = {}
    for output in outputs:
        owners.setdefault(output.root, set()).add(output)
    return {next(iter(group)) for group in owners.values() if len(group) == 1}


def _strides(facts: RefFacts | None) -> ir.Shape | None:
    if facts is None or facts.strides == ir.contiguous_strides(facts.shape):
        return None
    return facts.strides


def _offset(facts: RefFacts, base: RefFacts) -> Dim:
    """Give where a view begins, from the first element of its base, in its own elements."""
    unit, base_unit = ir.itemsize(facts.dtype), ir.itemsize(base.dtype)
    offset = exact_quotient(facts.offset * unit - base.offset * base_unit, unit)
    assert offset is not None
    return offset
