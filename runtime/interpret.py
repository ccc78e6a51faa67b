"""The reference interpreter: runs any level of the IR on torch tensors, one table entry per op class.

It is the meaning that native code is compared with, so it prefers plain torch functions to fast ones. Autograd is left
as the caller set it; values are freed after their last use; symbols are bound from the arguments' shapes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import IndexType, ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.traits import IsTerminator

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.autodiff import VjpOp
from isthmus.dialects.signature import Signature
from isthmus.runtime.fresh import coerce
from isthmus.runtime.interpret_table import DTYPES, TABLE, Evaluate, Value
from isthmus.sizes import Size, evaluate, exact_quotient

Listener: TypeAlias = Callable[[Operation, Sequence[Value]], None]
"""Called after each op, also inside regions, with its results."""

_DIALECTS = ("elementwise", "shape", "reduce", "structured", "aten", "autodiff", "kernel")


def run(
    func: FuncOp,
    arguments: Sequence[Value],
    *,
    module: ModuleOp | None = None,
    listener: Listener | None = None,
) -> list[Tensor]:
    """Give the results of a function on these arguments (ints for `index` arguments).

    `module` is where called functions are looked up; the function's own module when it is left out. Raises IRError
    naming the argument when one does not fit its type, torch's own exceptions for what eager refuses.
    """
    return Interpreter(func, module=module, listener=listener)(arguments)


def interpreted(func: FuncOp, *, module: ModuleOp | None = None) -> Interpreter:
    """Give a callable with the signature of compiled code: a list of arguments in, a list of tensors out."""
    return Interpreter(func, module=module)


class Interpreter:
    """One function, prepared to run many times. Results may share storage with arguments: see `fresh`."""

    fresh = False
    native = False

    def __init__(self, func: FuncOp, *, module: ModuleOp | None = None, listener: Listener | None = None) -> None:
        load_tables()
        self.func = func
        self.module = module
        self.listener = listener
        self.plans: dict[Block, _Plan] = {}
        types = func.function_type.outputs.data
        roles = zip(Signature.of(func).results, types, strict=True)
        self.outputs = [(k, r.strides) for k, (r, t) in enumerate(roles) if r.output and isinstance(t, TensorType)]
        """What the caller sees, and its strides where they are not row-major."""

    def __call__(self, arguments: Sequence[Value]) -> list[Tensor]:
        """Run on arguments in the order of the function's arguments."""
        current = _Run(self, self.func, arguments)
        results = cast(list[Tensor], current.block(self.func.body.block, arguments))
        for k, strides in self.outputs:
            numbers = None if strides is None else [evaluate(s, current.sizes) for s in strides]
            results[k] = coerce(results[k], numbers)
        return results

    def plan(self, block: Block) -> _Plan:
        """Give the plan of a block, made at its first run."""
        plan = self.plans.get(block)
        if plan is None:
            plan = self.plans[block] = _make_plan(block)
        return plan

    def callee(self, name: str) -> FuncOp:
        """Give a function of the module by name."""
        parent = self.func.parent_op() if self.module is None else self.module
        if not isinstance(parent, ModuleOp):
            raise IRError(f"@{name} is called, but the function stands in no module")
        return ir.function(parent, name)


class _Run:
    """One call of a function: its symbols, and the plans that it shares with other calls."""

    def __init__(self, interpreter: Interpreter, func: FuncOp, arguments: Sequence[Value]) -> None:
        self.interpreter = interpreter
        self.sizes: Mapping[str, int] = bind_symbols(func, arguments)

    def run_region(self, region: Region, arguments: Sequence[Value]) -> list[Value]:
        """Run a one-block region; gives what its terminator holds."""
        return self.block(region.block, arguments)

    def block(self, block: Block, arguments: Sequence[Value]) -> list[Value]:
        """Run a block; one that differentiates by itself needs torch's tape whatever the caller's grad mode."""
        plan = self.interpreter.plan(block)
        if not plan.asked:
            return self._steps(plan, arguments)
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            arguments = [_leaf(v) if slot in plan.asked else v for slot, v in enumerate(arguments)]
            results = self._steps(plan, arguments)
        return results if recorded else [r.detach() if isinstance(r, Tensor) else r for r in results]

    def _steps(self, plan: _Plan, arguments: Sequence[Value]) -> list[Value]:
        listener = self.interpreter.listener
        slots: list[Value | None] = [None] * plan.slots
        slots[: len(arguments)] = arguments
        for step in plan.steps:
            operands = [cast(Value, slots[i]) for i in step.operands]
            try:
                results = step.evaluate(step.op, operands, self)
            except Exception as error:
                _note_op(error, step.op)
                raise
            _check_results(step, results, self.sizes)
            for slot, result in zip(step.results, results, strict=True):
                slots[slot] = _leaf(result) if slot in plan.asked else result
            del operands
            for slot in step.frees:
                slots[slot] = None
            if listener is not None:
                listener(step.op, results)
        return [cast(Value, slots[i]) for i in plan.returns]

    def call(self, name: str, arguments: Sequence[Value]) -> list[Value]:
        """Run another function of the module."""
        func = self.interpreter.callee(name)
        return _Run(self.interpreter, func, arguments).block(func.body.block, arguments)


