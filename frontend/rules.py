"""Rules in plain torch code, run once on fakes of one call's operands and recorded as functions of the aten dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Region

from isthmus import ir
from isthmus.diagnostics import CompileError, SourceLocation
from isthmus.dialects import aten
from isthmus.frontend.derivatives import CallOnFakes
from isthmus.frontend.encode import DTYPES
from isthmus.frontend.modes import restored_modes
from isthmus.frontend.operators import facts_of
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.symbolic import SizeReader, SizeWriter
from isthmus.frontend.torch_private import python_dispatcher

Rule = Callable[..., object]


def overload_name(op: object) -> str:
    """Give the name of an overload as calls carry it: of `torch.ops.aten.relu.default`, its packet, or a custom op.

    TypeError for anything else, and for a packet of several overloads.
    """
    op = getattr(op, "_opoverload", op)  # a torch.library.custom_op
    if isinstance(op, OpOverloadPacket):
        if len(op.overloads()) != 1:
            raise TypeError(f"{op} has the overloads {', '.join(op.overloads())}: name one of them")
        op = getattr(op, op.overloads()[0])
    if not isinstance(op, OpOverload):
        raise TypeError(f"{op!r} is no operator overload like torch.ops.aten.relu.default")
    return facts_of(op).name


def trace_decomposition(
    rule: Rule, call: aten.CallOp, *, hints: Mapping[str, int], location: SourceLocation | None
) -> ModuleOp:
    """Give `rule(*args, **kwargs)` on the operands of a call as `@main` (operands) -> (results)."""
    made = CallOnFakes(call.overload, call.args, [v.type for v in call.operands], hints, "cpu")

    def run() -> list[Tensor]:
        positional, named = made.bound(made.operands)
        return tensors_in(rule(*positional, **named))

    return _recorded(made.recorder, made.operands, run, location)


def trace_gradients(
    rule: Rule, call: aten.CallOp, *, hints: Mapping[str, int], location: SourceLocation | None
) -> tuple[ModuleOp, list[bool]]:
    """Give `rule(gradient, result, *args, **kwargs)` as `@main` (cotangents, operands, results) -> (gradients).

    Also which of the operands get one. A gradient and a result are tuples where the call has several results.
    CompileError when the rule does not give one entry for each argument of the operator.
    """
    made = CallOnFakes(call.overload, call.args, [v.type for v in call.operands], hints, "cpu")
    with made.recorder.unrecorded():
        results = [made.fake(r.type, "cpu") for r in call.results]
        cotangents = [made.fake(r.type, "cpu") for r in call.results]
    wanted: list[bool] = []

    def run() -> list[Tensor]:
        positional, named = made.bound(made.operands)
        several = len(results) > 1
        found = rule(
            tuple(cotangents) if several else cotangents[0],
            tuple(results) if several else results[0],
            *positional,
            **named,
        )
        arguments = [*positional, *named.values()]
        listed = list(cast("Sequence[object]", found)) if isinstance(found, (tuple, list)) else [found]
        if len(listed) != len(arguments):
            raise CompileError(f"gives {len(listed)} gradients where the operator has {len(arguments)} arguments")
        by_operand = _by_operand(made.operands, arguments, listed)
        wanted.extend(g is not None for g in by_operand)
        return [g for g in by_operand if g is not None]

    module = _recorded(made.recorder, [*cotangents, *made.operands, *results], run, location)
    return module, wanted


def trace_function(
    rule: Rule,
    operands: Sequence[Attribute],
    *,
    hints: Mapping[str, int],
    location: SourceLocation | None = None,
    when: Callable[..., object] | None = None,
    as_pattern: bool = False,
) -> ModuleOp | None:
    """Give `rule(*tensors)` on tensors of these types; None where `when(*tensors)` says no.

    Results are values of their own, but for a pattern, which is nothing beside the rule's own calls.
    """
    writer = SizeWriter(hints)
    fake_mode = FakeTensorMode(shape_env=writer.shape_env)
    with fake_mode:
        fakes = [
            torch.empty(tuple(writer.size(d) for d in ir.shape_of(t)), dtype=DTYPES[ir.dtype_of(t)]) for t in operands
        ]
    recorder = Recorder(fake_mode, SizeReader(writer.shape_env, writer.names))
    if when is not None:
        with fake_mode:
            if not when(*fakes):
                return None
    return _recorded(recorder, fakes, lambda: tensors_in(rule(*fakes)), location, copies=not as_pattern)


def tensor_type(example: Tensor) -> Attribute:
    """Give the value type of an example."""
    from isthmus.frontend.encode import dtype_name

    return ir.tensor(tuple(example.shape), dtype_name(example.dtype))


def tensors_in(result: object) -> list[Tensor]:
    """Give the tensors of a rule's result; CompileError for anything else among them but None."""
    leaves = [r for r in pytree.tree_leaves(result) if r is not None]
    strange = [type(r).__name__ for r in leaves if not isinstance(r, Tensor)]
    if strange:
        raise CompileError(f"gives {', '.join(strange)} where tensors are expected")
    return leaves


def _by_operand(
    operands: Sequence[Tensor], arguments: Sequence[object], gradients: Sequence[object]
) -> list[Tensor | None]:
    found: dict[int, Tensor] = {}
    for argument, gradient in zip(arguments, gradients, strict=True):
        if gradient is None:
            continue
        parts = argument if isinstance(argument, list) else [argument]
        given = list(cast("Sequence[object]", gradient)) if isinstance(gradient, (tuple, list)) else [gradient]
        for part, g in zip(cast("Sequence[object]", parts), given, strict=True):
            if isinstance(part, Tensor) and isinstance(g, Tensor):
                found[id(part)] = found[id(part)] + g if id(part) in found else g
            elif g is not None:
                raise CompileError("gives a gradient for an argument that is no tensor; give None")
    return [found.get(id(t)) for t in operands]


def _recorded(
    recorder: Recorder,
    inputs: Sequence[Tensor],
    run: Callable[[], list[Tensor]],
    location: SourceLocation | None,
    copies: bool = True,
) -> ModuleOp:
    recorder.location = location
    for tensor in inputs:
        recorder.add_input(tensor)
    with restored_modes(), recorder.fake_mode, python_dispatcher(), recorder, torch.enable_grad():
        results = [r.clone() if copies else r for r in run()]  # values of their own, never views of others
    if recorder.constants:
        raise CompileError("reads a tensor that is not among its arguments", cure="make it inside, from numbers")
    values = [recorder.value_of(r) for r in results]
    recorder.emit(ReturnOp(*values))
    block = recorder.root.block
    kinds = FunctionType.from_lists([a.type for a in block.args], [v.type for v in values])
    module = ModuleOp([FuncOp("main", kinds, Region(block))])
    aten.attach_schemas(module, tuple(recorder.schemas))
    return module


__all__ = ["overload_name", "tensor_type", "trace_decomposition", "trace_function", "trace_gradients"]
