"""A small evaluator of aten modules with torch's own operators, to see whether what was captured is the program."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.dialects.signature import Signature
from isthmus.frontend.captured import Captured
from isthmus.frontend.encode import DTYPES
from isthmus.sizes import Size, evaluate

sys.path.insert(0, str(Path(__file__).parent))


def show(module: ModuleOp) -> str:
    out = io.StringIO()
    Printer(stream=out).print_op(module)
    return out.getvalue()


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, ir.ISTHMUS, aten.ATEN, autodiff.AUTODIFF):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def overload(name: str) -> Any:
    namespace, _, rest = name.rpartition("::")
    packet, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), variant)


def decode(value: Any, kind: str, operands: Sequence[Any], sizes: dict[str, int]) -> Any:
    if isinstance(value, tuple):
        return [decode(v, kind, operands, sizes) for v in value]
    if isinstance(value, ir.Operand):
        found = operands[value.index]
        return found.item() if kind in ("number", "float") else found
    if isinstance(value, Size):
        return value.evaluate(sizes)
    if isinstance(value, str) and "ScalarType" in kind:
        return DTYPES[value]
    if isinstance(value, str) and any(k in kind for k in ("Layout", "MemoryFormat")):
        return getattr(torch, value)
    return value


class Evaluation:
    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes

    def block(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        values: dict[SSAValue, Any] = dict(zip(block.args, arguments, strict=True))
        for op in block.ops:
            operands = [values[v] for v in op.operands]
            if isinstance(op, ReturnOp | aten.YieldOp | autodiff.YieldOp):
                return operands
            enabled = torch.is_grad_enabled() and ir.literal(op, "grad") is not False
            with torch.set_grad_enabled(enabled):
                results = self.op(op, operands)
            for value, result in zip(op.results, results, strict=True):
                assert tuple(result.shape) == tuple(evaluate(d, self.sizes) for d in ir.shape_of(value)), op
                assert result.dtype == DTYPES[ir.dtype_of(value)], op
                values[value] = result
        raise AssertionError("a block without an end")

    def op(self, op: Operation, operands: list[Any]) -> list[Any]:
        if isinstance(op, aten.CallOp):
            return self.call(op, operands)
        if isinstance(op, aten.CondOp):
            region = op.then_region if operands[0] else op.else_region
            return self.block(region.block, operands[1:])
        if isinstance(op, aten.WhileLoopOp):
            n = aten.count(op, "carried")
            while self.block(op.condition.block, operands)[0]:
                operands = [*self.block(op.body.block, operands), *operands[n:]]
            return operands[:n]
        if isinstance(op, aten.ScanOp):
            n, m = aten.count(op, "inits"), aten.count(op, "xs")
            carry, rows = operands[:n], []
            for i in range(operands[n].shape[0]):
                out = self.block(op.combine.block, [*carry, *(x[i] for x in operands[n : n + m]), *operands[n + m :]])
                carry = out[:n]
                rows.append(out[n:])
            return [*carry, *(torch.stack(column) for column in zip(*rows, strict=True))]
        if isinstance(op, aten.MapOp):
            m = aten.count(op, "xs")
            rows = [
                self.block(op.body.block, [*(x[i] for x in operands[:m]), *operands[m:]])
                for i in range(operands[0].shape[0])
            ]
            return [torch.stack(column) for column in zip(*rows, strict=True)]
        if isinstance(op, autodiff.BatchOp):
            one_by_one = [
                self.block(
                    op.body.block,
                    [t if d is None else t.select(d, i) for t, d in zip(operands, op.mapped, strict=True)],
                )
                for i in range(evaluate(op.size, self.sizes))
            ]
            return [torch.stack(column) for column in zip(*one_by_one, strict=True)]
        if isinstance(op, autodiff.CheckpointOp):
            return self.block(op.body.block, operands)
        if isinstance(op, autodiff.CustomOp):
            return self.custom(op, operands)
        if isinstance(op, autodiff.VjpOp):
            return self.vjp(op, operands)
        raise AssertionError(op.name)

    def call(self, op: aten.CallOp, operands: list[Any]) -> list[Any]:
        if op.overload == "alias.default" and operands[0].is_floating_point() and not operands[0].requires_grad:
            return [operands[0].detach().requires_grad_()]  # a variable of its own, torch.func.grad's
        function = overload(op.overload)
        schema = function._schema.arguments
        args = [
            decode(v, str(a.real_type if isinstance(v, str) else a.type), operands, self.sizes)
            for a, v in zip(schema, op.args, strict=True)
        ]
        positional = [v for a, v in zip(schema, args, strict=True) if not a.kwarg_only]
        named = {a.name: v for a, v in zip(schema, args, strict=True) if a.kwarg_only}
        before = [(t.clone(), t.untyped_storage()._cdata) for t in operands]
        result = function(*positional, **named)
        flat = torch.utils._pytree.tree_leaves(result, is_leaf=lambda v: v is None)
        results = [flat[i] for i in op.present]
        self.check_facts(op, operands, before, results)
        return results

    def check_facts(self, op: aten.CallOp, operands: list[Any], before: list[Any], results: list[Any]) -> None:
        written = {before[i][1] for i in op.mutates}
        for index, (tensor, (old, storage)) in enumerate(zip(operands, before, strict=True)):
            if storage not in written:
                assert torch.equal(tensor, old) or tensor.isnan().any(), f"{op} writes operand {index} in secret"
        for result, alias in zip(results, op.aliases, strict=True):
            shares = [i for i, t in enumerate(operands) if storage_of(t) == storage_of(result)]
            assert (alias in shares) if shares else alias == -1, f"{op}: {alias} but shares {shares}"

    def custom(self, op: autodiff.CustomOp, operands: list[Any]) -> list[Any]:
        evaluation, count = self, len(op.results)

        class Custom(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                out = evaluation.block(op.forward.block, args)
                ctx.saved = out[count:]
                ctx.mark_non_differentiable(*(out[i] for i in op.non_differentiable))
                return tuple(out[:count])

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                out = evaluation.block(op.backward.block, [*grads, *ctx.saved])
                return tuple(out[g] if g >= 0 else None for g in op.gradients)

        return list(Custom.apply(*operands))

    def vjp(self, op: autodiff.VjpOp, operands: list[Any]) -> list[Any]:
        n, m = len(op.outs), len(op.ins)
        entries = ir.literal(op, "seeds")
        seeds = [None if e is None else operands[e.index] for e in entries]  # type: ignore[union-attr]
        grads = torch.autograd.grad(
            operands[:n],
            operands[n : n + m],
            seeds,
            create_graph=op.create_graph,
            retain_graph=True,
            allow_unused=True,
        )
        return [grads[i] for i in op.present]


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def run_captured(captured: Captured, arguments: Sequence[Any]) -> list[Any]:
    func = ir.function(captured.module, "main")
    signature = Signature.of(func)
    values = [*arguments, *captured.constants]
    sizes: dict[str, int] = {}
    for described, value, argument in zip(signature.arguments, values, func.body.block.args, strict=True):
        if described.symbol:
            sizes[described.symbol] = value
        elif isinstance(value, torch.Tensor):
            for size, number in zip(ir.shape_of(argument), value.shape, strict=True):
                if isinstance(size, Size) and size is Size.symbol(str(size)):
                    assert sizes.setdefault(str(size), number) == number
    results = Evaluation(sizes).block(func.body.block, values)
    returned = ir.operands_of(func.body.block.last_op)
    for described, value, result in zip(signature.results, returned, results, strict=True):
        if aten.REBOUND in described.extra:
            index = described.extra[aten.REBOUND].data  # type: ignore[attr-defined]
            with torch.no_grad():
                values[index].as_strided_(result.shape, result.stride(), result.storage_offset())
            results = [values[index] if v is value else r for v, r in zip(returned, results, strict=True)]
    outputs = []
    for entry in signature.user_outputs or ():
        kind, value = entry
        outputs.append(
            results[value] if kind == "value" else value.evaluate(sizes) if isinstance(value, Size) else value
        )  # type: ignore[index,union-attr]
    return outputs


@dataclass
class Captures:
    """A compile function for capture that checks, keeps and evaluates what it gets."""

    all: list[Captured] = field(default_factory=list)
    round_trip: bool = True

    def __call__(self, captured: Captured) -> Callable[[list[Any]], list[Any]]:
        ir.verify(captured.module)
        if self.round_trip:
            text = show(captured.module)
            again = parse(text)
            ir.verify(again)
            assert show(again) == text
        self.all.append(captured)
        return lambda arguments: run_captured(captured, arguments)

    @property
    def text(self) -> str:
        return show(self.all[-1].module)

    @property
    def calls(self) -> list[aten.CallOp]:
        return [op for op in self.all[-1].module.walk() if isinstance(op, aten.CallOp)]

    @property
    def overloads(self) -> list[str]:
        return [op.overload for op in self.calls]

    def ops(self, kind: type[Operation]) -> list[Any]:
        return [op for op in self.all[-1].module.walk() if isinstance(op, kind)]


@pytest.fixture
def captures() -> Captures:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Captures()


@pytest.fixture
def evaluate_module() -> Callable[[ModuleOp, Sequence[Any]], list[Any]]:
    return lambda module, arguments: Evaluation({}).block(ir.function(module, "main").body.block, arguments)


@pytest.fixture
def call_overload() -> Callable[..., Any]:
    def call(name: str, args: Sequence[Any], operands: Sequence[Any]) -> Any:
        function = overload(name)
        schema = function._schema.arguments
        values = [decode(v, str(a.real_type), operands, {}) for v, a in zip(args, schema, strict=True)]
        positional = [v for v, a in zip(values, schema, strict=True) if not a.kwarg_only]
        return function(*positional, **{a.name: v for v, a in zip(values, schema, strict=True) if a.kwarg_only})

    return call
