"""What importing a structured call needs: the call itself, its body, ops with regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor, fx
from torch.utils import _pytree as pytree
from xdsl.ir import Attribute, Operation, Region
from xdsl.irdl import IRDLOperation

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.frontend.recorder import Recorder
from isthmus.ir import Literal, LiteralValue


class RunBody(Protocol):
    """Interprets a body under the recorder."""

    def __call__(self, graph: fx.GraphModule, recorder: Recorder, args: Sequence[object], /) -> object: ...


@dataclass(frozen=True)
class Call:
    """One structured call while it is imported; `example` is what Dynamo says it gives."""

    recorder: Recorder
    run_body: RunBody
    args: tuple[object, ...]
    kwargs: dict[str, object]
    example: object

    def body(self, index: int) -> fx.GraphModule:
        """Give an argument that is a body."""
        return cast(fx.GraphModule, self.args[index])

    def run(self, graph: fx.GraphModule, args: Sequence[object]) -> list[object]:
        """Interpret a body; gives its flat results."""
        return _flat(self.run_body(graph, self.recorder, args))


def create(
    recorder: Recorder,
    kind: type[IRDLOperation],
    operands: Sequence[Tensor],
    properties: Mapping[str, LiteralValue],
    regions: Sequence[Region],
    results: Sequence[Tensor],
) -> Operation:
    """Write an op; the results are new fake tensors, which become its values."""
    encoded: dict[str, Attribute] = {k: Literal.of(v) for k, v in properties.items()}
    op = ir.create_op(
        kind,
        [recorder.value_of(t) for t in operands],
        [recorder.type_of(t) for t in results],
        encoded,
        regions=regions,
        location=ir.location_attr(recorder.location),
    )
    recorder.emit(op)
    for tensor, value in zip(results, op.results, strict=True):
        recorder.define(tensor, value)
    return op


def mark_gradients(recorder: Recorder, op: Operation) -> None:
    """Say on an op when autograd does not record it."""
    if not recorder.grad_mode():
        op.properties["grad"] = aten.FALSE


def _flat(values: object) -> list[object]:
    return pytree.tree_leaves(values, is_leaf=lambda v: v is None)


def as_list(values: object) -> list[object]:
    """Give a tuple, a list or a single value as a list."""
    return list(cast(Sequence[object], values)) if isinstance(values, list | tuple) else [values]


def tensors_in(values: object) -> list[Tensor]:
    """Give the tensors of a tuple, a list or a single value."""
    return [v for v in as_list(values) if isinstance(v, Tensor)]


def exchange(values: Sequence[object], tensors: Sequence[Tensor]) -> list[object]:
    """Give the values with their tensors exchanged in order."""
    rest = iter(tensors)
    return [next(rest) if isinstance(v, Tensor) else v for v in values]


def in_place_of(values: object, tensors: Sequence[Tensor]) -> object:
    """Give the same structure with its tensors exchanged in order."""
    exchanged = exchange(as_list(values), tensors)
    return tuple(exchanged) if isinstance(values, list | tuple) else exchanged[0]


def emit_yield(recorder: Recorder, tensors: Sequence[Tensor]) -> None:
    """End a region of autodiff with these values."""
    recorder.emit(ir.create_op(autodiff.YieldOp, [recorder.value_of(t) for t in tensors], []))
