"""What compilation found out about a program's boundary: training or not, tangents, aliases and mutations."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.signature import Argument, Signature
from isthmus.ir import LiteralValue


@dataclass(frozen=True)
class InputFacts:
    """One argument of the program."""

    name: str
    type: str
    requires_grad: bool
    mutates_data: bool
    mutates_metadata: bool
    """Its shape or strides are others after the call (`x.t_()`)."""
    hidden_mutation: bool
    """Written behind autograd's back: it keeps its history."""
    shares_storage_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class OutputFacts:
    """One entry of the user's flat output list."""

    kind: str
    """"value", "alias of input", "alias of intermediate" or "constant"."""
    of: str
    """The type of a value, the name of what is aliased, or the constant."""
    views: tuple[str, ...] = ()
    """The calls that make the alias."""
    requires_grad: bool = False


@dataclass(frozen=True)
class Metadata:
    """The boundary of one compiled graph."""

    is_train: bool
    traced_tangents: tuple[str, ...]
    """Types of the cotangents that the backward takes."""
    inputs: tuple[InputFacts, ...]
    outputs: tuple[OutputFacts, ...]

    def table(self) -> str:
        """Give the record as text: a line per tangent, input and output."""
        lines = [
            f"is_train: {str(self.is_train).lower()}, traced tangents: {', '.join(self.traced_tangents) or 'none'}"
        ]
        lines += [f"  input  {i.name}: {i.type}{_listed(_input_words(i))}" for i in self.inputs]
        for k, o in enumerate(self.outputs):
            words = [f"by {', '.join(o.views)}"] if o.views else []
            words += ["requires grad"] if o.requires_grad else []
            lines.append(f"  output {k}: {o.kind} {o.of}{_listed(words)}")
        return "\n".join(lines)


def metadata_of(main: FuncOp, joint: FuncOp | None = None) -> Metadata:
    """Read the record off a program at prim level; `joint` is its joint function where it is trained."""
    signature = Signature.of(main)
    names = [a.source or f"argument {i}" for i, a in enumerate(signature.arguments)]
    tangents = {} if joint is None else Signature.of(joint).tangents
    types = () if joint is None else tuple(_type(joint.body.block.args[at]) for _, at in sorted(tangents.items()))
    inputs = tuple(
        _input(value, role, i, signature, names)
        for i, (value, role) in enumerate(zip(main.body.block.args, signature.arguments, strict=True))
        if not role.key
    )
    results = [_name(t) for t in main.function_type.outputs.data]
    listed = signature.user_outputs
    if listed is None:
        listed = tuple(("value", k) for k, r in enumerate(signature.results) if r.output)
    outputs = tuple(_output(entry, names, results, tangents) for entry in listed)
    return Metadata(bool(tangents), types, inputs, outputs)


def _input(value: SSAValue, role: Argument, index: int, signature: Signature, names: list[str]) -> InputFacts:
    mutated = signature.mutated.get(index)
    return InputFacts(
        names[index],
        _type(value),
        role.wants_gradient,
        mutated is not None,
        role.rebound is not None,
        mutated is not None and signature.results[mutated].hidden,
        tuple(names[i] for i in role.shares),
    )


def _output(
    entry: tuple[LiteralValue, ...], names: list[str], results: list[str], tangents: dict[int, int]
) -> OutputFacts:
    kind, what, *rest = entry
    chain = rest[0] if rest and isinstance(rest[0], tuple) else ()
    views = tuple(str(view[0]) for view in chain if isinstance(view, tuple))
    if kind == "constant" or not isinstance(what, int):
        return OutputFacts("constant", str(what))
    if kind == "argument":
        return OutputFacts("alias of input" if views else "input", names[what], views)
    differentiable = what in tangents
    if kind == "alias":
        return OutputFacts("alias of intermediate", f"{what}: {results[what]}", views, differentiable)
    return OutputFacts("value", results[what], (), differentiable)


def _input_words(facts: InputFacts) -> list[str]:
    words = ["requires grad"] if facts.requires_grad else []
    if facts.mutates_data:
        words.append("data mutated" + (" behind autograd's back" if facts.hidden_mutation else ""))
    if facts.mutates_metadata:
        words.append("metadata mutated")
    if facts.shares_storage_with:
        words.append(f"shares storage with {', '.join(facts.shares_storage_with)}")
    return words


def _listed(words: list[str]) -> str:
    return f" ({'; '.join(words)})" if words else ""


def _type(value: SSAValue) -> str:
    return _name(value.type)


def _name(type_: ir.Attribute) -> str:
    if isinstance(type_, IndexType):
        return "size"
    return f"{ir.dtype_of(type_)}[{', '.join(map(str, ir.shape_of(type_)))}]"