def _leaf(value: Value) -> Value:
    """Give a value that torch can differentiate by."""
    if not isinstance(value, Tensor) or value.requires_grad:
        return value
    return value.detach().requires_grad_(value.is_floating_point() or value.is_complex())


def _note_op(error: Exception, op: Operation) -> None:
    """Say once where an error comes from, whatever its type."""
    if not getattr(error, "__notes__", None) and not isinstance(error, IRError):
        where = ir.source_location(op)
        error.add_note(f"while interpreting '{op.name}'" + (f" from {where}" if where else ""))


# ---- Plans: a block as a list of steps on numbered slots


@dataclass(frozen=True)
class _Step:
    op: Operation
    evaluate: Evaluate
    operands: tuple[int, ...]
    results: tuple[int, ...]
    expected: tuple[tuple[ir.Shape, torch.dtype] | None, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    slots: int
    steps: tuple[_Step, ...]
    returns: tuple[int, ...]
    asked: frozenset[int]
    """Values by which the block itself differentiates."""


def _make_plan(block: Block) -> _Plan:
    numbers: dict[SSAValue, int] = {}
    for argument in block.args:
        numbers[argument] = len(numbers)
    ops = list(block.ops)
    last = ops[-1] if ops and ops[-1].has_trait(IsTerminator) else None
    drafts: list[tuple[Operation, Evaluate, tuple[int, ...], tuple[int, ...]]] = []
    last_use: dict[int, int] = {}
    for op in ops[:-1] if last is not None else ops:
        evaluate = TABLE.get(type(op))
        if evaluate is None:
            raise IRError("the interpreter does not know this op", op=op.name, location=ir.source_location(op))
        operands = _slots(op, numbers)
        for result in op.results:
            numbers[result] = len(numbers)
        results = tuple(numbers[r] for r in op.results)
        for slot in (*operands, *results):
            last_use[slot] = len(drafts)
        drafts.append((op, evaluate, operands, results))
    returns = _slots(last, numbers) if last is not None else ()
    frees: list[list[int]] = [[] for _ in drafts]
    for slot, index in last_use.items():
        if slot not in returns:
            frees[index].append(slot)
    steps = tuple(
        _Step(op, evaluate, operands, results, tuple(_expected(r.type) for r in op.results), tuple(free))
        for (op, evaluate, operands, results), free in zip(drafts, frees, strict=True)
    )
    asked = frozenset(numbers[v] for op in ops if isinstance(op, VjpOp) for v in op.ins)
    return _Plan(len(numbers), steps, returns, asked)


def _slots(op: Operation, numbers: Mapping[SSAValue, int]) -> tuple[int, ...]:
    try:
        return tuple(numbers[v] for v in ir.operands_of(op))
    except KeyError:
        what = "reads a value that is not defined before it in its own block"
        raise IRError(what, op=op.name, location=ir.source_location(op)) from None


def _expected(type_: Attribute) -> tuple[ir.Shape, torch.dtype] | None:
    if isinstance(type_, IndexType):
        return None
    return ir.shape_of(type_), DTYPES[ir.dtype_of(type_)]


def _check_results(step: _Step, results: Sequence[Value], values: Mapping[str, int]) -> None:
    """Compare results with their types: an op that lies about its type is a fault of the compiler."""
    if len(results) != len(step.results):
        raise IRError(f"gave {len(results)} results, not {len(step.results)}", op=step.op.name)
    for position, (expected, result) in enumerate(zip(step.expected, results, strict=True)):
        if expected is None:
            continue
        shape, dtype = expected
        assert isinstance(result, Tensor), f"{step.op.name} gave a {type(result).__name__}"
        if result.dtype is dtype and _fits(result.shape, shape, values):
            continue
        raise IRError(
            f"result {position} is {_describe(result)}, its type says {step.op.results[position].type}",
            op=step.op.name,
            location=ir.source_location(step.op),
        )


def _fits(actual: Sequence[int], shape: ir.Shape, values: Mapping[str, int]) -> bool:
    if len(actual) != len(shape):
        return False
    return all(
        have == (want if isinstance(want, int) else want.evaluate(values))
        for have, want in zip(actual, shape, strict=True)
    )


# ---- Arguments and symbols


def bind_symbols(func: FuncOp, arguments: Sequence[Value]) -> dict[str, int]:
    """Give the values of the function's symbols; IRError naming the argument that does not fit its type."""
    block_arguments = ir.block_arguments(func)
    if len(arguments) != len(block_arguments):
        raise IRError(f"@{func.sym_name.data} takes {len(block_arguments)} arguments, not {len(arguments)}")
    values: dict[str, int] = {}
    dims: list[tuple[str, ir.Dim, int]] = []
    roles = Signature.of(func).arguments
    for argument, role, value in zip(block_arguments, roles, arguments, strict=True):
        name = _argument_name(argument, role.source)
        if isinstance(argument.type, IndexType):
            _bind_index(role.symbol, name, value, values)
            continue
        shape, dtype = ir.shape_of(argument.type), DTYPES[ir.dtype_of(argument.type)]
        if not isinstance(value, Tensor) or value.dtype is not dtype or value.dim() != len(shape):
            raise IRError(f"{name} must be a {argument.type}, not {_describe(value)}")
        dims += [(f"dimension {d} of {name}", s, value.shape[d]) for d, s in enumerate(shape)]
    for _, dim, actual in dims:
        if isinstance(dim, Size):
            solved = _solve(dim, actual, values)
            if solved is not None:
                values.setdefault(*solved)
    for what, dim, actual in dims:
        try:
            wanted = dim if isinstance(dim, int) else dim.evaluate(values)
        except KeyError as error:
            raise IRError(f"{what} is {actual}, which does not say what {error.args[0]} is in {dim}") from None
        if wanted != actual:
            known = "" if isinstance(dim, int) else f" = {dim}"
            raise IRError(f"{what} must be {wanted}{known}, not {actual}")
    return values


def _bind_index(symbol: str | None, name: str, value: Value, values: dict[str, int]) -> None:
    if not isinstance(value, int):
        raise IRError(f"{name} must be an int, not {_describe(value)}")
    if symbol is not None:
        values[symbol] = value


def _solve(dim: Size, actual: int, values: Mapping[str, int]) -> tuple[str, int] | None:
    """Solve dim = actual for its one unknown symbol where that is linear: dim = a·s + b."""
    rest = dim.substitute(values)
    if not isinstance(rest, Size) or len(rest.symbols()) != 1:
        return None
    (symbol,) = rest.symbols()
    at = [rest.substitute({symbol: n}) for n in (0, 1, 2)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope:
        return None
    solution = exact_quotient(actual - at[0], slope)
    return (symbol, solution) if isinstance(solution, int) else None


def _argument_name(argument: BlockArgument, source: str | None) -> str:
    known = source or (f"%{argument.name_hint}" if argument.name_hint else "")
    return f"argument {argument.index}" + (f" ({known})" if known else "")


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {list(value.shape)} {value.dtype}"
    return f"a {type(value).__name__}"


def _evaluate_call(op: Operation, operands: Sequence[Value], frame: object) -> Sequence[Value]:
    assert isinstance(op, CallOp) and isinstance(frame, _Run)
    return frame.call(op.callee.string_value(), operands)


TABLE[CallOp] = _evaluate_call


def load_tables() -> None:
    """Import the tables at first use, so that nobody pays who does not interpret."""
    for dialect in _DIALECTS:
        importlib.import_module(f"isthmus.runtime.interpret_{dialect}")
